"""A document on the terminal, as Markdown and as a page of HTML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from ..view.screen import Table, line, print_table
from .statistics import Interval

if TYPE_CHECKING:
    from rich.console import Console

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
    chart_title: str = ""
    speedups: tuple[tuple[str, Interval], ...] = ()
    footer: str = ""


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
    parts = [f"# {_escaped(report.title)}"]
    parts += [f"**{_escaped(sentence)}**" for sentence in report.headline]
    parts += [f"> Note: {_escaped(caveat)}" for caveat in report.caveats]
    for table in report.tables:
        rows = [[column.title for column in table.columns], *table.rows]
        lines = [" | ".join(map(_escaped, row)) for row in rows]
        lines.insert(1, " | ".join("---:" if each.number else "---" for each in table.columns))
        grid = "\n".join(f"| {line} |" for line in lines)
        parts += [f"## {_escaped(table.title)}", grid, *map(_escaped, table.footnotes)]
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def html(report: Document) -> str:
    """A document as one page without scripts, which loads nothing; the template escapes texts."""
    from jinja2 import Environment, StrictUndefined

    template = files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(report=report) + "\n"
