"""Lookahead decoding (Fu et al., ICML 2024, arXiv 2402.02057), with more sources of drafts.

Beside the text runs a 2-D window of Jacobi iterations, whose last row closes W n-grams per
step.  Promising candidates behind the current token are verified in the same forward pass.
With the trajectory as the only source, candidates are those of the paper: the n-grams of a
pool that start with the current token.  Otherwise every source feeds one online n-gram model,
and the candidates are its most probable continuations.
"""

from __future__ import annotations

import random

from ..config import LookaheadConfig
from ..layout import Draft
from ..window import LookaheadWindow
from .base import Observation, State
from .drafters import Drafter, ModelDrafter, PoolDrafter


class Lookahead:
    """A window, and a drafter that learns from it.

    Args:
        config: window, n-gram length, guesses, budget and sources.
    """

    name = "lookahead"

    def __init__(self, config: LookaheadConfig) -> None:
        self._config = config
        paper = config.sources == ("trajectory",)
        self._drafter: Drafter = PoolDrafter(config) if paper else ModelDrafter(config)
        self.ranks = self._drafter.ranks
        self._window: LookaheadWindow | None = None

    def begin(self, state: State) -> None:
        """Start the window with tokens of the prompt."""
        config = self._config
        if "trajectory" in config.sources:
            rng = random.Random(0)
            self._window = LookaheadWindow(config.window, config.ngram, state.tokens, rng)
        self._drafter.begin(state)

    def propose(self, state: State) -> Draft:
        """Candidates behind the current token, and the window where it fits."""
        window = self._window
        block = None
        if window is not None and window.reach <= state.room:
            block = window.block(state.tokens[-1])
        spent = 1 + (len(block.tokens) if block else 0)
        return Draft(self._drafter.candidates(state, self._config.step_limit - spent), block)

    def observe(self, state: State, seen: Observation) -> None:
        """Learn from the n-grams that this step closed, and move the window on."""
        ngrams: list[tuple[int, ...]] = []
        if self._window is not None and seen.draft.window is not None:
            ngrams = self._window.ngrams(seen.current, seen.window_outputs)
            self._window.advance(seen.window_outputs)
        self._drafter.learn(state, seen, ngrams)
