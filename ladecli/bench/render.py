"""A document on the terminal and as Markdown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..view.screen import Table, line, print_table

if TYPE_CHECKING:
    from rich.console import Console

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&@])")


@dataclass(frozen=True, slots=True)
class Document:
    """A report; nothing in it is escaped."""

    title: str  # model and machine
    headline: tuple[str, ...]  # the answer, in sentences
    caveats: tuple[str, ...]  # what a reader must know about the figures
    tables: tuple[Table, ...]


def terminal(report: Document, console: Console) -> None:
    """Print a document."""
    line(console, report.title, "bold")
    for sentence in report.headline:
        line(console, sentence, "bold")
    for caveat in report.caveats:
        line(console, f"note: {caveat}", "yellow")
    left_out: set[str] = set()
    for table in report.tables:
        console.print()
        left_out |= print_table(table, console)
    if names := ", ".join(sorted(left_out - {""})):
        console.print()
        line(console, f"left out for want of room: {names}; --report FILE.md has it all", "dim")


def markdown(report: Document) -> str:
    """A document in GitHub's Markdown."""
    parts = [f"# {_escape(report.title)}"]
    parts += [f"**{_escape(sentence)}**" for sentence in report.headline]
    parts += [f"> Note: {_escape(caveat)}" for caveat in report.caveats]
    for table in report.tables:
        rows = [[column.title for column in table.columns], *table.rows]
        lines = [" | ".join(map(_escape, row)) for row in rows]
        lines.insert(1, " | ".join("---:" if each.number else "---" for each in table.columns))
        grid = "\n".join(f"| {line} |" for line in lines)
        parts += [f"## {_escape(table.title)}", grid, *map(_escape, table.footnotes)]
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
