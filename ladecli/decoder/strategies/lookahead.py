"""Lookahead with more sources of drafts than the paper's (see `paper`).

All sources feed one n-gram model, which learns as the text grows.  Its most probable continuations
make the tree of a step; the measured cost of a step decides how large a tree pays.  If `trajectory`
is one of the sources, the window of Jacobi iterations runs beside the tree at its full width.
"""

from __future__ import annotations

from ..config import LookaheadConfig, SamplingConfig
from ..drafting.constants import CONSTANTS
from ..drafting.ngram_model import Ranked
from ..drafting.sources import Observation
from ..drafting.store import DraftStore
from ..drafting.tree_search import TreeSearch
from ..step_cost import GRAIN, CostCurve
from ..strategy import Draft, Room, State, StepResult, Strategy
from ..window import LookaheadWindow, WindowBlock


class Lookahead(Strategy):
    """Lookahead from all sources that the configuration names."""

    def __init__(self, config: LookaheadConfig, store: DraftStore) -> None:
        self._config, self._limit = config, config.step_limit
        self._store = store
        named = store.sources.items()
        self._sources = [source for name, source in named if name in config.sources]
        self._successors = CONSTANTS.max_successors if "recycled" in config.sources else 0
        self._sampling: SamplingConfig | None = None  # None for greedy
        self._window: LookaheadWindow | None = None
        # Cost curves by the numbers that they depend on, which change in few steps.
        self._curves: dict[tuple[int, ...], CostCurve] = {}
        # About the step under way, for `observe`: its cost curve, and what its tree grew from.
        self._curve: CostCurve  # `propose` sets it
        self._looked_up: dict[int, Ranked] = {}
        self._plain_steps = 0

    def begin(self, state: State) -> None:
        """Start the window with tokens of the prompt, and learn the prompt."""
        config = self._config
        if not state.sampling.greedy:
            self._sampling = state.sampling
            self._successors = CONSTANTS.sampled_successors if self._successors else 0
        if "trajectory" in config.sources:
            self._window = LookaheadWindow(config.window, config.ngram, state.tokens)
        self._store.budget.begin()
        self._store.broken = True
        for source in self._sources:
            source.begin(state.tokens)
        self._store.broken = False

    def propose(self, state: State, room: Room) -> Draft:
        """Return the window if it fits, and the tree of the most probable continuations."""
        config, store, loads = self._config, self._store, room.loads
        limit = self._limit if room.width >= self._limit else config.limit_within(room.width)
        places = sum([limit - load for load in loads if load < limit])  # of all ranks
        # The window is used at its full width or not at all, and leaves a place for the tree.
        window: WindowBlock | None = None
        if self._window is not None and room.branches and store.budget.may_run_window:
            block = self._window.block(state.tokens[-1])
            if self._window.max_offset <= room.reach and len(block.tokens) < places:
                window = block
        cells = len(window.tokens) if window else 0
        base = sum(loads) + cells
        # The tree takes as many of the other places as pay.
        context = (len(state.tokens) + GRAIN // 2) // GRAIN * GRAIN
        shape = context, base, places - cells, len(loads), max(loads)
        if (curve := self._curves.get(shape)) is None:
            curve = config.step_cost.curve(*shape[:3], config.widths, *shape[3:])
            self._curves[shape] = curve
        self._curve = curve
        spans = store.context.repeated_spans() if "context" in config.sources else ()
        search = TreeSearch(store.model, state.tokens, spans, self._sampling, state.grammar)
        # Only recycled successors are learned from nodes that are not accepted.
        explores = self._successors and store.budget.may_explore
        tree = search.grow(
            room.depth if store.budget.may_draft else 0,
            curve,
            CONSTANTS.exploration if explores else 1.0,
            CONSTANTS.max_children if room.branches else 1,
        )
        self._looked_up = search.looked_up
        successors = self._successors if limit > 1 else 0
        if window is None and not tree.tokens and curve.cost[-1] > curve.cost[0]:
            # A plain step, since no candidate pays.
            self._plain_steps += 1
            if self._plain_steps % CONSTANTS.plain_steps_per_look:
                successors = 0
        width = base + len(tree.tokens)
        width = next((wider for wider in config.widths if wider >= width), width)
        return Draft(tree, window, width, successors, limit, config.widths)

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """Advance the window, and learn from the step."""
        store, text, new = self._store, state.tokens, len(result.tokens)
        # The draft that was tried: ranks may have had no room for all of the proposed one.
        nodes = len(draft.tree.tokens)
        store.budget.update(new, self._curve.cost[nodes])
        ngrams: list[tuple[int, ...]] = []
        if self._window is not None and draft.window is not None:
            ngrams = self._window.advance(result.best[1 + nodes :])
        step = Observation(text, new, draft.tree, result.successors, ngrams)
        store.broken = True
        store.model.calibrate(self._looked_up, text[-new:], result.nodes)
        for source in self._sources:
            source.learn(step)
        store.broken = False
