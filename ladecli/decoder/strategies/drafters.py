"""Where lookahead's candidates come from: the paper's pool, or the online n-gram model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..config import LookaheadConfig
from ..ngram_model import ORDER, NgramModel
from ..pool import NgramPool
from ..tree import TokenTree
from .base import Observation, State

TRAJECTORY_WEIGHT = 0.25
"""Evidence of a trajectory n-gram, relative to accepted text."""
RECYCLED = 4
"""Successors remembered of a token whose logits a step computed."""


class Drafter(Protocol):
    """Collects evidence and proposes candidate trees."""

    @property
    def ranks(self) -> int:
        """How many successors of every output it wants to see; 0 for none."""

    def begin(self, state: State) -> None:
        """A generation starts; `state` holds the prompt."""

    def candidates(self, state: State, nodes: int) -> TokenTree:
        """At most `nodes` candidates behind the current token."""

    def learn(self, state: State, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """A step is over, and the window closed `ngrams` in it."""


class PoolDrafter:
    """The paper's n-gram pool: candidates start with the current token, newest first."""

    ranks = 0

    def __init__(self, config: LookaheadConfig) -> None:
        self._pool = NgramPool(config.guesses)

    def begin(self, state: State) -> None:
        """The pool is empty until the window has filled."""

    def candidates(self, state: State, nodes: int) -> TokenTree:
        """The n-grams under the current token, merged by prefix."""
        tree = TokenTree()
        for candidate, source in self._pool.candidates(state.tokens[-1]):
            tree.add(candidate[: state.draft_depth], source, nodes)
        return tree

    def learn(self, state: State, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Pool the n-grams."""
        for ngram in ngrams:
            self._pool.add(ngram, "trajectory")


class ModelDrafter:
    """The online n-gram model, fed by every source that is switched on.

    Args:
        config: `sources` and `token_cost`.
    """

    def __init__(self, config: LookaheadConfig) -> None:
        self._sources = config.sources
        self._token_cost = config.token_cost
        self._learned = 0
        self.ranks = RECYCLED if "recycled" in config.sources else 0
        self._model = NgramModel()

    def begin(self, state: State) -> None:
        """Learn the prompt."""
        self._learn_text(state.tokens)

    def candidates(self, state: State, nodes: int) -> TokenTree:
        """The most probable prefixes behind the text."""
        context = self._model.context_of(state.tokens)
        return self._model.tree(context, nodes, state.draft_depth, self._token_cost)

    def learn(self, state: State, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Learn from the verdict, the step's logits, the window, and the accepted text."""
        self._model.judge(seen.draft.tree, seen.verdict.nodes)
        if self.ranks:
            self._recycle(state, seen)
        for ngram in ngrams:
            context = ngram[0]
            for length, token in enumerate(ngram[1:], start=1):
                orders = min(length, ORDER)
                self._model.learn(context, orders, token, TRAJECTORY_WEIGHT, "trajectory")
                context = self._model.after(context, token)
        self._learn_text(state.tokens)

    def _learn_text(self, tokens: Sequence[int]) -> None:
        """Learn what joined the text since the last time."""
        if "context" in self._sources:
            for end in range(max(self._learned, 1), len(tokens)):
                context = self._model.context_of(tokens[max(end - ORDER, 0) : end])
                self._model.learn(context, min(end, ORDER), tokens[end], 1.0, "context")
        self._learned = len(tokens)

    def _recycle(self, state: State, seen: Observation) -> None:
        """Remember the successors of every token whose logits the step computed."""
        model, draft = self._model, seen.draft
        end = len(state.tokens) - len(seen.verdict.tokens)
        contexts = [model.context_of(state.tokens[max(end - ORDER, 0) : end])]
        for parent, token in zip(draft.tree.parents, draft.tree.tokens, strict=True):
            contexts.append(model.after(contexts[parent + 1], token))
        for context, ranked in zip(contexts, seen.ranked, strict=False):
            model.recycle(context, 2, ranked)
        if draft.window is not None:
            last, ranked_last = draft.window.last_tokens, seen.ranked[len(contexts) :]
            for (previous, token), ranked in zip(last, ranked_last, strict=True):
                model.recycle(model.context_of((previous, token)), 2, ranked)
