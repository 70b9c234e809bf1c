"""What whole steps cost here, by width and by length of the text."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from ..decoder.config import LookaheadConfig, SamplingConfig
from ..decoder.drafting.memory import DraftMemory
from ..decoder.events import Step
from ..decoder.step_cost import StepCost
from ..decoder.strategies import make_strategy

if TYPE_CHECKING:
    from ..decoder.engine import Decoder

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
WIDER = (96, 128)
"""Measured too where a step of the widest of `WIDTHS` costs less than `STILL_CHEAP`."""
STILL_CHEAP = 1.5
CONTEXTS = (128, 1024, 4096, 16384)
VISIT = 4
"""Steps of one width in a row; the first one, which finds the caches of another, does not count."""
SLOW = 0.05
"""Seconds of a plain step from which on one step of each width in turn is enough: it wakes
everything, and fewer widths have to do."""
SLOW_WIDTHS = (1, 2, 8, 32)
FIRST_ROUND = 2.0
"""The first round of a slow model may take so many times the time that is given."""
WARM_UP, WARM_UP_SHARE = 24, 0.2
"""Steps of each width before any counts, in so much of the time at most."""
ROOM = 128
"""Tokens that a visit may add to its text."""
FIRST_SHARE = 0.5
"""Of the time, for the first context: most texts are short, and it has the finer curve."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured costs.

    Attributes:
        cost: in plain steps.
        plain: seconds of a plain step for each of the cost's contexts.
        spread: the typical relative difference between what two halves of the measurements
            say of the same width.
        steps: how many were measured.
    """

    cost: StepCost
    plain: tuple[float, ...]
    spread: float
    steps: int

    @property
    def ridge(self) -> float:
        """Tokens whose arithmetic takes as long as a plain step; infinite if it is not seen.

        Beyond the ridge a step is bound by arithmetic, so it is read off the slope at the
        wide end.
        """
        widths, costs = self.cost.widths, self.cost.costs[0]
        if len(widths) < 2:
            return float("inf")
        left = max(len(widths) - 3, 0)
        slope = (costs[-1] - costs[left]) / (widths[-1] - widths[left])
        return 1.0 / slope if slope > 0 else float("inf")


def measure_curve(
    decoder: Decoder,
    text: Sequence[int],
    seconds: float,
    *,
    widths: Sequence[int] = WIDTHS,
    contexts: Sequence[int] = CONTEXTS,
    progress: Callable[[], None] = lambda: None,
) -> Curve:
    """Measure steps of real generations, all widths taking turns.

    Args:
        decoder: the model.
        text: token ids to continue; it is repeated as often as a context needs.
        seconds: how long this may take; the first context is measured at least once.
        widths: ascending from 1.
        contexts: lengths of text; those that the model cannot hold, or that would take too
            long, are left out.
        progress: called every now and then.

    Returns:
        Medians, raised where noise made a wider step seem cheaper than a narrower one.
    """
    began = time.perf_counter()
    room = decoder.max_context - ROOM
    short = min(contexts[0], decoder.max_context // 3)
    usable = [c for c in contexts if c <= room] or [short]
    bench = _Bench(decoder, text, progress, began + FIRST_ROUND * seconds)
    if bench.warm_up(usable[0], widths, began + WARM_UP_SHARE * seconds):
        widths = [w for w in widths if w in SLOW_WIDTHS]
    measured: list[int] = []
    for number, context in enumerate(usable):
        left = began + seconds - time.perf_counter()
        share = FIRST_SHARE * seconds if number == 0 else left / (len(usable) - number)
        if number and bench.reading(context) > share / 2:
            break
        bench.run(context, widths, time.perf_counter() + share)
        # Steps that memory, or time, does not suffice for leave nothing.
        widths = [w for w in widths if bench.has(context, w)]
        if number == 0 and not bench.slow and bench.cost(context, widths[-1]) < STILL_CHEAP:
            widths = [*widths, *(w for w in WIDER if w > widths[-1])]
            bench.run(context, widths, time.perf_counter() + share / 2)
            widths = [w for w in widths if bench.has(context, w)]
        measured.append(context)
    return bench.curve(measured, widths)


class _Bench:
    """Times of steps by context and width."""

    def __init__(
        self, decoder: Decoder, text: Sequence[int], progress: Callable[[], None], last: float
    ) -> None:
        self._decoder = decoder
        self._last = last
        self._text = list(text)
        self._progress = progress
        self._drafts: dict[int, DraftMemory] = defaultdict(DraftMemory)
        self._seconds: dict[tuple[int, int], list[float]] = defaultdict(list)
        self._visited: set[int] = set()
        self.slow = False

    def warm_up(self, context: int, widths: Sequence[int], end: float) -> bool:
        """Wake what sleeps, and let every width learn something to draft; nothing counts.

        Returns:
            Whether the model is slow.
        """
        # The first steps load and compile what others find there: the fastest of a few counts,
        # unless one alone takes long.
        seconds = self._visit(context, 1, 2)[1:]
        while min(seconds) > SLOW and sum(seconds) < 10 * SLOW:
            seconds += self._visit(context, 1, 2)[1:]
        self.slow = min(seconds) > SLOW
        self._seconds[context, 1] = seconds
        if not self.slow:
            for width in widths[1:]:
                self._visit(context, width, WARM_UP if time.perf_counter() < end else 1)
        return self.slow

    def has(self, context: int, width: int) -> bool:
        """Whether a step of this width was measured."""
        return bool(self._seconds[context, width])

    def plain(self, context: int) -> float:
        """Seconds of a plain step."""
        return statistics.median(self._seconds[context, 1])

    def cost(self, context: int, width: int) -> float:
        """Of a step, in plain steps."""
        return statistics.median(self._seconds[context, width]) / self.plain(context)

    def reading(self, context: int) -> float:
        """Seconds that the prompt of a context takes at most, by the widest steps so far."""
        known = {w: t for (_, w), t in self._seconds.items() if t}
        widest = max(known)
        return context * statistics.median(known[widest]) / widest

    def run(self, context: int, widths: Sequence[int], end: float) -> None:
        """Visit all widths in turn until the time is over."""
        if context not in self._visited:
            self._seconds[context, 1] = []
            self._visited.add(context)
        rounds = 0
        while True:
            for width in widths:
                self._seconds[context, width] += self._count(context, width)
                if time.perf_counter() > (end if rounds else self._last):
                    return
            rounds += 1
            if time.perf_counter() > end:
                return

    def _count(self, context: int, width: int) -> list[float]:
        """Seconds of steps that count."""
        if self.slow:
            return self._visit(context, width, 1)
        return self._visit(context, width, VISIT)[1:]

    def _visit(self, context: int, width: int, steps: int) -> list[float]:
        """Seconds of some steps of this width behind a text of this length."""
        self._progress()
        config = LookaheadConfig(
            budget=width, sources=("context", "recycled"), widths=(1, width) if width > 1 else (1,)
        )
        name = "lookahead" if width > 1 else "autoregressive"
        strategy = make_strategy(name, config, self._drafts[width])
        text = self._text * (context // len(self._text) + 1)
        events = self._decoder.generate(text[:context], strategy, SamplingConfig())
        seconds: list[float] = []
        tries = 0
        for event in events:
            if isinstance(event, Step):
                tries += 1
                if event.width == width:
                    seconds.append(event.seconds)
                if len(seconds) == steps or tries == 2 * steps + 1:
                    break
        events.close()
        return seconds

    def curve(self, contexts: Sequence[int], widths: Sequence[int]) -> Curve:
        """What was measured of these contexts, at the widths that all of them have."""
        seen = [w for w in widths if all(self._seconds[c, w] for c in contexts)]
        rows, differences = [], []
        for context in contexts:
            times = [self._seconds[context, width] for width in seen]
            medians = [statistics.median(t) for t in times]
            rows.append(tuple(accumulate((m / medians[0] for m in medians), max)))
            halves = [(t[0::2], t[1::2]) for t in times if len(t) > 3]
            differences += [
                abs(statistics.median(a) / statistics.median(b) - 1.0) for a, b in halves
            ]
        rounded = tuple(tuple(round(cost, 3) for cost in row) for row in rows)
        return Curve(
            StepCost(tuple(seen), tuple(contexts), rounded),
            tuple(self.plain(context) for context in contexts),
            statistics.median(differences) if differences else float("inf"),
            sum(len(self._seconds[c, w]) for c in contexts for w in seen),
        )
