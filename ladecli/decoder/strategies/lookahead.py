"""Lookahead decoding (Fu et al., ICML 2024, arXiv 2402.02057).

Beside the text runs a 2-D window of Jacobi iterations.  Its last row closes W n-grams per
step, which go into a pool.  Those that start with the current token are verified in the same
forward pass, merged into one tree.
"""

from __future__ import annotations

import random

from ..config import LookaheadConfig
from ..layout import Draft
from ..pool import NgramPool
from ..tree import TokenTree
from ..window import LookaheadWindow
from .base import Observation, State


class Lookahead:
    """The paper's algorithm, with the n-grams of the text itself in the pool if wanted.

    Args:
        config: window, n-gram length, guesses, budget and sources.
    """

    name = "lookahead"

    def __init__(self, config: LookaheadConfig) -> None:
        self._config = config
        self._pool = NgramPool(config.guesses)
        self._window: LookaheadWindow | None = None
        self._pooled = 0

    def begin(self, state: State) -> None:
        """Start the window with tokens of the prompt, and pool the prompt's n-grams."""
        config = self._config
        if "trajectory" in config.sources:
            rng = random.Random(0)
            self._window = LookaheadWindow(config.window, config.ngram, state.tokens, rng)
        self._pool_text(state)

    def propose(self, state: State) -> Draft:
        """The pool's n-grams behind the current token, and the window where it fits."""
        window = self._window
        block = window.block() if window and window.reach <= state.room else None
        spent = 1 + (len(block.tokens) if block else 0)
        tree = TokenTree()
        limit = self._config.step_limit - spent
        for candidate, source in self._pool.candidates(state.tokens[-1]):
            tree.add(candidate[: state.draft_depth], source, limit)
        return Draft(tree, block)

    def observe(self, state: State, seen: Observation) -> None:
        """Pool the n-grams that this step closed, and move the window on."""
        if self._window is not None and seen.draft.window is not None:
            for ngram in self._window.ngrams(seen.current, seen.window_outputs):
                self._pool.add(ngram, "trajectory")
            self._window.advance(seen.window_outputs)
        self._pool_text(state)

    def _pool_text(self, state: State) -> None:
        """Pool the n-grams of the text that are not in the pool yet."""
        if "context" not in self._config.sources:
            return
        ngram = self._config.ngram
        for start in range(self._pooled, len(state.tokens) - ngram + 1):
            self._pool.add(state.tokens[start : start + ngram], "context")
            self._pooled = start + 1
