"""What verifying found, for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import screen
from ..table import NONE, Column, Table
from ..visualize import counted, printable
from .outcome import LEVEL, Divergence, Outcome, Report, Sampled, Trial

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.result import Skipped

SCHEMA = "lade-verify/1"
SHOWN = 5
"""So many divergences, rows left out or trials are told one by one."""
_NOISE = "÷ noise: the largest, over what forwards of other widths differ by there"
_AGAINST = {"model": "the model's probabilities", "plain": "plain decoding's samples"}


def verdict(report: Report) -> str:
    """What it comes to, in one line."""
    if report.sampled is not None:
        return _verdict_on_sampling(report.sampled)
    outcomes = report.outcomes
    tokens = sum(outcome.tokens for outcome in outcomes)
    diverged = sum(len(outcome.divergences) for outcome in outcomes)
    unexplained = sum(outcome.unexplained for outcome in outcomes)
    answers = counted(sum(len(outcome.answers) for outcome in outcomes), "answer")
    if len(outcomes) > 1:
        failed = sum(outcome.failure is not None for outcome in outcomes)
        answers += f" in {counted(len(outcomes) - failed, 'cell')}"
        answers += f" ({failed} could not run)" if failed else ""
    if not tokens:
        return "nothing could be compared"
    if unexplained:
        which = "1 divergence is" if unexplained == 1 else f"{unexplained} divergences are"
        return f"NOT equal: {which} larger than the arithmetic explains"
    if diverged:
        return (
            f"equal but for near-ties: {counted(diverged, 'divergence')} in {tokens:,} tokens of"
            f" {answers}, none larger than the arithmetic explains"
        )
    return f"equal: all {tokens:,} tokens of {answers}"


def _verdict_on_sampling(sampled: Sampled) -> str:
    if not sampled.trials:
        return "nothing could be tested: more samples are needed"
    if sampled.different:
        return f"DIFFERENT: {len(sampled.different)} of {counted(len(sampled.trials), 'test')} fail"
    tests = counted(len(sampled.trials), "test")
    least = min(trial.corrected for trial in sampled.trials)
    return f"no difference found in {tests} (smallest p-value, corrected: {least:.2g})"


def show(report: Report, console: Console) -> None:
    """Print tables, divergences and the verdict."""

    def say(text: str, style: str = "") -> None:
        screen.line(console, printable(text), style)

    table = _table(report)
    if left_out := screen.print_table(table, console):
        # In the table's order, which a set has lost.
        names = ", ".join(each.title for each in table.columns if each.title in left_out)
        say(f"without room here: {names}; a wider screen or --json has them", "dim")
    if report.sampled is not None:
        _show_sampled(report.sampled, say)
    for outcome in report.outcomes:
        if outcome.failure is not None:
            say(f"{_spelled_cell(outcome)} could not run: {outcome.failure}")
    _show_divergences(report, say)
    _show_skipped([each for outcome in report.outcomes[:1] for each in outcome.skipped], say)
    if report.interrupted:
        say("stopped early: this is what was compared until then")
    say(verdict(report), "bold")


def _table(report: Report) -> Table:
    title = printable(_title(report))
    if report.sampled is not None:
        return _tests(report.sampled, title)
    if any(outcome.cell for outcome in report.outcomes):
        return _cells(report.outcomes, title)
    return _counts(report.outcomes[0], title)


def _title(report: Report) -> str:
    settings = report.sampled.settings if report.sampled else {}
    if len(report.outcomes) == 1:
        settings = report.outcomes[0].settings
    weights = report.model.weights
    if weights != report.model.compute:
        weights += f" computed in {report.model.compute}"
    model = f"{report.model.name}, {weights} on {report.machine.device}"
    if report.sampled is None and any(outcome.cell for outcome in report.outcomes):
        return f"Against plain decoding: {report.model.name} on {report.machine.device}"
    return f"{settings.get('strategy', 'lookahead')} against plain decoding: {model}"


def _counts(outcome: Outcome, title: str) -> Table:
    columns = (
        *(Column("prompts", weight=3), Column("answers", weight=2), Column("tokens", weight=1)),
        *(Column("equal"), Column("diverged"), Column("explained")),
    )
    diverged = len(outcome.divergences)
    figures = (
        *(outcome.rows, len(outcome.answers), outcome.tokens, len(outcome.answers) - diverged),
        *(diverged, diverged - outcome.unexplained),
    )
    return Table(title, columns, (tuple(f"{figure:,}" for figure in figures),))


def _cells(outcomes: Sequence[Outcome], title: str) -> Table:
    columns = (
        *(Column(axis, number=False) for axis in outcomes[0].cell),
        Column("tokens", weight=2),
        Column("diverged", weight=1),
        Column("per 1000", weight=4),
        Column("median", weight=6, note="median: logits from one choice to the other, typically"),
        Column("largest", weight=3, note="largest: logits from one choice to the other, at most"),
        Column("÷ noise", weight=5, note=_NOISE),
        Column("explained"),
    )
    return Table(title, columns, tuple(map(_cell, outcomes))).without_empty()


def _cell(outcome: Outcome) -> tuple[str, ...]:
    """A row of the table of cells."""
    values = tuple(map(printable, outcome.cell.values()))
    if outcome.failure is not None:
        return (*values, *[NONE] * 6, "failed")
    diverged = len(outcome.divergences)
    return (
        *values,
        f"{outcome.tokens:,}",
        str(diverged),
        _figure(outcome.rate),
        _figure(outcome.median),
        _figure(outcome.distances[-1] if outcome.distances else None),
        _figure(outcome.relative),
        f"{diverged - outcome.unexplained} of {diverged}" if diverged else "equal",
    )


def _figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.3g}"


def _spelled_cell(outcome: Outcome) -> str:
    return " ".join(f"{axis}={value}" for axis, value in outcome.cell.items())


def _show_divergences(report: Report, say: Any) -> None:
    found = [(outcome, each) for outcome in report.outcomes for each in outcome.divergences]
    # Where there is no room for all, those that arithmetic does not explain say most.
    found.sort(key=lambda pair: pair[1].explained)
    for outcome, divergence in found[:SHOWN]:
        for line in _lines(outcome, divergence):
            say(line)
    if len(found) > SHOWN:
        say(f"… and {len(found) - SHOWN} more; --json has all")


def _lines(outcome: Outcome, divergence: Divergence) -> tuple[str, str]:
    """A divergence in words."""
    ended = "the end"
    plain = f"{divergence.plain.text} ({divergence.plain.id})" if divergence.plain else ended
    other = f"{divergence.other.text} ({divergence.other.id})" if divergence.other else ended
    cell = f"{_spelled_cell(outcome)}: " if outcome.cell else ""
    turn = f", turn {divergence.turn}" if divergence.turn > 1 else ""
    strategy = outcome.settings.get("strategy", "the strategy")
    where = f"{cell}{divergence.row}{turn}, token {divergence.position} of the answer"
    first = f"{where}: plain decoding has {plain}, {strategy} has {other}"
    step = f"  in a step of {counted(divergence.width, 'token')}"
    if divergence.distance is None or divergence.gap is None:
        why = "memory did not suffice to compute it again"
        if divergence.plain is None or divergence.other is None:
            why = "no arithmetic explains an end"
        return first, f"{step}; {why}: NOT explained"
    said = "explained" if divergence.explained else "NOT explained"
    moved = f"; logit gap {divergence.gap:.3g}"
    if divergence.distance != divergence.gap:
        moved += f", {divergence.distance:.3g} from the other choice"
    return first, (
        f"{step}{moved}; arithmetic moves {divergence.allowed:.3g} at most"
        f" (noise {divergence.noise:.3g}): {said}"
    )


def _show_skipped(skipped: Sequence[Skipped], say: Any) -> None:
    for each in skipped[:SHOWN]:
        say(f"skipped {each.row}: {each.reason}")
    if len(skipped) > SHOWN:
        say(f"skipped {len(skipped) - SHOWN} more; --json has all")


def _tests(sampled: Sampled, title: str) -> Table:
    columns = (
        *(Column("against", number=False), Column("token"), Column("tests", weight=2)),
        *(Column("samples", weight=1), Column("least p", weight=3), Column("corrected")),
    )
    groups: dict[tuple[str, int], list[Trial]] = {}
    for trial in sampled.trials:
        groups.setdefault((trial.against, trial.position), []).append(trial)
    rows = (
        (
            _AGAINST[against],
            str(position),
            str(len(trials)),
            f"{sum(trial.samples for trial in trials):,}",
            f"{min(trial.p for trial in trials):.3g}",
            f"{min(trial.corrected for trial in trials):.3g}",
        )
        for (against, position), trials in sorted(groups.items())
    )
    return Table(title, columns, tuple(rows))


def _show_sampled(sampled: Sampled, say: Any) -> None:
    prompts, wanted = counted(len(sampled.rows), "prompt"), f"{sampled.samples:,}"
    drawn = f"{wanted} answers of each side to {prompts}"
    if {sampled.drawn, sampled.plain} != {sampled.samples * len(sampled.rows)}:
        strategy = sampled.settings.get("strategy", "the strategy")
        drawn = (
            f"answers: {sampled.drawn:,} of {strategy} and {sampled.plain:,} of plain decoding to"
            f" {prompts}; {wanted} of each to every prompt were wanted"
        )
    say(f"{drawn}; level {LEVEL:g} for all tests together")
    for trial in sorted(sampled.different, key=lambda trial: trial.p)[:SHOWN]:
        behind = f" behind the ids {list(trial.prefix)}" if trial.prefix else ""
        say(
            f"{trial.row}, token {trial.position}{behind}, against {_AGAINST[trial.against]}:"
            f" statistic {trial.statistic:.1f} in {trial.cells} cells, p {trial.corrected:.2g}"
        )
    _show_skipped(sampled.skipped, say)


def as_object(report: Report) -> dict[str, Any]:
    """All of it for programs; its keys are part of the interface."""
    head = {
        "schema": SCHEMA,
        "created": report.created,
        "seconds": report.seconds,
        "interrupted": report.interrupted,
        "command": report.command,
        "machine": dataclasses.asdict(report.machine),
        "model": dataclasses.asdict(report.model),
        "prompts": report.prompts,
        "max_new_tokens": report.max_new_tokens,
        "template": report.template,
        "passed": report.passed,
        "verdict": verdict(report),
    }
    if report.sampled is not None:
        return {**head, "chi_square": {**dataclasses.asdict(report.sampled), "level": LEVEL}}
    if any(outcome.cell for outcome in report.outcomes):
        return {**head, "cells": [_outcome(outcome) for outcome in report.outcomes]}
    return {**head, **_outcome(report.outcomes[0])}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    noises = [d.noise for d in outcome.divergences if d.noise is not None]
    return {
        "cell": dict(outcome.cell),
        "settings": dict(outcome.settings),
        "sampling": dict(outcome.sampling),
        "rows": outcome.rows,
        "tokens": outcome.tokens,
        "answers": [dataclasses.asdict(answer) for answer in outcome.answers],
        "skipped": [dataclasses.asdict(each) for each in outcome.skipped],
        "divergences": len(outcome.divergences),
        "unexplained": outcome.unexplained,
        "per_thousand_tokens": outcome.rate,
        "median_distance": outcome.median,
        "largest_distance": outcome.distances[-1] if outcome.distances else None,
        "largest_over_noise": outcome.relative,
        "noise": max(noises, default=None),
        "failure": outcome.failure,
    }
