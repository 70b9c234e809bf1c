"""Lookahead decoding as the paper has it (Fu et al., ICML 2024, arXiv 2402.02057).

Beside the text runs a 2-D window of Jacobi iterations, whose last row closes W n-grams per step.
They go into a pool; those that start with the current token are verified in the same forward.
"""

from __future__ import annotations

import random
from itertools import islice

from ..config import LookaheadConfig
from ..drafting.memory import DraftMemory
from ..step_cost import fitting
from ..strategy import Draft, Room, State, StepResult, Strategy
from ..tree import TokenTree
from ..window import WINDOW_START, LookaheadWindow


class PaperLookahead(Strategy):
    """The window at its full width always, whatever a step costs, and the pool of its n-grams."""

    name = "lookahead"

    def __init__(self, config: LookaheadConfig, memory: DraftMemory) -> None:
        self._config = config
        self._limit = config.step_limit
        self._memory = memory
        self._window = LookaheadWindow(1, 2, [0], random.Random(0))

    def begin(self, state: State) -> None:
        """Start the window with tokens of the prompt."""
        config, start = self._config, state.tokens[-WINDOW_START:]
        self._window = LookaheadWindow(config.window, config.ngram, start, random.Random(0))

    def propose(self, state: State, room: Room) -> Draft:
        """The window if it fits, and the newest n-grams under the current token, merged."""
        config = self._config
        limit = self._limit if room.width >= self._limit else config.narrower(room.width)
        loads = [1 + count for count in room.missing]
        places = sum([limit - load for load in loads if load < limit])
        window = self._window.block(state.tokens[-1])
        block = None
        if len(window.tokens) <= places and self._window.max_offset <= room.reach:
            block, places = window, places - len(window.tokens)
        tree = TokenTree()
        depth = min(room.depth, config.ngram - 1)
        for candidate in islice(self._memory.pool.candidates(state.tokens[-1]), config.guesses):
            tree.add(candidate[:depth], "trajectory", places)
        fed = sum(loads) + len(tree) + (len(block.tokens) if block else 0)
        width = fitting(fed, config.widths)
        return Draft(tree, block, width, limit=limit, widths=config.widths)

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """Move the window on, and pool the n-grams that it closed."""
        if draft.window is None:
            return
        current = state.tokens[-len(result.tokens) - 1]
        self._memory.broken = True
        for ngram in self._window.advance(current, result.best[1 + len(draft.tree) :]):
            self._memory.pool.add(ngram, self._config.guesses)
        self._memory.broken = False
