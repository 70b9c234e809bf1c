"""Lookahead with more sources of drafts than the paper's (see `paper`).

All sources feed one online n-gram model.  The tree of its most probable continuations is verified,
as large as pays by the measured cost of a step.  If `trajectory` is one of the sources, the window
of Jacobi iterations runs beside the tree at its full width.
"""

from __future__ import annotations

from ..config import LookaheadConfig, SamplingConfig
from ..drafting.ngram_model import MAX_CHILDREN, MAX_SUCCESSORS, SAMPLED_SUCCESSORS, Ranked
from ..drafting.sources import Observation
from ..drafting.store import DraftStore
from ..drafting.tree_search import EXPLORATION, TreeSearch
from ..step_cost import GRAIN, CostCurve
from ..strategy import Draft, Room, State, StepResult, Strategy
from ..window import LookaheadWindow, WindowBlock

PLAIN_STEPS_PER_LOOK = 4
"""One of this many plain steps asks for successors: ranking logits costs time, too."""


class Lookahead(Strategy):
    """The window and the other sources that are switched on, and the model that they feed."""

    def __init__(self, config: LookaheadConfig, store: DraftStore) -> None:
        self._config, self._limit = config, config.step_limit
        self._store = store
        named = store.sources.items()
        self._sources = [source for name, source in named if name in config.sources]
        self._successors = MAX_SUCCESSORS if "recycled" in config.sources else 0
        self._sampling: SamplingConfig | None = None  # where tokens are drawn
        self._window: LookaheadWindow | None = None
        # Of the draft under way: what its step costs, and what its tree was grown from.
        self._curve, self._shape = CostCurve((1.0,), (0.0,)), (0,) * 5
        self._looked_up: dict[int, Ranked] = {}
        self._plain_steps = 0

    def begin(self, state: State) -> None:
        """Start the window with tokens of the prompt, and learn the prompt."""
        config = self._config
        if not state.sampling.greedy:
            self._sampling = state.sampling
            self._successors = SAMPLED_SUCCESSORS if self._successors else 0
        if "trajectory" in config.sources:
            self._window = LookaheadWindow(config.window, config.ngram, state.tokens)
        self._store.budget.begin()
        self._store.broken = True
        for source in self._sources:
            source.begin(state.tokens)
        self._store.broken = False

    def propose(self, state: State, room: Room) -> Draft:
        """Return the window where it fits, and the most probable prefixes after the text."""
        config, store, loads = self._config, self._store, room.loads
        limit = self._limit if room.width >= self._limit else config.limit_within(room.width)
        places = sum([limit - load for load in loads if load < limit])
        # The window comes at its full width or not at all, and only beside candidates.
        window: WindowBlock | None = None
        if self._window is not None and room.branches and store.budget.may_run_window:
            block = self._window.block(state.tokens[-1])
            if self._window.max_offset <= room.reach and len(block.tokens) < places:
                window = block
        cells = len(window.tokens) if window else 0
        base = sum(loads) + cells
        # The tree takes as many of the other places as pay.
        context, nodes, load = len(state.tokens), places - cells, max(loads)
        shape = (context + GRAIN // 2) // GRAIN, base, nodes, len(loads), load
        if shape != self._shape:  # as in few steps
            self._shape = shape
            self._curve = config.step_cost.curve(
                context, base, nodes, config.widths, len(loads), load
            )
        curve = self._curve
        span = store.context.repeated_span() if "context" in config.sources else None
        search = TreeSearch(store.model, state.tokens, span, self._sampling)
        # Without recycled successors the logits of a node teach nothing.
        explores = self._successors and store.budget.may_explore
        tree = search.grow(
            room.depth if store.budget.may_draft else 0,
            curve,
            EXPLORATION if explores else 1.0,
            MAX_CHILDREN if room.branches else 1,
        )
        self._looked_up = search.looked_up
        successors = self._successors if limit > 1 else 0
        if window is None and not tree.tokens and curve.cost[-1] > curve.cost[0]:
            # A plain step because candidates do not pay, and not because they cost nothing.
            self._plain_steps += 1
            if self._plain_steps % PLAIN_STEPS_PER_LOOK:
                successors = 0
        width = base + len(tree.tokens)
        width = next((fit for fit in config.widths if fit >= width), width)
        return Draft(tree, window, width, successors, limit, config.widths)

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """Move the window on, and learn from the step."""
        store, text, new = self._store, state.tokens, len(result.tokens)
        # Ranks that share a draft may have had no room for all of it.
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
