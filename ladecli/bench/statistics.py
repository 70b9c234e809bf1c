"""Figures of a benchmark and their uncertainty: rates, speed-ups, equality, changes."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics import ratio
from .result import Result, Run

RESAMPLES = 4000
MIN_ROWS = 3
"""Rows that an interval needs."""
ALPHA = 0.01
"""Probability that an unchanged method is called slower or faster."""
VISIBLE = 0.10
"""Relative change that would have shown where "equal" is the verdict."""
SLOWER, FASTER, EQUAL, UNCLEAR = "slower", "faster", "equal", "unclear"


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
    accepted: Mapping[str, int]


def figures_of(result: Result, category: str | None = None) -> list[Figures]:
    """Figures of every method that has runs, in the order of the methods."""
    baseline = result.runs_of(result.reference, category) if result.reference else []
    found = []
    for method in result.contenders:
        if not (runs := result.runs_of(method.name, category)):
            continue
        steps = [seconds for run in runs for seconds in run.step_seconds]
        fed = [run.fed for run in runs if run.fed is not None]
        peaks = [run.peak_memory for run in runs if run.peak_memory is not None]
        comparable = not (result.conditions.sampled and method.foreign)
        itself = method.name == result.reference
        equal, compared = equality(runs, baseline) if comparable and not itself else (0, 0)
        accepted: Counter[str] = sum((Counter(run.accepted) for run in runs), Counter())
        found.append(
            Figures(
                method=method.name,
                rows=len({run.row for run in runs}),
                tokens_per_step=tokens_per_step(runs),
                width=ratio(sum(fed), len(steps)) if len(fed) == len(runs) else None,
                tokens_per_second=rate(runs),
                first_seconds=statistics.median(run.first_seconds for run in runs),
                step_median=statistics.median(steps) if steps else None,
                step_p95=float(np.quantile(steps, 0.95)) if steps else None,
                speedup=None if itself else speedup(runs, baseline),
                peak_memory=max(peaks, default=None),
                equal=equal,
                compared=compared,
                accepted=dict(sorted(accepted.items())),
            )
        )
    return found


def tokens_per_step(runs: Iterable[Run]) -> float:
    """Completion tokens over steps."""
    runs = list(runs)
    return ratio(sum(run.tokens for run in runs), sum(run.steps for run in runs))


def rate(runs: Iterable[Run]) -> float:
    """Tokens per second after the first step, of all rows together: the median repeat of each."""
    rows = [np.median(list(each.values()), axis=0) for each in _by_row(runs).values()]
    tokens, seconds = np.sum(rows, axis=0) if rows else (0.0, 0.0)
    return ratio(float(tokens), float(seconds))


def speedup(runs: Sequence[Run], baseline: Sequence[Run]) -> Interval | None:
    """The ratio of the rates, with a bootstrap interval over the rows that both answered.

    Of a row's repeats the median counts: what disturbs one of them is no property of the method.

    Returns:
        None with fewer than `MIN_ROWS` rows.
    """
    from scipy.stats import bootstrap

    ours, theirs = _by_row(runs), _by_row(baseline)
    rows = [
        np.median([(*ours[row][repeat], *theirs[row][repeat]) for repeat in both], axis=0)
        for row in ours
        if (both := sorted(ours[row].keys() & theirs.get(row, {}).keys()))
    ]
    if len(rows) < MIN_ROWS:
        return None
    columns = tuple(np.array(rows).T)
    found = bootstrap(
        columns,
        _ratio_of_rates,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
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


def comparable(pairs: Iterable[tuple[Run, Run]]) -> list[tuple[Run, Run]]:
    """Pairs of answers up to the first turn of each conversation that differs.

    The prompts of later turns contain that answer, so they differ as well.
    """
    parted: set[tuple[str, int]] = set()
    found = []
    for one, other in sorted(pairs, key=lambda pair: pair[0].turn):
        if (conversation := (one.row, one.repeat)) not in parted:
            found.append((one, other))
            if one.digest != other.digest:
                parted.add(conversation)
    return found


def equality(runs: Iterable[Run], baseline: Iterable[Run]) -> tuple[int, int]:
    """Answers equal to the baseline's, and answers compared."""
    theirs = {run.key: run for run in baseline}
    pairs = comparable((run, theirs[run.key]) for run in runs if run.key in theirs)
    return sum(one.digest == other.digest for one, other in pairs), len(pairs)


def drift(result: Result) -> float | None:
    """Relative time by which the last repeat took longer than the first, on the same prompts.

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


@dataclass(frozen=True, slots=True)
class Change:
    """A time in B over the same time in A.

    Attributes:
        verdict: slower, faster, equal, unclear or unrelated.
        ratio: median over the answers; above 1 is slower.
        low, high: its 95 % bootstrap interval; None with too few answers for the test.
        pairs: number of answers.
    """

    verdict: str
    ratio: float
    low: float | None
    high: float | None
    pairs: int


def judge(logs: Sequence[float], margin: float) -> Change:
    """Judge a change by Wilcoxon's signed-rank test at level `ALPHA`.

    Args:
        logs: log(time in B / time in A) of each answer; at least one.
        margin: relative change that is noise, however many answers show it.
    """
    from scipy.stats import bootstrap, wilcoxon

    values = np.asarray(logs)
    ratio = math.exp(np.median(values))
    # With fewer answers, even signs that all agree are not significant.
    if len(values) < math.ceil(math.log2(2 / ALPHA)):
        return Change(UNCLEAR, ratio, None, None, len(values))
    found = bootstrap((values,), np.median, method="percentile", batch=999, rng=0)
    low, high = map(math.exp, found.confidence_interval)
    visible = max(high / ratio - 1.0, ratio / low - 1.0, margin)
    verdict = EQUAL if visible <= VISIBLE else UNCLEAR
    significant = wilcoxon(values, zero_method="zsplit").pvalue <= ALPHA
    if significant and abs(math.log(ratio)) > math.log1p(margin):
        verdict = SLOWER if ratio > 1.0 else FASTER
    return Change(verdict, ratio, low, high, len(values))
