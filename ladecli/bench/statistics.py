"""Figures of a benchmark: rates, speed-ups with their intervals, equality of the outputs."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics import ratio
from .result import Result, Run

RESAMPLES = 4000
CONFIDENCE = 0.95
FEWEST = 3
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
    """One method on the prompts of one category, or on all of them.

    Attributes:
        method: its name.
        rows: conversations.
        tokens_per_step: completion tokens over steps.
        width: tokens fed per step after the first; None if unknown.
        tokens_per_second: after the first step.
        first_seconds: median time to the first token.
        step_median, step_p95: seconds of a step after the first; None where there is none.
        speedup: over the baseline, on the rows that both have; None for the baseline itself,
            without one, and with too few rows.
        peak_memory: bytes, the maximum of all runs; None if unknown.
        equal, compared: answers equal to the baseline's, of those compared.
        accepted: draft tokens by source.
    """

    method: str
    rows: int
    tokens_per_step: float
    width: float | None
    tokens_per_second: float
    first_seconds: float
    step_median: float | None
    step_p95: float | None
    speedup: Interval | None
    peak_memory: int | None
    equal: int
    compared: int
    accepted: dict[str, int]


def figures_of(result: Result, category: str | None = None) -> list[Figures]:
    """Figures of every method that has runs, in the order of the methods."""
    return [
        _figures(result, method.name, category)
        for method in result.contenders
        if result.runs_of(method.name, category)
    ]


def _figures(result: Result, name: str, category: str | None) -> Figures:
    runs = result.runs_of(name, category)
    baseline = result.runs_of(result.reference, category) if result.reference else []
    steps = [seconds for run in runs for seconds in run.step_seconds]
    fed = [run.fed for run in runs if run.fed is not None]
    peaks = [run.peak_memory for run in runs if run.peak_memory is not None]
    equal, compared = _equality(result, name, runs, baseline)
    accepted: Counter[str] = sum((Counter(run.accepted) for run in runs), Counter())
    return Figures(
        method=name,
        rows=len({run.row for run in runs}),
        tokens_per_step=ratio(sum(run.tokens for run in runs), sum(run.steps for run in runs)),
        width=ratio(sum(fed), len(steps)) if len(fed) == len(runs) else None,
        tokens_per_second=rate(runs),
        first_seconds=statistics.median(run.first_seconds for run in runs),
        step_median=statistics.median(steps) if steps else None,
        step_p95=float(np.quantile(steps, 0.95)) if steps else None,
        speedup=None if name == result.reference else speedup(runs, baseline),
        peak_memory=max(peaks, default=None),
        equal=equal,
        compared=compared,
        accepted=dict(sorted(accepted.items())),
    )


def rate(runs: Iterable[Run]) -> float:
    """Tokens per second after the first step, of all rows together: the median repeat of each."""
    rows = [np.median(list(each.values()), axis=0) for each in _by_row(runs).values()]
    tokens, seconds = np.sum(rows, axis=0) if rows else (0.0, 0.0)
    return ratio(float(tokens), float(seconds))


def speedup(runs: Sequence[Run], baseline: Sequence[Run]) -> Interval | None:
    """The ratio of the rates, with a bootstrap interval over the rows that both answered.

    Of a row's repeats the median counts: what disturbs one of them is no property of the method.

    Returns:
        None with fewer than `FEWEST` rows.
    """
    from scipy.stats import bootstrap

    ours, theirs = _by_row(runs), _by_row(baseline)
    rows = [
        np.median([(*ours[row][repeat], *theirs[row][repeat]) for repeat in both], axis=0)
        for row in ours
        if (both := sorted(ours[row].keys() & theirs.get(row, {}).keys()))
    ]
    if len(rows) < FEWEST:
        return None
    columns = tuple(np.array(rows).T)
    found = bootstrap(
        columns,
        _ratio_of_rates,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),  # the same runs give the same interval
    ).confidence_interval
    return Interval(float(_ratio_of_rates(*columns)), float(found.low), float(found.high))


def _ratio_of_rates(
    tokens: np.ndarray,
    seconds: np.ndarray,
    base_tokens: np.ndarray,
    base_seconds: np.ndarray,
    axis: int = -1,
) -> np.ndarray:
    ours = tokens.sum(axis) / seconds.sum(axis)
    return np.asarray(ours * base_seconds.sum(axis) / base_tokens.sum(axis))


def _by_row(runs: Iterable[Run]) -> dict[str, dict[int, tuple[int, float]]]:
    """Tokens and seconds after the first step, by row and repeat; turns are added up."""
    found: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)
    for run in runs:
        if run.decoded:
            tokens, seconds = found[run.row].get(run.repeat, (0, 0.0))
            found[run.row][run.repeat] = (tokens + run.decoded, seconds + run.decode_seconds)
    return found


def _equality(
    result: Result, name: str, runs: Sequence[Run], baseline: Sequence[Run]
) -> tuple[int, int]:
    """Answers equal to the baseline's, and answers compared.

    After a turn that differs, the prompts differ too, and nothing is compared.
    """
    foreign = next(method.foreign for method in result.contenders if method.name == name)
    if name == result.reference or (result.conditions.sampled and foreign):
        return 0, 0
    theirs = {(run.row, run.repeat, run.turn): run for run in baseline}
    equal = compared = 0
    parted: set[tuple[str, int]] = set()
    for run in sorted(runs, key=lambda run: run.turn):
        other = theirs.get((run.row, run.repeat, run.turn))
        if other is None or (run.row, run.repeat) in parted:
            continue
        compared += 1
        if run.digest == other.digest:
            equal += 1
        else:
            parted.add((run.row, run.repeat))
    return equal, compared


def drift(result: Result) -> float | None:
    """By what share the last repeat took longer than the first, on the same prompts.

    Returns:
        The median over methods and prompts; None where nothing was repeated.
    """
    seconds: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for run in result.runs:
        each = seconds[run.contender, run.row]
        each[run.repeat] += run.first_seconds + run.decode_seconds
    changes = [
        each[max(each)] / each[min(each)] - 1.0
        for each in seconds.values()
        if len(each) > 1 and each[min(each)]
    ]
    return statistics.median(changes) if changes else None
