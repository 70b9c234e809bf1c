"""How much a noisy time changed between two runs, and whether that is more than noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ..figures import CONFIDENCE, Interval

SLOWER, FASTER, EQUAL, UNCLEAR = "slower", "faster", "equal", "unclear"

PROCESS = 0.012
"""Standard deviation of a contender's speed from one process to the next, relative, with the
machine's own speed taken out: where its code and data came to lie, which no repeat within the
process shows.  Above what `benchmarks/compare_power.py` finds on a quiet machine, 0.004, since a
smaller figure would call more of the same things changed elsewhere."""

MACHINE = 0.05
"""The same with the machine's speed in it: clock rates, temperature and neighbours."""

VISIBLE = math.log(1.10)
"""The change, as a logarithm, that must be visible where "equal" is said."""

FEWEST_PAIRS = 6
"""Fewer pairs have no 95 % interval of signed ranks."""


@dataclass(frozen=True, slots=True)
class Change:
    """A time in B over the same time in A.

    Attributes:
        ratio: above 1 is slower.  Its interval holds for all changes judged together; None with
            fewer than `FEWEST_PAIRS` pairs.
        visible: the smallest change, as a share of the time, that would not have been called
            noise; None without an interval.
        verdict: "slower" or "faster" where the interval leaves 1 out; else "equal", or "unclear"
            where a change of 10 % would not be visible.
        pairs: answers that it rests on.
        repeats: times what was measured, so many repeats would make 10 % visible, or an interval
            where there is none; None where that is so already, or no number of them would.
    """

    ratio: Interval
    visible: float | None
    verdict: str
    pairs: int
    repeats: float | None


def judge(samples: Mapping[str, Sequence[float]], spread: float) -> dict[str, Change]:
    """Judge changes together: the chance to call any of them real that is none is 5 %.

    The change is the Hodges-Lehmann estimate, the median over the means of all pairs of samples:
    disturbed answers hardly move it.  Its standard error is that of the interval by Wilcoxon's
    signed ranks (Lehmann, Nonparametrics, 1975, section 4.3), joined with the spread between
    processes.  Levels are Holm's (1979): the clearest change is tested first and most strictly;
    each interval is of the level that its change was tested at, so it agrees with the verdict.

    Args:
        samples: by name, differences of logarithms, B less A, one for each answer; not empty.
        spread: standard deviation of such a difference from process to process.
    """
    found: dict[str, Change] = {}
    tested: list[tuple[float, str, float, float]] = []
    for name, values in samples.items():
        value, error = hodges_lehmann(values)
        if error is None:
            point = math.exp(value)
            more = FEWEST_PAIRS / len(values)
            unknown = Interval(point, 0.0, math.inf)
            found[name] = Change(unknown, None, UNCLEAR, len(values), more)
        else:
            tested.append((abs(value) / math.hypot(error, spread), name, value, error))
    quantile, real = 0.0, True
    tail = (1.0 - CONFIDENCE) / 2.0
    for number, (score, name, value, error) in enumerate(sorted(tested, reverse=True)):
        if real:
            # Behind the first that is noise, all others are, at its level.
            quantile = NormalDist().inv_cdf(1.0 - tail / (len(tested) - number))
            real = score > quantile
        found[name] = _change(value, error, spread, quantile, len(samples[name]))
    return {name: found[name] for name in samples}


def _change(value: float, error: float, spread: float, quantile: float, pairs: int) -> Change:
    half = quantile * math.hypot(error, spread)
    repeats = None
    if abs(value) > half:
        verdict = SLOWER if value > 0.0 else FASTER
    elif half <= VISIBLE:
        verdict = EQUAL
    else:
        verdict = UNCLEAR
        room = (VISIBLE / quantile) ** 2 - spread**2
        repeats = error**2 / room if room > 0.0 else None
    interval = Interval(math.exp(value), math.exp(value - half), math.exp(value + half))
    return Change(interval, math.expm1(half), verdict, pairs, repeats)


def hodges_lehmann(values: Sequence[float]) -> tuple[float, float | None]:
    """The middle of a sample, and its standard error; None for fewer than `FEWEST_PAIRS` values."""
    count = len(values)
    sample = np.asarray(values, dtype=float)
    rows, columns = np.triu_indices(count)
    means = np.sort((sample[rows] + sample[columns]) / 2.0)
    middle = float(np.median(means))
    if count < FEWEST_PAIRS:
        return middle, None
    quantile = NormalDist().inv_cdf(1.0 - (1.0 - CONFIDENCE) / 2.0)
    deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24.0)
    outside = max(int(len(means) / 2.0 - quantile * deviation), 0)
    width = float(means[-1 - outside] - means[outside])
    return middle, width / (2.0 * quantile)
