"""Show a result as tables, on the terminal and in Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import files
from ..errors import UsageError, printable
from ..models.memory import format_bytes
from ..view.screen import NONE, Column, Table, line, print_table
from .result import PLAIN, STOCK, STOCK_COMPILED, STOCK_LOOKUP, Result, to_json
from .statistics import Figures, Speedup, figures_of

if TYPE_CHECKING:
    from rich.console import Console

OPTION = "--report"
COLUMNS = 100
"""The width of tables on a pipe."""
_LABELS = {
    PLAIN: "plain decoding",
    STOCK: "transformers' generate",
    STOCK_LOOKUP: "transformers' prompt lookup",
    STOCK_COMPILED: "transformers' compiled generate",
}
_NAME = Column("", number=False)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&@])")


@dataclass(frozen=True, slots=True)
class Document:
    """A report; nothing in it is escaped."""

    title: str  # model and machine
    headline: tuple[str, ...]
    caveats: tuple[str, ...]
    tables: tuple[Table, ...]


def check(path: Path) -> None:
    """Check that a report can be written, before a model is loaded."""
    if path.suffix.lower() not in (".md", ".json"):
        raise UsageError(f"{OPTION} {path}: the name of a report ends in .md or .json")
    files.check(path, OPTION)


def write(result: Result, path: Path) -> None:
    """Write a result in the format that the suffix of the file names."""
    as_json = path.suffix.lower() == ".json"
    files.write(path, to_json(result) + "\n" if as_json else _markdown(document(result)), OPTION)


def show(result: Result, console: Console) -> None:
    """Print a result."""
    report = document(result)
    for sentence in (report.title, *report.headline):
        line(console, sentence, "bold")
    for caveat in report.caveats:
        line(console, f"note: {caveat}", "yellow")
    left_out: set[str] = set()
    for table in report.tables:
        console.print()
        left_out |= print_table(table, console)
    if names := ", ".join(sorted(left_out - {""})):
        console.print()
        line(console, f"the screen is too narrow for {names}; --report FILE.md has it all", "dim")


def _markdown(report: Document) -> str:
    """Return a document in GitHub's Markdown."""
    parts = [f"# {_escape(report.title)}"]
    parts += [f"**{_escape(sentence)}**" for sentence in report.headline]
    parts += [f"> Note: {_escape(caveat)}" for caveat in report.caveats]
    for table in report.tables:
        rows = [[column.title for column in table.columns], *table.rows]
        lines = [" | ".join(map(_escape, row)) for row in rows]
        lines.insert(1, " | ".join("---:" if column.number else "---" for column in table.columns))
        grid = "\n".join(f"| {line} |" for line in lines)
        parts += [f"## {_escape(table.title)}", grid, *map(_escape, table.footnotes)]
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def document(result: Result) -> Document:
    """Return the content of both formats."""
    overall = figures_of(result)
    tables = [_speeds(result, overall)] if overall else []
    tables += _categories(result)
    failures = [(_label(f.contender), f.row, f.error) for f in result.failures]
    skipped = [(row.row, row.reason) for row in result.skipped]
    texts: dict[str, tuple[Sequence[str], list[tuple[str, ...]]]] = {
        "Failed": (("method", "row", "error"), [*failures]),
        "Left out": (("row", "reason"), [*skipped]),
        "Conditions": (("", ""), _conditions(result)),
    }
    for title, (names, rows) in texts.items():
        if rows:
            cells = tuple(tuple(map(_clean, row)) for row in rows)
            columns = tuple(Column(name, number=False) for name in names)
            tables.append(Table(title, columns, cells))
    return Document(
        title=f"{_clean(result.model['name'])} on {_clean(result.machine['device'])}",
        headline=tuple(_headline(result, overall)),
        caveats=tuple(_caveats(result)),
        tables=tuple(tables),
    )


def _headline(result: Result, overall: Sequence[Figures]) -> Iterator[str]:
    """Yield sentences on the speed of lookahead, or of our fastest method, and on equality."""
    strategies = {method.name: method.strategy for method in result.contenders}
    ours = [f for f in overall if f.method not in (result.reference, PLAIN, *_LABELS)]
    if not (chosen := ours or overall):
        return
    best = max(chosen, key=lambda f: (strategies[f.method] == "lookahead", f.tokens_per_second))
    baseline = _label(result.reference)
    sentence = f"{_label(best.method)}: {decimal(best.tokens_per_second or None)} tokens per second"
    if best.speedup is not None:
        sentence += f", {_speedup(best)} ({_interval(best.speedup)}) those of {baseline}"
    yield f"{sentence}; {best.tokens_per_step:.2f} tokens per step."
    compared = sum(figures.compared for figures in overall)
    differing = [
        f"{f.compared - f.equal:,} of {f.compared:,} of {_label(f.method)}"
        for f in overall
        if f.equal < f.compared
    ]
    if differing:
        names = ", ".join(differing)
        yield f"Answers differ from those of {baseline}: {names}; lade verify shows where."
    elif compared:
        yield f"{compared:,} of {compared:,} answers are equal to those of {baseline}."


def _caveats(result: Result) -> Iterator[str]:
    """Yield caveats about the figures."""
    # Answers of one step have no speed.
    rows = len({run.row for run in result.runs if run.decoded})
    if result.interrupted:
        yield "Interrupted: the figures cover only the runs that were finished."
    if result.reference is None:
        yield f"There is no baseline, so there are no speed-ups; add {PLAIN}."
    elif rows < 6:
        yield f"An interval needs 6 prompts with answers of several steps; here: {rows}."


def _speeds(result: Result, overall: Sequence[Figures]) -> Table:
    """Return the figures of every method on all prompts."""
    baseline = _label(result.reference or PLAIN)
    over = f"speed-up: median of the prompts over {baseline}"
    # On a narrow screen, the column with the greatest weight is left out first.
    columns = (
        _NAME,
        Column("speed-up", note=over),
        Column("95 %", weight=1, note="95 %: its confidence interval"),
        Column("equal", weight=2, note="equal: answers equal to the baseline's"),
        Column("tok/s", weight=3, note="tok/s, ms/step: medians after the first step"),
        Column("tok/step", weight=4),
        Column("first ms", weight=5, note="first ms: median time to the first token"),
        Column("ms/step", weight=6),
    )
    rows = tuple(
        (
            _label(figures.method),
            "1" if figures.method == result.reference else _speedup(figures),
            _interval(figures.speedup),
            f"{figures.equal}/{figures.compared}" if figures.compared else NONE,
            decimal(figures.tokens_per_second or None),
            f"{figures.tokens_per_step:.2f}",
            _milliseconds(figures.first_seconds),
            _milliseconds(figures.step_median),
        )
        for figures in overall
    )
    return Table("How fast", columns, rows).without_empty()


def _categories(result: Result) -> Iterator[Table]:
    """Yield figures by category, or by length in a sweep over contexts."""
    if len(result.categories) < 2:
        return
    what = "context" if "context" in result.conditions["sweep"] else "category"
    titles: dict[str, Callable[[Figures], str]] = {"Speed-up": _speedup}
    if what == "context":
        titles["Milliseconds per step"] = lambda figures: _milliseconds(figures.step_median)
    else:
        titles["Tokens per step"] = lambda figures: f"{figures.tokens_per_step:.2f}"
    figures = [{f.method: f for f in figures_of(result, name)} for name in result.categories]
    names = (Column(_clean(name), weight=n) for n, name in enumerate(result.categories))
    columns = (_NAME, *names)
    for title, cell in titles.items():
        rows = []
        for method in result.contenders:
            cells = [cell(of[method.name]) if method.name in of else NONE for of in figures]
            if {*cells} != {NONE}:
                rows.append((_label(method.name), *cells))
        if rows:
            yield Table(f"{title} by {what}", columns, tuple(rows))


def _conditions(result: Result) -> list[tuple[str, ...]]:
    """Return the conditions of the measurement, a group of names and values in each row."""
    machine = {**result.machine, "memory": format_bytes(result.machine["memory"])}
    groups: dict[str, Mapping[str, object]] = {
        "run": {"created": result.created, "seconds": result.seconds},
        "version": machine.pop("versions"),
        "machine": machine,
        "model": result.model,
        "asked": result.conditions,
        **{_label(method.name): method.settings for method in result.contenders},
    }
    return [(name, pairs) for name, values in groups.items() if (pairs := _pairs(values))]


def _pairs(values: Mapping[str, object]) -> str:
    """Return names and values in one line, without empty values."""
    shown = {
        name.replace("_", " "): decimal(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value not in (None, "", 0, {})
    }
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _label(name: str | None) -> str:
    """Return the name of a method in tables and sentences."""
    return _LABELS.get(name or "") or _clean(name or "")


def _clean(text: str) -> str:
    """Return a text on one line and without control characters."""
    return printable(" ".join(text.split())).strip()


def decimal(value: float | None) -> str:
    """Return a number with three significant digits, without an exponent."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0.0:
        return "0"
    places = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{places}f}"


def _interval(speedup: Speedup | None) -> str:
    if speedup is None or speedup.interval is None:
        return NONE
    low, high = speedup.interval
    return f"{low:.2f} to {high:.2f}"


def _speedup(figures: Figures) -> str:
    return f"{figures.speedup.value:.2f}×" if figures.speedup else NONE


def _milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else decimal(seconds * 1e3)
