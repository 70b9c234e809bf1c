"""Measures what steps of a loaded model take, by their widths, and other work in turns.

It stands apart from `step_cost`, which settings import, because it decodes.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import TypeVar

from ..config import WITHOUT_WINDOW, LookaheadConfig
from ..decoder import Decoder
from ..drafting.store import DraftStore
from ..events import Step
from ..strategies import make_strategy

K = TypeVar("K")

WIDTHS = (1, 4, 16, 8, 32, 2)
"""The widths that are measured, the most telling ones first; a GPU has 64 in addition."""
PROMPT, VISIT, VISIT_SECONDS = 16, 4, 0.02
"""Tokens of the text that measured steps follow, and the steps of one width in a row: at most so
many, or for so many seconds."""


def race(
    works: Mapping[K, Callable[[], object]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, float]:
    """Return the least time of each piece of work: all take turns, once at least, for so many
    seconds."""
    least = dict.fromkeys(works, math.inf)
    end = clock() + seconds
    while works:
        for name, work in works.items():
            began = clock()
            work()
            least[name] = min(least[name], clock() - began)
        if clock() >= end:
            break
    return least


def measure(
    decoder: Decoder,
    seconds: float,
    known: Collection[int] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, list[float]]:
    """Return the times of as many steps of lookahead as run in so many seconds, by width.

    All widths take turns, and plain steps come between any two, so that the least time of each is
    one without other programs.  The cached text is lost.

    Args:
        seconds: for all steps; the one under way at their end is finished.
        known: widths that were measured before; others come first.
        clock: tells the time of a step.
    """
    executor = decoder.executor
    widths = [*WIDTHS, 64] if executor.device.type == "cuda" else [*WIDTHS]
    # The first steps of a width capture it, or compile kernels.
    fresh = {*widths} if executor.overlaps or executor.device.type != "cpu" else set[int]()
    text = [7919 * place % decoder.facts.vocabulary for place in range(PROMPT)]
    stores = {width: DraftStore() for width in widths}
    times: dict[int, list[float]] = {}

    def visit(width: int) -> None:
        grid = (1, width) if width > 1 else (1,)
        config = LookaheadConfig(budget=width, sources=WITHOUT_WINDOW, widths=grid)
        events = decoder.generate(text, make_strategy("lookahead", config, stores[width]))
        next(events)  # before the prompt is read
        spent, began = 0.0, clock()
        for event in islice(events, 2 * VISIT):
            now = clock()
            if isinstance(event, Step) and event.width == width and width not in fresh:
                times.setdefault(width, []).append(now - began)
                spent += now - began
                if spent > VISIT_SECONDS or len(times[width]) % VISIT == 0:
                    break
            began = clock()
        events.close()
        fresh.discard(width)

    end = time.perf_counter() + seconds
    if seconds <= 0.0 or len(text) + 2 * VISIT >= decoder.max_context:
        return {}
    others = widths[1:]
    while time.perf_counter() < end:
        if {*widths} <= {*known, *times}:
            random.shuffle(others)
        for other in sorted(others, key=lambda width: width in known):
            for width in (1, other):
                if time.perf_counter() < end:
                    visit(width)
    decoder.forget(keep_memory=True)
    return times
