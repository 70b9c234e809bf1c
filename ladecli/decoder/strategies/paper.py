"""Lookahead decoding as the paper has it (Fu et al., ICML 2024, arXiv 2402.02057).

Jacobi iteration: guess W tokens at once, let the model answer each of them, and take the answers
for the next guesses.  Most are wrong for this place in the text, but runs of them are text that
the model likes.  So the last N - 1 iterations are kept, each run is read off them as an n-gram,
and is verified when its first token comes up.

A step has two branches, which one forward computes together:

- The lookahead branch is a 2-D window of W columns and N - 1 rows, which is refined by one Jacobi
  iteration per step.  Its outputs close W n-grams of N tokens, which go into a pool.
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
    """The paper's algorithm.  It does not ask what a step costs."""

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
        places = sum([limit - load for load in room.loads if load < limit])
        # The lookahead branch: all cells of the window but the first, which is the current token.
        window = self._window.block(current)
        fits = room.branches and self._window.max_offset <= room.reach
        fits = fits and len(window.tokens) <= places
        cells = len(window.tokens) if fits else 0
        # The verification branch: the newest G n-grams, of which N - 1 tokens are guesses.  Merged
        # into a tree, so that a common start is verified once; the newest alone as a chain.
        tree = TokenTree()
        depth = min(room.depth, config.ngram - 1)
        guesses = config.guesses if room.branches else min(config.guesses, 1)
        for guess in islice(self._store.pool.candidates(current), guesses):
            tree.add(guess[:depth], "trajectory", places - cells)
        width = fitting(sum(room.loads) + cells + len(tree), config.widths)
        return Draft(tree, window if fits else None, width, limit=limit, widths=config.widths)

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """Advance the window by one Jacobi iteration, and pool the n-grams that it closed."""
        if draft.window is None:
            return
        # The model's tokens after the cells of the last row.
        outputs = result.best[1 + len(draft.tree) :]
        self._store.broken = True
        for ngram in self._window.advance(outputs):
            self._store.pool.add(ngram, self._config.guesses)
        self._store.broken = False
