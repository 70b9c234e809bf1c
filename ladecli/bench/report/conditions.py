"""Under which conditions it was measured, and what was left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ...table import Column, Table
from ...visualize import counted
from ..result import Result
from ..wording import clean, decimal, duration, listed_some, memory, settings, share
from .summary import Summary

NAMED = 6
"""Rows named for each reason; the others are counted."""


def tables(summary: Summary) -> Iterator[Table]:
    """What was left out, what failed, the conditions, and the settings."""
    if (omitted := skipped(summary.result)) is not None:
        yield omitted
    if summary.result.failures:
        yield _failures(summary)
    yield _conditions(summary.result)
    yield _settings(summary)


def skipped(result: Result) -> Table | None:
    """Rows and turns that were not measured, by reason; None where all were."""
    if not result.skipped:
        return None
    by_reason: dict[str, list[str]] = defaultdict(list)
    for each in result.skipped:
        by_reason[clean(each.reason)].append(clean(each.row))
    rows = tuple(
        (reason, str(len(names)), listed_some(names, NAMED)) for reason, names in by_reason.items()
    )
    columns = (Column("reason", number=False), Column("rows"), Column("which", number=False))
    return Table("Left out", columns, rows)


def _failures(summary: Summary) -> Table:
    columns = (
        Column("contender", number=False),
        Column("at", number=False),
        Column("because", number=False),
    )
    rows = tuple(
        (summary.label(each.contender), clean(each.row), clean(each.error))
        for each in summary.result.failures
    )
    return Table("Failed", columns, rows)


def _conditions(result: Result) -> Table:
    columns = (Column("", number=False), Column("", number=False))
    rows = tuple((name, clean(value)) for name, value in _facts(result) if value)
    return Table("Conditions", columns, rows)


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    machine, model, asked = result.machine, result.model, result.conditions
    yield "command", asked.command
    yield "when", f"{result.created}, in {duration(result.seconds)}"
    parts = [machine.device]
    if machine.threads:
        parts.append(counted(machine.threads, "thread"))
    if machine.memory:
        parts.append(f"{memory(machine.memory)} of memory")
    yield "machine", ", ".join([*parts, machine.system])
    if asked.ranks > 1:
        split = asked.parallel_mode == "tensor"
        what = "the model is split" if split else "lookahead shares drafts, all else runs on one"
        yield "ranks", f"{asked.ranks}: {what}"
    yield "driver", machine.driver or ""
    yield "versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    yield "model", _model(result)
    yield "arithmetic", f"weights {model.weights}, computed in {model.compute}"
    why = f": {result.attention_why}" if result.attention_why else ""
    yield "attention", f"{model.attention}{why}"
    how = "compiled and captured as CUDA graphs" if model.compiled else "captured as CUDA graphs"
    yield "steps", how if model.captured else ""
    yield (
        "prompts",
        f"{asked.prompts}: {counted(asked.rows, 'row')},"
        f" {'each once' if asked.repeat == 1 else f'{asked.repeat} times each'}",
    )
    yield (
        "answers",
        f"at most {counted(asked.max_new_tokens, 'token')}"
        f"{', going on behind end tokens' if asked.ignore_eos else ''};"
        f" {'with' if asked.template else 'without'} the chat template",
    )
    chosen = ", ".join(f"{name} {_exact(value)}" for name, value in asked.sampling.items())
    yield "sampling", chosen or "greedy"
    yield "profile", asked.profile
    yield "sweep", "; ".join(f"{axis} {', '.join(found)}" for axis, found in asked.sweep.items())
    yield "reference", result.reference or "none"
    yield "overhead", f"{share(result.overhead)} of the time went to measuring itself"
    compiling = f"{duration(result.compile_seconds)} for transformers' steps, in no figure"
    yield "compiling", compiling if result.compile_seconds else ""


def _exact(value: float) -> str:
    """A number with all its digits: another seed is another answer."""
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def _model(result: Result) -> str:
    model = result.model
    size = f"{_amount(model.parameters)} parameters"
    if model.active < model.parameters:
        size += f", {_amount(model.active)} of them active"
    made = f", made for {model.made_for:,}" if model.made_for < model.context else ""
    return f"{model.name}: {size}, {model.context:,} tokens of context{made}"


def _amount(count: float) -> str:
    for scale, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= scale:
            return f"{decimal(count / scale)}{unit}"
    return f"{count:.0f}"


def _settings(summary: Summary) -> Table:
    columns = (Column("", number=False), Column("settings", number=False))
    rows = tuple(
        (summary.label(each.name), settings(each.settings))
        for each in summary.result.contenders
        if each.settings
    )
    return Table("Settings", columns, rows or (("all", "those of their own"),))
