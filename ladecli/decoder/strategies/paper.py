"""Lookahead decoding as the paper has it (Fu et al., ICML 2024, arXiv 2402.02057).

Each step has two branches in one forward.  The lookahead branch is a 2-D window of Jacobi
iterations, W columns and N - 1 rows, whose outputs close W n-grams of N tokens.  They go into a
pool.  The verification branch holds up to G n-grams of the pool that start with the current token.
"""

from __future__ import annotations

import random
from itertools import islice

from ..config import LookaheadConfig
from ..drafting.store import DraftStore
from ..step_cost import fitting
from ..strategy import Draft, Room, State, StepResult, Strategy
from ..tree import TokenTree
from ..window import WINDOW_START, LookaheadWindow


class PaperLookahead(Strategy):
    """The paper's algorithm: both branches are as large as they can be, whatever a step costs."""

    name = "lookahead"

    def __init__(self, config: LookaheadConfig, store: DraftStore) -> None:
        self._config = config
        self._limit = config.step_limit
        self._store = store
        self._window = LookaheadWindow(1, 2, [0], random.Random(0))

    def begin(self, state: State) -> None:
        """Start the window with random tokens of the prompt."""
        config, start = self._config, state.tokens[-WINDOW_START:]
        self._window = LookaheadWindow(config.window, config.ngram, start, random.Random(0))

    def propose(self, state: State, room: Room) -> Draft:
        """The lookahead branch if it fits, and the verification branch as far as it fits."""
        config, current = self._config, state.tokens[-1]
        limit = self._limit if room.width >= self._limit else config.narrower(room.width)
        # Each rank feeds the tokens that it misses and the current one: what places are left?
        loads = [1 + count for count in room.missing]
        places = sum([limit - load for load in loads if load < limit])
        # The lookahead branch: the window's cells, beside the current token in its corner.
        lookahead = self._window.block(current)
        fits = len(lookahead.tokens) <= places and self._window.max_offset <= room.reach
        cells = len(lookahead.tokens) if fits else 0
        # The verification branch: the newest n-grams of the pool, merged by their common starts.
        verification = TokenTree()
        depth = min(room.depth, config.ngram - 1)
        for candidate in islice(self._store.pool.candidates(current), config.guesses):
            verification.add(candidate[:depth], "trajectory", places - cells)
        width = fitting(sum(loads) + cells + len(verification), config.widths)
        window = lookahead if fits else None
        return Draft(verification, window, width, limit=limit, widths=config.widths)

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """Advance the window by a Jacobi iteration, and pool the n-grams that it closed."""
        if draft.window is None:
            return
        # The current token of the step stands before the tokens that the step committed.
        current = state.tokens[-len(result.tokens) - 1]
        ngrams = self._window.advance(current, result.best[1 + len(draft.tree) :])
        self._store.broken = True
        for ngram in ngrams:
            self._store.pool.add(ngram, self._config.guesses)
        self._store.broken = False
