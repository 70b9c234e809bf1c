"""A result as one document, which the terminal and Markdown show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import files
from ..errors import UsageError, printable
from ..metrics import ratio
from ..specs.memory import format_bytes
from ..view.screen import NONE, Column, Table
from . import render
from .render import Document
from .result import PLAIN, STOCK, STOCK_COMPILED, STOCK_LOOKUP, Result, to_json
from .statistics import Figures, Speedup, figures_of, speedup

if TYPE_CHECKING:
    from rich.console import Console

OPTION = "--report"
COLUMNS = 100
"""Of what is printed to a pipe."""
_LABELS = {
    PLAIN: "plain decoding",
    STOCK: "transformers' generate",
    STOCK_LOOKUP: "transformers' prompt lookup",
    STOCK_COMPILED: "transformers' compiled generate",
}
_NAME = Column("", number=False)


def check(path: Path) -> None:
    """Refuse a report that could not be written, before a model is loaded."""
    if path.suffix.lower() not in _FORMATS:
        known = " or ".join(_FORMATS)
        raise UsageError(f"{OPTION} {path}: the name of a report ends in {known}")
    files.check(path, OPTION)


def write(result: Result, path: Path) -> None:
    """Write a result in the format of the file's suffix."""
    files.write(path, _FORMATS[path.suffix.lower()](result), OPTION)


_FORMATS: dict[str, Callable[[Result], str]] = {
    ".md": lambda result: render.markdown(document(result)),
    ".json": lambda result: to_json(result) + "\n",
}
"""What makes a report, by the end of its name."""


def show(result: Result, console: Console) -> None:
    """Print a result."""
    render.terminal(document(result), console)


def document(result: Result) -> Document:
    """The content of every format."""
    overall = figures_of(result)
    return Document(
        title=f"{_clean(result.model.name)} on {_clean(result.machine.device)}",
        headline=tuple(_headline(result, overall)),
        caveats=tuple(_caveats(result)),
        tables=tuple(_tables(result, overall)),
    )


def _headline(result: Result, overall: Sequence[Figures]) -> Iterator[str]:
    """Is lookahead, or the fastest of our methods, faster, and is the text the same?"""
    strategies = {method.name: method.strategy for method in result.methods}
    ours = [e for e in overall if e.method not in (result.reference, PLAIN, *_LABELS)]
    if not (chosen := ours or overall):
        return
    found = max(chosen, key=lambda e: (strategies[e.method] == "lookahead", e.tokens_per_second))
    speed = decimal(found.tokens_per_second or None)
    sentence = f"{_label(found.method)}: {speed} tokens per second"
    stock = [each for each in overall if each.method in (STOCK, STOCK_COMPILED)]
    best = max(stock, key=lambda each: each.tokens_per_second, default=found)
    for rival in dict.fromkeys((result.reference, best.method)):
        runs = result.runs_of(found.method), result.runs_of(rival or "")
        if rival != found.method and (over := speedup(*runs)):
            sentence += f", {_factor(over)} those of {_label(rival)}"
    yield f"{sentence}; {found.tokens_per_step:.2f} tokens per step."
    compared = sum(each.compared for each in overall)
    differing = [
        f"{each.compared - each.equal:,} of {each.compared:,} of {_label(each.method)}"
        for each in overall
        if each.equal < each.compared
    ]
    baseline = _label(result.reference)
    if differing:
        names = ", ".join(differing)
        yield f"Answers differ from those of {baseline}: {names}; lade verify shows where."
    elif compared:
        yield f"{compared:,} of {compared:,} answers are equal to those of {baseline}."


def _caveats(result: Result) -> Iterator[str]:
    """What a reader must know about the figures."""
    # An answer of one step has no speed.
    asked, rows = result.conditions, len({run.row for run in result.runs if run.decoded})
    if result.interrupted:
        done = len({(run.method, run.row, run.repeat) for run in result.runs})
        wanted = asked.rows * asked.repeat * len(result.methods)
        yield f"Interrupted: the figures are of {done:,} of {wanted:,} runs."
    if result.failures:
        names = ", ".join(dict.fromkeys(_label(each.method) for each in result.failures))
        yield f"Failed: {names}; speed-ups are over the prompts in common."
    if result.reference is None:
        yield f"There is no baseline, so there are no speed-ups; add {PLAIN}."
    elif rows < 6:
        yield f"An interval needs 6 prompts with answers of several steps; here: {rows}."
    if asked.sampled and any(each.foreign for each in result.methods):
        yield "transformers draws other random numbers: its answers were not compared."


def _tables(result: Result, overall: Sequence[Figures]) -> Iterator[Table]:
    if overall:
        yield _speeds(result, overall)
    yield from _categories(result)
    if result.time_spent:
        yield _time(result)
    if failures := result.failures:
        rows = [(_label(each.method), each.row, each.error) for each in failures]
        yield _texts("Failed", ("method", "row", "error"), rows)
    if result.skipped:
        left_out = [(each.row, each.reason) for each in result.skipped]
        yield _texts("Left out", ("row", "reason"), left_out)
    facts = [(_label(name), _pairs(of)) for name, of in result.circumstances.items()]
    yield _texts("Conditions", ("", ""), [fact for fact in facts if fact[1]])


def _speeds(result: Result, overall: Sequence[Figures]) -> Table:
    """Every method on all prompts."""
    baseline = _label(result.reference or PLAIN)
    over = f"speed-up: median of the prompts over {baseline}; ~ may be chance"
    # The greatest weight is left out first on a narrow screen.
    columns = (
        _NAME,
        Column("speed-up", note=over),
        Column("95 %", weight=1, note="95 %: its confidence interval"),
        Column("equal", weight=2, note="equal: answers equal to the baseline's"),
        Column("tok/s", weight=3, note="tok/s, ms/step, width: medians after the first step"),
        Column("tok/step", weight=4),
        Column("first ms", weight=5, note="first ms: median time to the first token"),
        Column("ms/step", weight=6),
        Column("width", weight=7),
        Column("memory", weight=8, note="memory: peak of the process, by all methods"),
    )
    rows = tuple(
        (
            _label(each.method),
            "1" if each.method == result.reference else _speedup(each),
            _interval(each.speedup),
            f"{each.equal}/{each.compared}" if each.compared else NONE,
            decimal(each.tokens_per_second or None),
            f"{each.tokens_per_step:.2f}",
            _milliseconds(each.first_seconds),
            _milliseconds(each.step_median),
            f"{each.width:.1f}" if each.width else NONE,
            _memory(each.peak_memory),
        )
        for each in overall
    )
    return Table("How fast", columns, rows).without_empty()


def _categories(result: Result) -> Iterator[Table]:
    """Figures by category, or by length in a sweep over contexts."""
    if len(result.categories) < 2:
        return
    what = "context" if "context" in result.conditions.sweep else "category"
    titles: dict[str, Callable[[Figures], str]] = {
        "Speed-up": _speedup,
        "Tokens per step": lambda each: f"{each.tokens_per_step:.2f}",
    }
    if what == "context":
        titles["Milliseconds per step"] = lambda each: _milliseconds(each.step_median)
    found = [{f.method: f for f in figures_of(result, each)} for each in result.categories]
    names = (Column(_clean(name), weight=n) for n, name in enumerate(result.categories))
    columns = (_NAME, *names)
    for title, cell in titles.items():
        rows = []
        for method in result.methods:
            figures = [of.get(method.name) for of in found]
            cells = [cell(each) if each else NONE for each in figures]
            if {*cells} != {NONE}:
                rows.append((_label(method.name), *cells))
        if rows:
            yield Table(f"{title} by {what}", columns, tuple(rows))


def _time(result: Result) -> Table:
    """Shares of a step's time, by part."""
    parts = [*dict.fromkeys(part for each in result.time_spent for part in each.seconds)]
    rows = []
    for each in result.time_spent:
        total = sum(each.seconds.values())
        shares = (_share(ratio(each.seconds.get(part, 0.0), total)) for part in parts)
        rows.append((_label(each.method), _milliseconds(total), *shares))
    columns = (
        _NAME,
        Column("mean ms/step"),
        *(Column(_clean(part), weight=n) for n, part in enumerate(parts)),
    )
    return Table("Where the time of a step goes", columns, tuple(rows))


def _pairs(values: Mapping[str, object]) -> str:
    """Names and values in one line, without those that say nothing."""
    told = {
        name.replace("_", " "): decimal(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value not in (None, "", 0, {})
    }
    return ", ".join(f"{name} {value}" for name, value in told.items())


def _texts(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    cells = tuple(tuple(map(_clean, row)) for row in rows)
    return Table(title, tuple(Column(name, number=False) for name in columns), cells)


def _label(name: str | None) -> str:
    """What a method is called in tables and sentences."""
    return _LABELS.get(name or "") or _clean(name or "")


def _clean(text: str) -> str:
    """Text of the user's or of a model's, on one line and without control characters."""
    return printable(" ".join(text.split())).strip()


def decimal(value: float | None) -> str:
    """A number with three significant digits, never in powers of ten."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0.0:
        return "0"
    places = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{places}f}"


def _factor(found: Speedup) -> str:
    if found.interval is None:
        return f"{found.value:.2f}×"
    unclear = "" if found.clear else ", no clear difference"
    return f"{found.value:.2f}× ({_interval(found)}{unclear})"


def _interval(found: Speedup | None) -> str:
    if found is None or found.interval is None:
        return NONE
    low, high = found.interval
    return f"{low:.2f} to {high:.2f}"


def _speedup(each: Figures) -> str:
    """A speed-up, marked where it may be chance."""
    found = each.speedup
    return f"{'' if found.clear else '~'}{found.value:.2f}×" if found else NONE


def _milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else decimal(seconds * 1e3)


def _memory(count: float | None) -> str:
    return NONE if count is None else format_bytes(count)


def _share(part: float) -> str:
    """A part of a whole: "12 %"; small ones keep a digit."""
    percent = 100 * part
    return f"{percent:.0f} %" if percent >= 9.5 or percent == 0 else f"{percent:.1f} %"
