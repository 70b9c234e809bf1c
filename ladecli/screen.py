"""What is printed on a console: as wide as a screen, and on a pipe with every row whole.

Colours are another matter: a pipe has them where the user wants them, and no width even then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .table import Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable

WIDE = 10_000
"""Columns of a pipe: more than any row has, so that none is folded."""
_NAMES = 12
"""Columns that a name has at least; or a third of the screen."""


def is_screen(console: Console) -> bool:
    """Whether lines end at the console's width, with colours or without."""
    return console.file.isatty()


def draws(console: Console, columns: int) -> bool:
    """Whether the stream takes the dots of a plot that is so wide."""
    room = not is_screen(console) or console.width >= columns
    return room and "utf" in (console.encoding or "").lower()


def line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: no markup in it, nothing highlighted, and on a pipe unbroken."""
    soft = not is_screen(console)
    console.print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=soft)


def show(part: RenderableType, console: Console) -> None:
    """Print a table or the like: on a pipe every row is one line, without blanks at its end."""
    from rich.text import Text

    if is_screen(console):
        console.print(part)
        return
    options = console.options.update(width=WIDE)
    for segments in console.render_lines(part, options, pad=False):
        row = Text.assemble(*((each.text, each.style or "") for each in segments))
        row.rstrip()
        console.print(row, soft_wrap=True)


def bare_table() -> RichTable:
    """A table with a line below its head and no other."""
    from rich import box
    from rich.table import Table as RichTable

    return RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)


def print_table(table: Table, console: Console) -> set[str]:
    """Print a table with its title and footnotes; without room for all, not all of its columns.

    Returns:
        The titles of the columns that were left out: those of the greatest weight.
    """
    kept = list(range(len(table.columns)))
    if is_screen(console):
        while _needs(table, kept, max(console.width // 3, _NAMES)) > console.width:
            weight = max(table.columns[number].weight for number in kept)
            if not weight:
                break
            kept.remove(max(n for n in kept if table.columns[n].weight == weight))
    shown = table.of_columns(kept)
    line(console, shown.title, "bold")
    show(_rich(shown), console)
    for note in shown.footnotes:
        line(console, note, "dim")
    return {column.title for n, column in enumerate(table.columns) if n not in kept}


def _needs(table: Table, kept: list[int], names: int) -> int:
    """Columns of the screen that a table takes if names are folded to so many."""
    from rich.cells import cell_len

    total = 2 * (len(kept) - 1)
    for number in kept:
        column = table.columns[number]
        widest = max((cell_len(row[number]) for row in table.rows), default=0)
        widest = max(widest if column.number else min(widest, names), cell_len(column.title))
        total += widest
    return total


def _rich(table: Table) -> RichTable:
    from rich.text import Text

    found = bare_table()
    for column in table.columns:
        if column.number:
            found.add_column(Text(column.title), justify="right", no_wrap=True)
        else:
            found.add_column(Text(column.title), overflow="fold")
    for row in table.rows:
        found.add_row(*(Text(cell) for cell in row))
    return found
