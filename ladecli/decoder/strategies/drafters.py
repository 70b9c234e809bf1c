"""Where lookahead's candidates come from: the paper's pool, or the online n-gram model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from ..config import LookaheadConfig
from ..draft_state import DraftState
from ..ngrams import LESSON
from ..observation import Observation
from ..sources import Source
from ..sources.recycled import SUCCESSORS
from ..step_cost import CostCurve
from ..tree import TokenTree
from .base import State


class Drafter(Protocol):
    """Collects evidence and proposes candidate trees."""

    @property
    def successors(self) -> int:
        """How many successors of every output it wants to see; 0 for none."""

    @property
    def margin(self) -> float:
        """About how probable one more candidate would have been; 0 if there was room for it."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A generation starts."""

    def candidates(self, state: State, curve: CostCurve) -> TokenTree:
        """Candidates behind the current token, at most as many as `curve` has costs for."""

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """A step is over, and the window closed `ngrams` in it."""


class PoolDrafter:
    """The paper's n-gram pool: candidates start with the current token, newest first."""

    successors = 0
    margin = 0.0

    def __init__(self, config: LookaheadConfig, drafts: DraftState) -> None:
        self._guesses = config.guesses
        self._depth = config.ngram - 1
        self._pool = drafts.pool

    def begin(self, prompt: Sequence[int]) -> None:
        """The pool holds what the window finds, and nothing of the prompt."""

    def candidates(self, state: State, curve: CostCurve) -> TokenTree:
        """The n-grams under the current token, merged by prefix."""
        tree = TokenTree()
        depth = min(state.draft_depth, self._depth)
        for candidate in islice(self._pool.candidates(state.tokens[-1]), self._guesses):
            tree.add(candidate[:depth], "trajectory", curve.nodes)
        return tree

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Pool the n-grams."""
        for ngram in ngrams:
            self._pool.add(ngram, self._guesses)


class ModelDrafter:
    """The online n-gram model, fed by every source that is switched on.

    Args:
        config: `sources`.
        drafts: the model and its sources.
    """

    def __init__(self, config: LookaheadConfig, drafts: DraftState) -> None:
        self._drafts = drafts
        self._sources: list[Source] = []
        # Accepted text is the newest evidence under a context, so it is learned last.
        if "recycled" in config.sources:
            self._sources.append(drafts.recycled)
        if "trajectory" in config.sources:
            self._sources.append(drafts.trajectory)
        if "context" in config.sources:
            self._sources.append(drafts.context)
        self.successors = SUCCESSORS if "recycled" in config.sources else 0

    @property
    def margin(self) -> float:
        """Of the model's last tree."""
        return self._drafts.model.margin

    def begin(self, prompt: Sequence[int]) -> None:
        """Learn the prompt."""
        for source in self._sources:
            source.begin(prompt)

    def candidates(self, state: State, curve: CostCurve) -> TokenTree:
        """The most probable prefixes behind the text."""
        drafts, model = self._drafts, self._drafts.model
        guide = drafts.context.guide() if drafts.context in self._sources else None
        lesson = LESSON if drafts.ledger.thriving else 1.0
        return model.tree(state.tokens, state.draft_depth, curve, guide, lesson)

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Learn from the verdict, then from what each source observes."""
        tokens = seen.text[seen.before :]
        self._drafts.model.judge(tokens, seen.verdict.nodes)
        for source in self._sources:
            source.learn(seen, ngrams)
