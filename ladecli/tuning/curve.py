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
SLOW, SLOW_WIDTHS = 0.05, (1, 2, 8, 32)
"""Seconds of a plain step from which on each width gets one step in turn, and only these do."""
FIRST_ROUND = 2.0
"""The first round of a slow model may take so many times the time that is given."""
WARM_UP, WARM_UP_SHARE = 24, 0.2
"""Steps of each width before any counts, in this share of the time at most."""
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
        spread: median relative difference between two halves of the measurements.
        steps: number of measured steps.
    """

    cost: StepCost
    plain: tuple[float, ...]
    spread: float
    steps: int

    @property
    def ridge(self) -> float:
        """Tokens whose arithmetic takes as long as a plain step, by the slope at the wide end.

        Infinite where no slope is seen.
        """
        widths, costs = self.cost.widths, self.cost.costs[0]
        left = max(len(widths) - 3, 0)
        rise = costs[-1] - costs[left]
        return (widths[-1] - widths[left]) / rise if rise > 0 else float("inf")


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
        progress: called now and then.

    Returns:
        Medians, raised where noise made a wider step seem cheaper than a narrower one.
    """
    began = time.perf_counter()
    usable = [c for c in contexts if c <= decoder.max_context - ROOM]
    usable = usable or [min(contexts[0], decoder.max_context // 3)]
    timer = _Timer(decoder, text, progress)
    slow = timer.warm_up(usable[0], widths, began + WARM_UP_SHARE * seconds)
    if slow:
        widths = [width for width in widths if width in SLOW_WIDTHS]
    latest = began + FIRST_ROUND * seconds

    def measure(context: int, wanted: Sequence[int], share: float) -> list[int]:
        """Time steps for `share` seconds; the widths that memory and time sufficed for."""
        end = time.perf_counter() + share
        timer.take_turns(context, wanted, end, latest, 1 if slow else VISIT)
        return [width for width in wanted if timer.times[context, width]]

    measured: list[int] = []
    for context in usable:
        left = began + seconds - time.perf_counter()
        share = left / (len(usable) - len(measured)) if measured else FIRST_SHARE * seconds
        if measured and timer.reading(context) > share / 2:
            break
        widths = measure(context, widths, share)
        cost = timer.median(context, widths[-1]) / timer.median(context, 1)
        if not measured and not slow and cost < STILL_CHEAP:
            wider = [*widths, *(width for width in WIDER if width > widths[-1])]
            widths = measure(context, wider, share / 2)
        measured.append(context)
    return timer.curve(measured, widths)


class _Timer:
    """Seconds of steps by context and width."""

    def __init__(self, decoder: Decoder, text: Sequence[int], progress: Callable[[], None]) -> None:
        self._decoder, self._text, self._progress = decoder, list(text), progress
        self._drafts: dict[int, DraftMemory] = defaultdict(DraftMemory)
        self.times: dict[tuple[int, int], list[float]] = defaultdict(list)

    def median(self, context: int, width: int) -> float:
        """Seconds of a step."""
        return statistics.median(self.times[context, width])

    def warm_up(self, context: int, widths: Sequence[int], end: float) -> bool:
        """Load, compile, and let every width learn something to draft; returns whether it is slow.

        Nothing counts, but that the model is slow if even the fastest of some plain steps is.
        """
        seconds = self._visit(context, 1, 2)[1:]
        while min(seconds) > SLOW and sum(seconds) < 10 * SLOW:
            seconds += self._visit(context, 1, 2)[1:]
        if min(seconds) > SLOW:
            return True
        for width in widths[1:]:
            self._visit(context, width, WARM_UP if time.perf_counter() < end else 1)
        return False

    def take_turns(
        self, context: int, widths: Sequence[int], end: float, latest: float, steps: int
    ) -> None:
        """Visit all widths in turn until `end`; the first round ends at `latest`, if need be."""
        limit = latest
        while True:
            for width in widths:
                seconds = self._visit(context, width, steps)
                self.times[context, width] += seconds[1:] if steps > 1 else seconds
                if time.perf_counter() > limit:
                    return
            limit = end
            if time.perf_counter() > limit:
                return

    def reading(self, context: int) -> float:
        """Seconds that reading a context takes at most, by the widest steps so far."""
        known = {width: seconds for (_, width), seconds in self.times.items() if seconds}
        widest = max(known)
        return context * statistics.median(known[widest]) / widest

    def _visit(self, context: int, width: int, steps: int) -> list[float]:
        """Seconds of some steps of this width after a text of this length."""
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
        seen = [width for width in widths if all(self.times[c, width] for c in contexts)]
        rows, differences = [], []
        for context in contexts:
            plain = self.median(context, 1)
            costs = accumulate((self.median(context, width) / plain for width in seen), max)
            rows.append(tuple(round(cost, 3) for cost in costs))
            for times in (self.times[context, width] for width in seen):
                if len(times) > 3:
                    halves = statistics.median(times[0::2]), statistics.median(times[1::2])
                    differences.append(abs(halves[0] / halves[1] - 1.0))
        return Curve(
            StepCost(tuple(seen), tuple(contexts), tuple(rows)),
            tuple(self.median(context, 1) for context in contexts),
            statistics.median(differences) if differences else float("inf"),
            sum(len(self.times[c, width]) for c in contexts for width in seen),
        )
