"""What the runs of a benchmark amount to: rates, speed-ups and how sure they are."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from ..metrics import ratio
from .result import Result, Run

RESAMPLES = 4000
CONFIDENCE = 0.95
FEWEST = 3
"""Rows of which an interval can be made."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and between which bounds it is with 95 % confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One contender on the prompts of one category, or on all of them.

    Attributes:
        contender: its name.
        category: None for all.
        rows: conversations.
        tokens_per_step: completion tokens over steps.
        width: tokens fed per step behind the first; None where nobody knows.
        tokens_per_second: behind the first step.
        first_seconds: to the first token, the median.
        step_median, step_p95: seconds of a step behind the first; None where there is none.
        speedup: over the reference, on the rows that both have; None without a reference, for
            the reference itself, and where there are too few rows.
        peak_memory: bytes, the most of any run; None if unknown.
        equal: answers that are the reference's, token for token.
        compared: answers that were compared with it: those of other random numbers are not.
        accepted: draft tokens by source.
    """

    contender: str
    category: str | None
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
    """Figures of every contender that has runs, in the order of the contenders."""
    return [
        _figures(result, contender.name, category)
        for contender in result.contenders
        if result.runs_of(contender.name, category)
    ]


def _figures(result: Result, name: str, category: str | None) -> Figures:
    runs = result.runs_of(name, category)
    steps = [seconds for run in runs for seconds in run.step_seconds]
    fed = [run.fed for run in runs if run.fed is not None]
    peaks = [run.peak_memory for run in runs if run.peak_memory is not None]
    reference = result.runs_of(result.reference, category) if result.reference else []
    equal, compared = _equality(result, name, runs, reference)
    accepted: dict[str, int] = defaultdict(int)
    for run in runs:
        for source, count in run.accepted.items():
            accepted[source] += count
    return Figures(
        contender=name,
        category=category,
        rows=len({run.row for run in runs}),
        tokens_per_step=ratio(sum(run.tokens for run in runs), sum(run.steps for run in runs)),
        width=ratio(sum(fed), len(steps)) if len(fed) == len(runs) else None,
        tokens_per_second=rate(runs),
        first_seconds=float(np.median([run.first_seconds for run in runs])),
        step_median=float(np.median(steps)) if steps else None,
        step_p95=float(np.quantile(steps, 0.95)) if steps else None,
        speedup=None if name == result.reference else speedup(runs, reference),
        peak_memory=max(peaks, default=None),
        equal=equal,
        compared=compared,
        accepted=dict(sorted(accepted.items())),
    )


def rate(runs: Iterable[Run]) -> float:
    """Tokens per second behind the first step: all rows together, of each the median repeat."""
    blocks = list(_by_row(runs).values())
    tokens = sum(statistics.fmean(t for t, _ in repeats.values()) for repeats in blocks)
    return ratio(tokens, sum(statistics.median(s for _, s in r.values()) for r in blocks))


def speedup(runs: Sequence[Run], reference: Sequence[Run]) -> Interval | None:
    """How many times as fast as the reference, on the answers that both have.

    The rates are those of all rows together: what somebody gains who runs them all.  Of a row's
    repeats the median counts: what disturbs one of them is no property of the contender.  The
    interval is a bootstrap of two levels (Davison & Hinkley, 1997, section 3.8): rows are drawn
    with replacement, and of every row its repeats, both sides alike: they were measured in turn.
    Drawn from few rows it is too narrow, so it is widened as Student's distribution is wider than
    the normal one (Hesterberg, "What teachers should know about the bootstrap", 2015).

    Returns:
        None where fewer than `FEWEST` rows are in both.
    """
    ours, theirs = _by_row(runs), _by_row(reference)
    blocks = [
        np.array([(*ours[row][r], *theirs[row][r]) for r in ours[row] if r in theirs[row]])
        for row in ours
        if row in theirs and ours[row].keys() & theirs[row].keys()
    ]
    # Tokens and seconds, tokens and seconds of the reference, for each repeat of each row.
    if (rows := len(blocks)) < FEWEST:
        return None
    generator = np.random.default_rng(0)  # the same runs give the same interval
    totals = np.zeros((RESAMPLES, 4))
    times = np.zeros((RESAMPLES, rows), dtype=int)
    drawn = generator.integers(rows, size=(RESAMPLES, rows))
    np.add.at(times, (np.arange(RESAMPLES)[:, None], drawn), 1)
    for number, block in enumerate(blocks):
        for again in range(1, int(times[:, number].max()) + 1):
            here = times[:, number] >= again
            repeats = generator.integers(len(block), size=(int(here.sum()), len(block)))
            totals[here] += np.median(block[repeats], axis=1)
    tail = (1.0 - CONFIDENCE) / 2.0
    value = float(_quotients(np.sum([np.median(b, axis=0) for b in blocks], axis=0)[None])[0])
    low, high = np.quantile(_quotients(totals), (tail, 1.0 - tail)) / value
    wider = stdtrit(rows - 1, tail) / ndtri(tail) * math.sqrt(rows / (rows - 1))
    return Interval(value, value * float(low) ** wider, value * float(high) ** wider)


def _quotients(sums: np.ndarray) -> np.ndarray:
    """Rates over the reference's rates; one row of `sums` for each."""
    return np.asarray((sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3]))


def _by_row(runs: Iterable[Run]) -> dict[str, dict[int, tuple[int, float]]]:
    """Tokens and seconds behind the first step, by row and repeat; turns belong together."""
    found: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)
    for run in runs:
        if run.decoded:
            tokens, seconds = found[run.row].get(run.repeat, (0, 0.0))
            found[run.row][run.repeat] = (tokens + run.decoded, seconds + run.decode_seconds)
    return found


def _equality(
    result: Result, name: str, runs: Sequence[Run], reference: Sequence[Run]
) -> tuple[int, int]:
    """How many answers are the reference's, and how many were compared.

    Behind a turn that differs, the conversation is another one, and so are its prompts.
    """
    foreign = next(c.foreign for c in result.contenders if c.name == name)
    if name == result.reference or (result.conditions.sampled and foreign):
        return 0, 0
    theirs = {(run.row, run.repeat, run.turn): run for run in reference}
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
