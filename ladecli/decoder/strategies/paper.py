"""Lookahead decoding as in the paper (Fu et al., ICML 2024, arXiv 2402.02057).

Jacobi iteration: guess W tokens at once, let the model predict the token after each of them, and
use the predictions as the next guesses.  Most guesses are wrong for their place in the text, but
runs of them are text that the model likes to write.  So the last N - 1 iterations are kept; runs
of N tokens across them are collected as n-grams, and verified when their first token comes up.

A step has two branches, which one forward computes together:

- The lookahead branch is a 2-D window of W columns and N - 1 rows, which advances by one Jacobi
  iteration per step.  Its outputs complete W n-grams of N tokens, which go into a pool.
- The verification branch holds up to G n-grams of the pool that start with the current token.
"""

from __future__ import annotations

from itertools import islice

from ..config import LookaheadConfig
from ..drafting.store import DraftStore
from ..step_cost import fitting
from ..strategy import Draft, Room, State, StepResult, Strategy
from ..tree import TokenTree
from ..window import LookaheadWindow


class PaperLookahead(Strategy):
    """The paper's algorithm, which does not consider what a step costs."""

    def __init__(self, config: LookaheadConfig, store: DraftStore) -> None:
        self._config = config
        self._store = store
        self._window: LookaheadWindow  # `begin` makes it

    def begin(self, state: State) -> None:
        """Start the window with random tokens of the prompt."""
        self._window = LookaheadWindow(self._config.window, self._config.ngram, state.tokens)

    def propose(self, state: State, room: Room) -> Draft:
        """Return the lookahead branch if it fits, and the verification branch as far as it fits."""
        config, current = self._config, state.tokens[-1]
        limit = config.limit_within(room.width)
        places = sum([limit - load for load in room.loads if load < limit])  # of all ranks
        # The lookahead branch: all cells of the window but the first, which is the current token.
        window = self._window.block(current)
        fits = room.branches and self._window.max_offset <= room.reach
        fits = fits and len(window.tokens) <= places
        cells = len(window.tokens) if fits else 0
        # The verification branch: N - 1 guesses from each of the newest G n-grams, merged into a
        # tree; if a tree may have no branches, the newest n-gram alone.
        tree = TokenTree()
        depth = min(room.depth, config.ngram - 1)
        guesses = config.guesses if room.branches else min(config.guesses, 1)
        for guess in islice(self._store.pool.candidates(current), guesses):
            tree.add(guess[:depth], "trajectory", places - cells)
        width = fitting(sum(room.loads) + cells + len(tree), config.widths)
        return Draft(tree, window if fits else None, width, limit=limit, widths=config.widths)

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """Advance the window by one Jacobi iteration, and pool the n-grams that it completed."""
        if draft.window is None:
            return
        # The model's tokens after the cells of the last row.
        outputs = result.best[1 + len(draft.tree) :]
        self._store.broken = True
        for ngram in self._window.advance(outputs):
            self._store.pool.add(ngram, self._config.guesses)
        self._store.broken = False
