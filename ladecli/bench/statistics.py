"""Figures of a benchmark and their uncertainty: rates, speed-ups, equality."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..metrics import ratio
from .result import Result, Run

LEVEL = 0.05
"""The probability that an interval misses the true value."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """The median of the prompts' speed-ups, and its 95 % confidence interval."""

    value: float
    interval: tuple[float, float] | None  # None with fewer than 6 prompts


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one method on the prompts of one category or of all; None if unknown."""

    method: str
    tokens_per_step: float
    tokens_per_second: float  # after the first step; the median of the prompts
    first_seconds: float
    step_median: float | None  # seconds, without the first steps
    speedup: Speedup | None  # over the baseline, on the rows that both have
    equal: int
    compared: int


def figures_of(result: Result, category: str | None = None) -> list[Figures]:
    """Return the figures of every method that has runs, in the order of the methods."""
    baseline = result.runs_of(result.reference, category) if result.reference else []
    # transformers draws other random numbers.
    foreign = {method.name for method in result.contenders if method.foreign}
    figures = []
    for method in result.contenders:
        if not (runs := result.runs_of(method.name, category)):
            continue
        steps = [seconds for run in runs for seconds in run.step_seconds]
        comparable = not (result.sampled and foreign & {method.name, result.reference})
        itself = method.name == result.reference
        equal, compared = equality(runs, baseline) if comparable and not itself else (0, 0)
        figures.append(
            Figures(
                method=method.name,
                tokens_per_step=tokens_per_step(runs),
                tokens_per_second=statistics.median(_rates(runs).values() or [0.0]),
                first_seconds=statistics.median(run.first_seconds for run in runs),
                step_median=statistics.median(steps) if steps else None,
                speedup=None if itself else speedup(runs, baseline),
                equal=equal,
                compared=compared,
            )
        )
    return figures


def tokens_per_step(runs: Sequence[Run]) -> float:
    """Return completion tokens over steps."""
    return ratio(sum(run.tokens for run in runs), sum(run.steps for run in runs))


def _rates(runs: Iterable[Run]) -> dict[str, float]:
    """Return tokens per second after the first step, by row: the median of its repeats."""
    sums: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)
    for run in runs:
        if run.decoded:  # the turns of a conversation are added up
            tokens, seconds = sums[run.row].get(run.repeat, (0, 0.0))
            sums[run.row][run.repeat] = (tokens + run.decoded, seconds + run.decode_seconds)
    return {
        row: statistics.median(ratio(*repeat) for repeat in repeats.values())
        for row, repeats in sums.items()
    }


def speedup(runs: Sequence[Run], baseline: Sequence[Run]) -> Speedup | None:
    """Return the speed-up over the baseline; None without a row that both answered.

    Answers of only one side, as when the other failed in a later turn, do not count.
    """
    common = {run.key for run in runs if run.decoded} & {run.key for run in baseline if run.decoded}
    ours, theirs = (_rates(run for run in of if run.key in common) for of in (runs, baseline))
    ratios = sorted(rate / theirs[row] for row, rate in ours.items() if theirs[row])
    if not ratios:
        return None
    return Speedup(statistics.median(ratios), median_interval(ratios))


def median_interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the median of a population from a sample of it; None
    with fewer than 6 values.

    Its ends are two of the values.  The distribution is arbitrary: each value is below the median
    with probability 1/2 (the sign test).
    """
    count, tail, outside = len(ordered), 0.0, 0
    while outside < count:
        tail += math.comb(count, outside) / 2**count
        if 2 * tail > LEVEL:
            break
        outside += 1
    return (ordered[outside - 1], ordered[count - outside]) if outside else None


def equality(runs: Iterable[Run], baseline: Iterable[Run]) -> tuple[int, int]:
    """Return the number of answers equal to the baseline's, and of all answers to equal prompts.

    In a conversation, prompts differ after the first different answer.
    """
    theirs = {(run.key, run.prompt_digest): run.digest for run in baseline}
    digests = [(run.digest, theirs.get((run.key, run.prompt_digest))) for run in runs]
    compared = [pair for pair in digests if pair[1] is not None]
    return sum(ours == other for ours, other in compared), len(compared)
