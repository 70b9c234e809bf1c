"""Lines, tables and findings on a console: as wide as a screen, and on a pipe with every row whole.

Colours are another matter: a pipe has them if the user wants them, and no width even then.
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
"""The sign for a figure that there is not."""
OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
"""Levels: as it should be; worth knowing; worse than it could be; something cannot work."""
_LOOKS = {OK: ("+", ""), NOTE: ("-", "dim"), WARNING: ("!", "yellow"), PROBLEM: ("x", "red")}
"""The mark and the style of each level."""
_NAMES = 12
"""Columns that a name has at least; or a third of the screen."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    number: bool = True  # whether it holds numbers, which end at its right side
    weight: int = 0  # if there is no room, the greatest is left out first; 0 always stays
    note: str = ""  # what it holds, for the footnote


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows and columns, for a screen or a report; nothing in it is escaped."""

    title: str
    columns: tuple[Column, ...]  # the first one names the row
    rows: tuple[tuple[str, ...], ...]  # as many cells in each as there are columns
    notes: tuple[str, ...] = ()  # below it, each a line of its own

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Below it: what its columns hold, and its own notes."""
        explained = "; ".join(column.note for column in self.columns if column.note)
        return (explained, *self.notes) if explained else self.notes

    def of_columns(self, kept: Sequence[int]) -> Table:
        """The table with some columns only, by number."""
        return replace(
            self,
            columns=tuple(self.columns[number] for number in kept),
            rows=tuple(tuple(row[number] for number in kept) for row in self.rows),
        )

    def without_empty(self) -> Table:
        """The table without columns in which no row has anything; those of weight 0 stay."""
        kept = [
            number
            for number, column in enumerate(self.columns)
            if not column.weight or any(row[number] != NONE for row in self.rows)
        ]
        return self.of_columns(kept)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: what there is, how good that is, and the fix."""

    name: str
    value: str
    level: str = OK
    fix: str | None = None


def line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: no markup in it, and nothing highlighted."""
    console.print(text, style=style, markup=False, highlight=False, emoji=False)


def show(part: RenderableType, console: Console) -> None:
    """Print a table or the like: on a pipe every row is one line, without blanks at its end."""
    if console.file.isatty():
        console.print(part)
        return
    for segments in console.render_lines(part, pad=False):
        row = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        row.rstrip()
        console.print(row)


def print_rows(console: Console, rows: Iterable[Sequence[RenderableType]]) -> None:
    """Print a table of up to three columns without a head: names, values and remarks."""
    names = RichColumn(style="cyan", no_wrap=True)
    grid = RichTable.grid(names, RichColumn(), RichColumn(style="dim"), padding=(0, 2))
    for row in rows:
        grid.add_row(*row)
    show(grid, console)


def print_table(table: Table, console: Console) -> set[str]:
    """Print a table with its title and footnotes; without room for all, not all of its columns.

    Returns:
        The titles of the columns that were left out: those of the greatest weight.
    """
    kept, unlimited = list(range(len(table.columns))), console.options.update(max_width=PIPE)
    names = max(console.width // 3, _NAMES)
    while len(kept) > 1:
        weight = max(table.columns[number].weight for number in kept)
        needed = Measurement.get(
            console, unlimited, _rich_table(table.of_columns(kept), names)
        ).maximum
        if not weight or needed <= console.width:
            break
        kept.remove(max(n for n in kept if table.columns[n].weight == weight))
    shown = table.of_columns(kept)
    line(console, shown.title, "bold")
    show(_rich_table(shown), console)
    for note in shown.footnotes:
        line(console, note, "dim")
    return {column.title for n, column in enumerate(table.columns) if n not in kept}


def _rich_table(table: Table, names: int | None = None) -> RichTable:
    """The table for Rich, with a line below its head and no other.

    Names are folded at `names` cells, if that is given.
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
    """The style of a level."""
    return _LOOKS[level][1]


def print_finding(finding: Finding, console: Console) -> None:
    """Print a finding by its level, and its fix below it."""
    mark, style = _LOOKS[finding.level]
    # The level is a word, too: not every reader sees colours.
    level = f"{finding.level}: " if finding.level in (WARNING, PROBLEM) else ""
    line(console, f"  {mark} {finding.name:<18} {level}{finding.value}", style)
    if finding.fix:
        line(console, f"{'':23}-> {finding.fix}", "cyan")
