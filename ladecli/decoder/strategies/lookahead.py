"""Lookahead decoding (Fu et al., ICML 2024, arXiv 2402.02057), with more sources of drafts.

Beside the text runs a 2-D window of Jacobi iterations, whose last row closes W n-grams per step.
Promising candidates after the current token are verified in the same forward.  With the
trajectory as the only source this is the paper's algorithm: candidates are the n-grams of a pool
that start with the current token.  Otherwise all sources feed one online n-gram model, and the
candidates are the tree of its most probable continuations.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice

from ..config import LookaheadConfig
from ..drafting.budget import AdaptiveWindow, SpeculationBudget, cell_price
from ..drafting.memory import DraftMemory
from ..drafting.ngram_model import EXPLORATION, MAX_SUCCESSORS
from ..drafting.sources import Source
from ..layout import Draft
from ..observation import Observation, State
from ..step_cost import CostCurve, StepCost, fitting
from ..tree import TokenTree
from ..window import LookaheadWindow, WindowBlock
from .base import Strategy

PLAIN_STEPS_PER_LOOK = 4
"""One of this many plain steps asks for successors: ranking logits costs time, too."""
WINDOW_START = 512
"""The window starts with tokens drawn from this much of the end of the text."""
NO_ROOM = CostCurve((1.0,), (0.0,))
"""The costs of a step without candidates."""


class PoolDrafter:
    """The paper's n-gram pool: candidates start with the current token, newest first.

    Attributes:
        max_successors: of each output that it learns from.
        margin: about how probable one more candidate would be; 0 if there was room for it.
    """

    max_successors = 0
    margin = 0.0

    def __init__(self, config: LookaheadConfig, memory: DraftMemory) -> None:
        self._guesses = config.guesses
        self._depth = config.ngram - 1
        self._pool = memory.pool

    def begin(self, prompt: Sequence[int]) -> None:
        """The pool holds what the window finds, and nothing of the prompt."""

    def candidates(self, state: State, curve: CostCurve) -> TokenTree:
        """The n-grams under the current token, merged by prefix."""
        tree = TokenTree()
        depth = min(state.draft_depth, self._depth)
        for candidate in islice(self._pool.candidates(state.tokens[-1]), self._guesses):
            tree.add(candidate[:depth], "trajectory", curve.max_nodes)
        return tree

    def learn(self, observation: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Pool the n-grams."""
        for ngram in ngrams:
            self._pool.add(ngram, self._guesses)


class ModelDrafter:
    """The online n-gram model, fed by the sources that are switched on; as `PoolDrafter`."""

    def __init__(self, config: LookaheadConfig, memory: DraftMemory) -> None:
        self._memory, self._model = memory, memory.model
        self._repeats = "context" in config.sources
        # Accepted text is the newest evidence of a context, so it is learned last.
        sources: dict[str, Source] = {
            "recycled": memory.recycled,
            "trajectory": memory.trajectory,
            "context": memory.context,
        }
        self._sources = [source for name, source in sources.items() if name in config.sources]
        self.max_successors = MAX_SUCCESSORS if "recycled" in config.sources else 0

    @property
    def margin(self) -> float:
        """Of the last tree."""
        return self._model.margin

    def begin(self, prompt: Sequence[int]) -> None:
        """Learn the prompt."""
        for source in self._sources:
            source.begin(prompt)

    def candidates(self, state: State, curve: CostCurve) -> TokenTree:
        """The most probable prefixes after the text."""
        span = self._memory.context.repeated_span() if self._repeats else None
        # Without recycled successors the logits of a node teach nothing.
        explores = self.max_successors and self._memory.budget.may_explore
        exploration = EXPLORATION if explores else 1.0
        return self._model.build_tree(state.tokens, state.draft_depth, curve, span, exploration)

    def learn(self, observation: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Calibrate by the verdict, then learn from each source."""
        new = observation.text[observation.before :]
        self._model.calibrate(new, observation.verdict.nodes)
        for source in self._sources:
            source.learn(observation, ngrams)


class Lookahead(Strategy):
    """A window, and a drafter that learns from it and from what earlier generations remembered."""

    name = "lookahead"

    def __init__(self, config: LookaheadConfig, memory: DraftMemory | None = None) -> None:
        self._config = config
        self._memory = memory or DraftMemory()
        self._rng = random.Random(0)
        self._window: LookaheadWindow | None = None
        self._drafter: PoolDrafter | ModelDrafter
        self._adaptive: AdaptiveWindow | None
        if config.sources == ("trajectory",):
            # The paper's algorithm has its full width always, whatever a step costs.
            self._drafter = PoolDrafter(config, self._memory)
            self._adaptive = None
            self._step_cost, self._budget = StepCost(), SpeculationBudget()
        else:
            self._drafter = ModelDrafter(config, self._memory)
            self._adaptive = AdaptiveWindow(config.window)
            self._step_cost, self._budget = config.step_cost, self._memory.budget
        # While the window has one row, the current token has two outputs.
        self._limit = config.step_limit
        self.max_outputs = self._limit + 1
        self.max_successors = self._drafter.max_successors
        self._curve = NO_ROOM
        self._plain_steps = 0

    def begin(self, state: State) -> None:
        """Start the window with tokens of the prompt, and learn the prompt."""
        self._open_window(state.tokens)
        self._memory.broken = True
        self._drafter.begin(state.tokens)
        self._memory.broken = False

    def propose(self, state: State) -> Draft:
        """Candidates after the current token, and the window where it fits."""
        widths = self._config.widths
        limit = self._limit
        if limit > state.widest:
            limit = max((width for width in widths if width <= state.widest), default=state.widest)
        # What each rank feeds in any case, and the places that are left.
        loads = [1 + count for count in state.missing]
        places = sum(max(limit - load, 0) for load in loads)
        block = self._window_block(state, places)
        cells = len(block.tokens) if block else 0
        base = sum(loads) + cells
        curve = self._step_cost.curve(
            len(state.tokens), base, places - cells, widths, len(loads), max(loads)
        )
        tree = self._drafter.candidates(state, curve if self._budget.may_draft else NO_ROOM)
        self._curve = curve
        successors = self.max_successors if limit > 1 else 0
        if block is None and not len(tree) and curve.cost[-1] > curve.cost[0]:
            # A plain step because candidates do not pay, and not because they cost nothing.
            self._plain_steps += 1
            if self._plain_steps % PLAIN_STEPS_PER_LOOK:
                successors = 0
        return Draft(tree, block, fitting(base + len(tree), widths), successors, limit, widths)

    def observe(self, state: State, observation: Observation) -> None:
        """Move the window on, and learn from the n-grams that this step closed."""
        draft, committed = observation.draft, observation.verdict.tokens
        # Ranks that share a draft may have had no room for all of it.
        nodes = len(draft.tree)
        cost = self._curve.cost[nodes]
        self._budget.update(len(committed), cost)
        ngrams: list[tuple[int, ...]] = []
        if self._window is not None and draft.window is not None:
            ngrams = self._window.ngrams(observation.current, observation.window_outputs)
            self._window.advance(observation.window_outputs)
        if self._adaptive is not None and "trajectory" in self._config.sources:
            price = cell_price(self._drafter.margin, self._curve, nodes, len(committed) / cost)
            found = sum(token.source == "trajectory" for token in committed)
            cells = len(draft.window.tokens) if draft.window else 0
            before = self._adaptive.columns
            self._adaptive.update(found, cells, price, self._config.window_cells - 1)
            self._resize_window(before, self._adaptive.columns, state.tokens)
        self._memory.broken = True
        self._drafter.learn(observation, ngrams)
        self._memory.broken = False

    def _window_block(self, state: State, places: int) -> WindowBlock | None:
        """The window's cells, if it is open, pays, and fits."""
        window = self._window
        if window is None or window.max_offset > state.room or not self._budget.may_open_window:
            return None
        block = window.block(state.tokens[-1])
        # What a window finds is worth nothing where no candidate has room; the paper's has G = 0.
        candidates = 0 if self._adaptive is None else 1
        return block if len(block.tokens) + candidates <= places else None

    def _open_window(self, text: Sequence[int]) -> None:
        """Start a window of as many columns as pay, with tokens of the end of the text."""
        config = self._config
        columns = self._adaptive.columns if self._adaptive else config.window
        if "trajectory" in config.sources and columns:
            start = text[-WINDOW_START:]
            self._window = LookaheadWindow(columns, config.ngram, start, self._rng)

    def _resize_window(self, before: int, columns: int, text: Sequence[int]) -> None:
        """Give the window the columns that pay now."""
        if columns == 0:
            self._window = None
        elif columns > before:
            self._open_window(text)
        elif columns < before and self._window is not None:
            self._window.narrow(columns)
