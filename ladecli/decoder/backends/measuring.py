"""Measure the duration of a loaded model's steps by their widths, and of other work by turns.

This is not in `step_cost`, which settings import, because it decodes.
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
"""The measured widths, the most informative ones first; a GPU also has 64."""
PROMPT, VISIT, VISIT_SECONDS = 16, 4, 0.02
"""The number of tokens before measured steps; and the limits of consecutive steps of one width, in
steps and in seconds."""


def race(
    works: Mapping[K, Callable[[], object]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, float]:
    """Run pieces of work in turns for some seconds, at least once each, and return the shortest
    time of each."""
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
    """Run steps of lookahead for some seconds, and return their times by width.

    Widths alternate, with plain steps in between, so that the shortest time of each is likely to be
    free of disturbances.  The cached text is lost.

    Args:
        seconds: the time limit; the last step may exceed it.
        known: widths that were measured before; others come first.
        clock: returns the time in seconds.
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
