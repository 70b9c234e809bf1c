"""A document on the terminal, as Markdown and as a page of HTML."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from ..view.screen import Table, line, print_table
from .statistics import Interval

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 24
"""Methods in a chart."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&@])")


@dataclass(frozen=True, slots=True)
class Document:
    """A report; nothing in it is escaped.

    Attributes:
        title: model and machine.
        headline: the answer, in sentences.
        caveats: what a reader must know about the figures.
        speedups: by method, for a chart.
        footer: program and date.
    """

    title: str
    headline: tuple[str, ...]
    caveats: tuple[str, ...]
    tables: tuple[Table, ...]
    chart_title: str
    speedups: tuple[tuple[str, Interval], ...]
    footer: str


def terminal(report: Document, console: Console) -> None:
    """Print a document from its end: what matters comes last, where it stays on the screen."""
    line(console, report.title, "bold")
    left_out: set[str] = set()
    for table in reversed(report.tables):
        console.print()
        left_out |= print_table(table, console)
    console.print()
    if names := ", ".join(sorted(left_out - {""})):
        line(console, f"without room here: {names}; a wider screen or a file has them", "dim")
    for caveat in report.caveats:
        line(console, f"note: {caveat}", "yellow")
    for sentence in reversed(report.headline):
        line(console, sentence, "bold")


def markdown(report: Document) -> str:
    """A document in GitHub's Markdown."""
    return "\n".join(_markdown(report)) + "\n"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _markdown(report: Document) -> Iterator[str]:
    yield f"# {_escaped(report.title)}"
    for sentence in report.headline:
        yield from ("", f"**{_escaped(sentence)}**")
    for caveat in report.caveats:
        yield from ("", f"> Note: {_escaped(caveat)}")
    for table in report.tables:
        yield from ("", f"## {_escaped(table.title)}", "")
        yield _row([_escaped(column.title) for column in table.columns])
        yield _row(["---:" if column.number else "---" for column in table.columns])
        for row in table.rows:
            yield _row([_escaped(cell) for cell in row])
        for note in table.footnotes:
            yield from ("", _escaped(note))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def html(report: Document) -> str:
    """A document as one page without scripts, which loads nothing; the template escapes texts."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    template = files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    chart = Markup(_chart(report.speedups)) if report.speedups else ""  # matplotlib escaped it
    return environment.from_string(template).render(report=report, chart=chart) + "\n"


def _chart(speedups: Sequence[tuple[str, Interval]]) -> str:
    """Speed-ups with their intervals, a row for each method, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    kept = sorted(speedups, key=lambda each: -each[1].value)[:MAX_ROWS][::-1]
    figure = Figure(figsize=(7.5, 1.2 + 0.3 * len(kept)), layout="constrained")
    axes = figure.subplots()
    for y, (_, found) in enumerate(kept):
        colour = "tab:blue" if found.clear else "tab:gray"
        axes.plot([found.low, found.high], [y, y], color=colour, lw=2)
        axes.plot(found.value, y, "o", color=colour)
    axes.axvline(1.0, color="black", lw=0.8, ls=":")
    axes.set_yticks(range(len(kept)), [name for name, _ in kept])
    axes.set_xlim(left=0)
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg")
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]
