"""Figures of a benchmark and their uncertainty: rates, speed-ups, equality."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics import ratio
from .result import Result, Run

MIN_ROWS = 3
"""Rows that an interval needs."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether a factor differs from 1 by more than chance."""
        return not self.low <= 1.0 <= self.high


@dataclass(frozen=True, slots=True)
class Figures:
    """One method on the prompts of one category, or on all of them; what is unknown is None."""

    method: str
    tokens_per_step: float
    width: float | None  # tokens fed per step; the first one is not in this and the next figures
    tokens_per_second: float
    first_seconds: float
    step_median: float | None  # seconds, without the first steps
    speedup: Interval | None  # over the baseline, on the rows that both have
    peak_memory: int | None  # bytes
    equal: int
    compared: int


def figures_of(result: Result, category: str | None = None) -> list[Figures]:
    """Figures of every method that has runs, in the order of the methods."""
    baseline = result.runs_of(result.reference, category) if result.reference else []
    # transformers draws other random numbers.
    foreign = {each.name for each in result.methods if each.foreign}
    found = []
    for method in result.methods:
        if not (runs := result.runs_of(method.name, category)):
            continue
        steps = [seconds for run in runs for seconds in run.step_seconds]
        fed = [run.fed for run in runs if run.fed is not None]
        comparable = not (result.conditions.sampled and foreign & {method.name, result.reference})
        itself = method.name == result.reference
        equal, compared = equality(runs, baseline) if comparable and not itself else (0, 0)
        found.append(
            Figures(
                method=method.name,
                tokens_per_step=tokens_per_step(runs),
                width=ratio(sum(fed), len(steps)) if len(fed) == len(runs) else None,
                tokens_per_second=rate(runs),
                first_seconds=statistics.median(run.first_seconds for run in runs),
                step_median=statistics.median(steps) if steps else None,
                speedup=None if itself else speedup(runs, baseline),
                peak_memory=max(run.peak_memory or 0 for run in runs) or None,
                equal=equal,
                compared=compared,
            )
        )
    return found


def tokens_per_step(runs: Sequence[Run]) -> float:
    """Completion tokens over steps."""
    return ratio(sum(run.tokens for run in runs), sum(run.steps for run in runs))


def rate(runs: Iterable[Run]) -> float:
    """Tokens per second after the first step, of all rows together: the median repeat of each."""
    rows = [np.median(list(each.values()), axis=0) for each in _by_row(runs).values()]
    tokens, seconds = np.sum(rows, axis=0) if rows else (0.0, 0.0)
    return ratio(float(tokens), float(seconds))


def speedup(runs: Sequence[Run], baseline: Sequence[Run]) -> Interval | None:
    """The ratio of the rates, with Tukey's jackknife interval over the rows that both answered.

    Answers that one side alone has, as where the other failed in a later turn, do not count.  Of a
    row's repeats the median counts: what disturbs one of them is no property of the method.  None
    with fewer than `MIN_ROWS` rows.
    """
    from scipy.stats import sem, t

    common = {run.key for run in runs if run.decoded} & {run.key for run in baseline if run.decoded}
    ours, theirs = (_by_row(r for r in of if r.key in common) for of in (runs, baseline))
    rows = [
        np.median([(*repeats[each], *theirs[row][each]) for each in repeats], axis=0)
        for row, repeats in ours.items()
    ]
    if (count := len(rows)) < MIN_ROWS:
        return None

    def log_ratio(sums: np.ndarray) -> np.ndarray:
        tokens, seconds, base_tokens, base_seconds = np.log(sums).T
        return np.asarray(tokens - seconds + base_seconds - base_tokens)

    # The logarithm is nearly normal however few rows there are.
    value, without = log_ratio(np.sum(rows, axis=0)), log_ratio(np.sum(rows, axis=0) - rows)
    margin = t.ppf(0.975, count - 1) * (count - 1) * sem(without)
    return Interval(*(math.exp(each) for each in (value, value - margin, value + margin)))


def _by_row(runs: Iterable[Run]) -> dict[str, dict[int, tuple[int, float]]]:
    """Tokens and seconds after the first step, by row and repeat; turns are added up."""
    found: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)
    for run in runs:
        if run.decoded:
            tokens, seconds = found[run.row].get(run.repeat, (0, 0.0))
            found[run.row][run.repeat] = (tokens + run.decoded, seconds + run.decode_seconds)
    return found


def drift(result: Result) -> float:
    """Relative time per token by which the last repeat was slower than the first; 0 if unknown.

    The median over methods and rows.
    """
    by_row = (_by_row(result.runs_of(method.name)).values() for method in result.methods)
    repeats = [each for rows in by_row for each in rows if len(each) > 1]
    rates = [(ratio(*each[min(each)]), ratio(*each[max(each)])) for each in repeats]
    changes = [first / last - 1.0 for first, last in rates if first and last]
    return statistics.median(changes) if changes else 0.0


def equality(runs: Iterable[Run], baseline: Iterable[Run]) -> tuple[int, int]:
    """Answers equal to the baseline's, and answers compared: those to the same prompts.

    In a conversation, prompts differ after the first answer that does.
    """
    theirs = {(run.key, run.prompt_digest): run.digest for run in baseline}
    digests = [(run.digest, theirs.get((run.key, run.prompt_digest))) for run in runs]
    compared = [pair for pair in digests if pair[1] is not None]
    return sum(ours == other for ours, other in compared), len(compared)
