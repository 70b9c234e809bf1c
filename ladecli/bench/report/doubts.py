"""What speaks against the figures of a result, or has to be known to read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from ...visualize import counted
from ..figures import FEWEST
from ..result import PLAIN, STOCK_COMPILED, Result
from ..wording import clean, listed, listed_some, share
from .summary import Summary
from .verdict import capital

UNSTEADY = 0.05
"""A machine whose speed changes by more than this between repeats is not steady."""
NAMED = 6
"""So many contenders are named in a sentence; the others are counted."""
COSTLY = 0.02
"""Measuring should cost less than this share of the time."""


def doubts(summary: Summary) -> list[str]:
    """What speaks against the figures, or has to be known to read them."""
    return [*_missing(summary), *_too_few(summary), *_noise(summary.result), *_other(summary)]


def _missing(summary: Summary) -> Iterator[str]:
    """What is not in the figures that should be."""
    result = summary.result
    if result.interrupted and result.runs:
        yield f"Interrupted: {_progress(result)}; the figures are of those."
    ran = {run.contender for run in result.runs}
    absent = [each.contender for each in result.failures if each.contender not in ran]
    if absent:
        names = listed_some([summary.label(name) for name in dict.fromkeys(absent)], NAMED)
        yield f"Without any answer: {names}; the reasons are below."
    failed: dict[str, set[str]] = defaultdict(set)
    for each in result.failures:
        if each.contender in ran and each.row:
            failed[each.contender].add(each.row)
        elif each.contender in ran:
            name = summary.label(each.contender)
            yield f"Where the time of {name} goes is not known; the reason is below."
    for name, rows in failed.items():
        failures = counted(len(rows), summary.noun)
        yield f"{capital(summary.label(name))} failed on {failures}; the reasons are below."
    most = max((each.rows for each in summary.overall), default=0)
    fewer = [each for each in summary.overall if each.rows < most]
    if fewer:
        named = [f"{summary.label(each.contender)} {each.rows} of {most}" for each in fewer]
        yield (
            f"Not all answered the same {summary.noun}s: {listed_some(named, NAMED)}.  Speed-ups"
            " are over those that both answered, all else over those that each did."
        )
    measured = {run.row for run in result.runs}
    ended = sum(each.row in measured for each in result.skipped)
    if left_out := len(result.skipped) - ended:
        yield f"{counted(left_out, 'row')} of the prompts left out; see below."
    if ended:
        yield f"{counted(ended, 'conversation')} ended before the last turn; see below."


def _too_few(summary: Summary) -> Iterator[str]:
    """Why there is no speed-up, or not one for every length."""
    result = summary.result
    rows = len({run.row for run in result.runs})
    least = f"a speed-up and its interval take {FEWEST}"
    if result.reference is None:
        yield f"No contender was the reference, so there are no speed-ups; add {PLAIN}."
    elif 0 < rows < FEWEST:
        few = f"{counted(rows, summary.noun)} {'says' if rows == 1 else 'say'}"
        yield f"{few} nothing of others: {least}."
    elif summary.of_contexts:
        by_length: dict[str, set[str]] = defaultdict(set)
        for run in result.runs:
            by_length[clean(run.category)].add(run.row)
        if short := [length for length, found in by_length.items() if len(found) < FEWEST]:
            yield f"Too few texts of {listed(short)} tokens: {least}."


def _noise(result: Result) -> Iterator[str]:
    """What disturbed the machine."""
    if result.conditions.repeat < 2:
        yield "Each prompt was measured once: the noise of this machine is unknown."
    if (change := drift(result)) is not None and abs(change) > UNSTEADY:
        alone = len({run.contender for run in result.runs}) == 1
        yield (
            f"The machine was not steady: the last repeat took {share(abs(change))}"
            f" {'more' if change > 0 else 'less'} time than the first."
            f"{'' if alone else '  Contenders took turns, so it hits all alike.'}"
        )
    if result.overhead > COSTLY:
        yield f"Measuring itself took {share(result.overhead)} of the time."


def _other(summary: Summary) -> Iterator[str]:
    """What the figures are not about."""
    result = summary.result
    if result.conditions.sampled and any(each.foreign for each in result.contenders):
        yield "transformers draws other random numbers: its answers were not compared."
    if any(each.strategy == STOCK_COMPILED for each in result.contenders):
        yield (
            "What transformers compiled, and its static cache, stay in memory all the time: they"
            " are part of everybody's peak."
        )
    if result.model.captured and any(each.foreign for each in result.contenders):
        yield (
            "Our own steps are captured once and stay in memory, and so does our cache: they are"
            " part of the peak of transformers, too."
        )
    if beyond := summary.beyond:
        lengths = listed([clean(each) for each in beyond])
        where = f" of {lengths} tokens" if summary.of_contexts else ""
        yield (
            f"Texts{where} and their answers are longer than the {result.model.made_for:,} tokens"
            " that the model was made for: its text means nothing there, and speed-ups and tokens"
            " per step hold for no real text."
        )


def drift(result: Result) -> float | None:
    """By what share the last repeat took longer than the first, the same prompts compared.

    Returns:
        The median over contenders and prompts; None where nothing was repeated.
    """
    seconds: dict[tuple[str, str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for run in result.runs:
        each = seconds[run.contender, run.category, run.row]
        each[run.repeat] += run.first_seconds + run.decode_seconds
    changes = [
        each[max(each)] / each[min(each)] - 1.0
        for each in seconds.values()
        if len(each) > 1 and each[min(each)] > 0.0
    ]
    return median(changes) if changes else None


def _progress(result: Result) -> str:
    done = len({(run.contender, run.category, run.row, run.repeat) for run in result.runs})
    conditions = result.conditions
    wanted = conditions.rows * conditions.repeat * len(result.contenders)
    return f"{done:,} of {wanted:,} runs" if wanted > done else counted(done, "run")
