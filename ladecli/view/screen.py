"""Lines, tables and findings on a console: wrapped to the width of a screen, but never on a pipe.

Colours are independent of this: a pipe may have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column as RichColumn
from rich.table import Table as RichTable
from rich.text import Text

from .terminal import PIPE

NONE = "-"
"""The sign for a missing figure."""
OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
"""Levels: in order; worth knowing; worse than necessary; something does not work."""
_LOOKS = {OK: ("+", ""), NOTE: ("-", "dim"), WARNING: ("!", "yellow"), PROBLEM: ("x", "red")}
"""The mark and the style of each level."""
_NAMES = 12
"""The least width of names, in cells; on a wide screen it is a third of the screen."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    number: bool = True  # it holds numbers, which are aligned to the right
    weight: int = 0  # without room, the column of the greatest weight goes first; 0 always stays
    note: str = ""  # explanation for the footnote


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows and columns, for a screen or a report; nothing in it is escaped."""

    title: str
    columns: tuple[Column, ...]  # the first one names the row
    rows: tuple[tuple[str, ...], ...]  # one cell per column
    notes: tuple[str, ...] = ()  # lines below the table

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The lines below the table: explanations of columns, and its own notes."""
        explained = "; ".join(column.note for column in self.columns if column.note)
        return (explained, *self.notes) if explained else self.notes

    def of_columns(self, numbers: Sequence[int]) -> Table:
        """Return the table with only some of its columns, by number."""
        return replace(
            self,
            columns=tuple(self.columns[number] for number in numbers),
            rows=tuple(tuple(row[number] for number in numbers) for row in self.rows),
        )

    def without_empty(self) -> Table:
        """Return the table without empty columns; those of weight 0 stay."""
        numbers = [
            number
            for number, column in enumerate(self.columns)
            if not column.weight or any(row[number] != NONE for row in self.rows)
        ]
        return self.of_columns(numbers)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: the value, its level, and the fix."""

    name: str
    value: str
    level: str = OK
    fix: str | None = None


def line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line without markup or highlighting."""
    console.print(text, style=style, markup=False, highlight=False, emoji=False)


def show(content: RenderableType, console: Console) -> None:
    """Print a table or the like: on a pipe every row is one line, without trailing blanks."""
    if console.file.isatty():
        console.print(content)
        return
    for segments in console.render_lines(content, pad=False):
        row = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        row.rstrip()
        console.print(row)


def print_rows(console: Console, rows: Iterable[Sequence[RenderableType]]) -> None:
    """Print a table without a header: names, values and remarks."""
    names = RichColumn(style="cyan", no_wrap=True)
    grid = RichTable.grid(names, RichColumn(), RichColumn(style="dim"), padding=(0, 2))
    for row in rows:
        grid.add_row(*row)
    show(grid, console)


def print_table(table: Table, console: Console) -> set[str]:
    """Print a table with its title and footnotes, without some columns if they do not fit.

    Returns:
        The titles of the columns that were left out: those of the greatest weight.
    """
    numbers, unlimited = list(range(len(table.columns))), console.options.update(max_width=PIPE)
    names = max(console.width // 3, _NAMES)
    while len(numbers) > 1:
        weight = max(table.columns[number].weight for number in numbers)
        needed = Measurement.get(
            console, unlimited, _rich_table(table.of_columns(numbers), names)
        ).maximum
        if not weight or needed <= console.width:
            break
        numbers.remove(max(n for n in numbers if table.columns[n].weight == weight))
    narrow = table.of_columns(numbers)
    line(console, narrow.title, "bold")
    show(_rich_table(narrow), console)
    for note in narrow.footnotes:
        line(console, note, "dim")
    return {column.title for n, column in enumerate(table.columns) if n not in numbers}


def _rich_table(table: Table, names: int | None = None) -> RichTable:
    """Return the table for Rich, with a single rule below its header.

    Names are folded at `names` cells.
    """
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for column in table.columns:
        if column.number:
            grid.add_column(Text(column.title), justify="right", no_wrap=True)
        else:
            grid.add_column(Text(column.title, no_wrap=True), overflow="fold", max_width=names)
    for row in table.rows:
        grid.add_row(*map(Text, row))
    return grid


def level_style(level: str) -> str:
    """Return the style of a level."""
    return _LOOKS[level][1]


def print_finding(finding: Finding, console: Console) -> None:
    """Print a finding in the style of its level, and its fix below it."""
    mark, style = _LOOKS[finding.level]
    # The level is also a word, for readers who do not see colours.
    level = f"{finding.level}: " if finding.level in (WARNING, PROBLEM) else ""
    line(console, f"  {mark} {finding.name:<18} {level}{finding.value}", style)
    if finding.fix:
        line(console, f"{'':23}-> {finding.fix}", "cyan")
