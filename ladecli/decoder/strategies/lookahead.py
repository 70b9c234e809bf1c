"""Lookahead decoding (Fu et al., ICML 2024, arXiv 2402.02057), with more sources of drafts.

Beside the text runs a 2-D window of Jacobi iterations, whose last row closes W n-grams per
step.  Promising candidates behind the current token are verified in the same forward pass.
With the trajectory as the only source, candidates are those of the paper: the n-grams of a
pool that start with the current token.  Otherwise every source feeds one online n-gram model,
and the candidates are its most probable continuations.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..config import LookaheadConfig
from ..draft_state import DraftState
from ..layout import Draft
from ..ledger import Ledger
from ..observation import Observation
from ..step_cost import CostCurve, StepCost, fitting
from ..window import LookaheadWindow
from .base import State
from .drafters import Drafter, ModelDrafter, PoolDrafter
from .shares import WindowShare, price_of_place

SELDOM = 4
"""One plain step of so many is looked at closely: ranking its logits costs time, too."""
START = 512
"""The window starts with tokens from so much of the end of the text."""
PLAIN = CostCurve((1.0,), (0.0,))
"""No room for any node."""


class Lookahead:
    """A window, and a drafter that learns from it.

    Args:
        config: window, n-gram length, guesses, budget, sources and costs.
        drafts: what earlier generations learned, and this one adds to; None for nothing.
    """

    name = "lookahead"

    def __init__(self, config: LookaheadConfig, drafts: DraftState | None = None) -> None:
        self._config = config
        self._drafts = drafts or DraftState()
        paper = config.sources == ("trajectory",)
        drafter = PoolDrafter if paper else ModelDrafter
        self._drafter: Drafter = drafter(config, self._drafts)
        self._window: LookaheadWindow | None = None
        # The paper's algorithm has its full width always, whatever a step costs.
        self._share = None if paper else WindowShare(config.window)
        self._step_cost = StepCost() if paper else config.step_cost
        self._ledger = Ledger() if paper else self._drafts.ledger
        self._rng = random.Random(0)
        self._curve = PLAIN
        self._cost = 1.0
        self._plain_steps = 0

    @property
    def outputs(self) -> int:
        """The most outputs of a step."""
        # While the window has one row, the current token is asked about twice.
        return self._config.step_limit + 1

    @property
    def successors(self) -> int:
        """The most successors of an output that a draft asks for."""
        return self._drafter.successors

    def checksum(self) -> int:
        """Of what was learned."""
        return self._drafts.checksum()

    def begin(self, state: State) -> None:
        """Start the window with tokens of the prompt."""
        self._open_window(state.tokens)
        with self._drafts.changing():
            self._drafter.begin(state.tokens)

    def propose(self, state: State) -> Draft:
        """Candidates behind the current token, and the window where it fits."""
        config, window, length = self._config, self._window, len(state.tokens)
        limit, shares = self._limit(state.widest), len(state.missing)
        # What ranks that share the step feed in any case, and the places that are left.
        loads = [1 + count for count in state.missing]
        places = sum(max(limit - load, 0) for load in loads)
        block = None
        solvent = self._ledger.solvent
        if window is not None and window.reach <= state.room and self._ledger.affords_window:
            block = window.block(state.tokens[-1])
            # What a window finds is worth nothing where no candidate has room.
            if len(block.tokens) + (0 if self._share is None else 1) > places:
                block = None
        cells = len(block.tokens) if block else 0
        base, nodes = sum(loads) + cells, places - cells
        curve = self._step_cost.curve(length, base, nodes, config.widths, shares, max(loads))
        tree = self._drafter.candidates(state, curve if solvent else PLAIN)
        self._curve = curve
        cost = curve.cost[len(tree)]
        successors = self.successors if limit > 1 else 0
        chosen_plain = block is None and not len(tree) and curve.cost[-1] > cost
        if chosen_plain:
            self._plain_steps += 1
            successors = 0 if self._plain_steps % SELDOM else successors
        width = fitting(base + len(tree), config.widths)
        return Draft(tree, block, width, successors, limit, config.widths)

    def observe(self, state: State, seen: Observation) -> None:
        """Learn from the n-grams that this step closed, and move the window on."""
        # Ranks that share a draft may have had less room for it than was thought.
        self._cost = self._curve.cost[len(seen.draft.tree)]
        self._ledger.book(len(seen.verdict.tokens), self._cost)
        ngrams: list[tuple[int, ...]] = []
        if self._window is not None and seen.draft.window is not None:
            ngrams = self._window.ngrams(seen.current, seen.window_outputs)
            self._window.advance(seen.window_outputs)
        if self._share is not None and "trajectory" in self._config.sources:
            self._resize_window(self._share, state, seen)
        with self._drafts.changing():
            self._drafter.learn(seen, ngrams)

    def _limit(self, widest: int) -> int:
        """The most tokens of a step, as the settings and memory have it."""
        config = self._config
        limit = config.step_limit
        if limit <= widest:
            return limit
        return max((width for width in config.widths if width <= widest), default=widest)

    def _open_window(self, text: Sequence[int]) -> None:
        config = self._config
        columns = self._share.columns if self._share else config.window
        if "trajectory" in config.sources and columns:
            start = text[-START:]
            self._window = LookaheadWindow(columns, config.ngram, start, self._rng)

    def _resize_window(self, share: WindowShare, state: State, seen: Observation) -> None:
        """Let the window have the columns that it earns."""
        before = share.columns
        found = sum(token.source == "trajectory" for token in seen.verdict.tokens)
        cells = len(seen.draft.window.tokens) if seen.draft.window else 0
        tokens = len(seen.verdict.tokens) / self._cost
        price = price_of_place(self._drafter.margin, self._curve, len(seen.draft.tree), tokens)
        share.book(found, cells, price, self._config.window_cells - 1)
        if share.columns == 0:
            self._window = None
        elif share.columns < before and self._window is not None:
            self._window.narrow(share.columns)
        elif share.columns > before:
            self._open_window(state.tokens)
