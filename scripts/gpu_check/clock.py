"""Times of work on a device: in turns, so that all arms meet the same weather."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

import torch

Work = Callable[[], object]
Arm = TypeVar("Arm", bound=Hashable)


class Clock(Protocol):
    """Says how long work takes."""

    def burst(self, work: Work, repeats: int) -> list[float]:
        """Seconds of the device for each of `repeats` runs, one behind the other."""

    def whole(self, work: Work) -> float:
        """Seconds until the work is done, the host's part included."""


class GpuClock:
    """Events on a CUDA device.

    Args:
        device: that the work runs on, in its current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def burst(self, work: Work, repeats: int) -> list[float]:
        """See `Clock`."""
        # The first run is not counted: the device waits for its launch.
        work()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record()
        for mark in marks[1:]:
            work()
            mark.record()
        torch.cuda.synchronize(self._device)
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]

    def whole(self, work: Work) -> float:
        """See `Clock`."""
        torch.cuda.synchronize(self._device)
        began = time.perf_counter()
        work()
        torch.cuda.synchronize(self._device)
        return time.perf_counter() - began


class HostClock:
    """The clock of a machine whose work is done when a call returns."""

    def burst(self, work: Work, repeats: int) -> list[float]:
        """See `Clock`."""
        work()
        return [self.whole(work) for _ in range(repeats)]

    def whole(self, work: Work) -> float:
        """See `Clock`."""
        began = time.perf_counter()
        work()
        return time.perf_counter() - began


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return GpuClock(device) if device.type == "cuda" else HostClock()


def bursts(
    arms: Mapping[Arm, Work], clock: Clock, rounds: int, repeats: int
) -> dict[Arm, list[float]]:
    """Seconds of the device for each arm, in turns of `repeats` runs, every other one backwards."""
    found: dict[Arm, list[float]] = {arm: [] for arm in arms}
    for turn in range(rounds):
        for arm in _order(list(arms), turn):
            found[arm] += clock.burst(arms[arm], repeats)
    return found


def wholes(arms: Mapping[Arm, Work], clock: Clock, rounds: int) -> dict[Arm, list[float]]:
    """Seconds until each arm's work is done, in turns."""
    found: dict[Arm, list[float]] = {arm: [] for arm in arms}
    for turn in range(rounds):
        for arm in _order(list(arms), turn):
            found[arm].append(clock.whole(arms[arm]))
    return found


def _order(arms: list[Arm], turn: int) -> list[Arm]:
    return arms[::-1] if turn % 2 else arms


def middle(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def interval(ratios: Sequence[float], draws: int = 2000) -> tuple[float, float, float]:
    """The geometric mean of ratios, and 95 % around it by drawing them again (bootstrap)."""
    rng = random.Random(0)
    means = sorted(
        statistics.geometric_mean(rng.choices(ratios, k=len(ratios))) for _ in range(draws)
    )
    low, high = means[int(0.025 * draws)], means[int(0.975 * draws) - 1]
    return statistics.geometric_mean(ratios), low, high
