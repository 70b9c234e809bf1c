"""An outlook for people: a table for each mode, verdicts, and what it all rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import screen
from ..memory import told
from ..table import NONE, Column, Table
from ..visualize import printable
from . import words
from .cost import MODES
from .outlook import Outlook, Row
from .words import Subject

if TYPE_CHECKING:
    from rich.console import Console

ASKED = "*"
"""Stands before the number of GPUs that was asked for."""
NO_ROOM, NO_SPLIT = "does not fit", "indivisible"
_COLUMNS = (
    Column("GPUs"),
    Column("nodes", weight=4),
    Column("ms a step"),
    Column("sent", weight=3),
    Column("tokens/step", weight=1),
    Column("tokens/s"),
    Column("× plain"),
    Column("per GPU", weight=2),
)


def show(subject: Subject, outlook: Outlook, console: Console) -> None:
    """Print it: what it rests on first, so that tables and verdicts are what a screen ends with.

    Args:
        subject: what was planned for.
        outlook: the estimates.
        console: on stdout.
    """
    screen.line(console, printable(words.heading(subject, outlook)), "bold")
    console.print()
    _assumptions(subject, outlook, console)
    shown: set[str] = set()
    for mode in MODES:
        console.print()
        table = _table(outlook, mode)
        left_out = screen.print_table(table, console)
        shown |= {column.title for column in table.columns} - left_out
    console.print()
    _footnotes(outlook, console, shown)
    console.print()
    for mode in MODES:
        screen.line(console, words.verdict(outlook, mode))
    screen.line(console, words.best(outlook), "bold")
    for note in words.caveats(subject, outlook):
        screen.line(console, printable(note))


def _table(outlook: Outlook, mode: str) -> Table:
    """One mode; why some rows are impossible stands below."""
    rows = outlook.rows[mode]
    several = any(row.nodes > 1 for row in rows)
    cells = tuple(_cells(outlook, mode, row, several) for row in rows)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if (why := words.why_not(outlook, row)) is not None:
            reasons.setdefault(why, []).append(str(row.gpus))
    notes = tuple(f"{', '.join(counts)}: {why}" for why, counts in reasons.items())
    return Table(words.title(outlook, mode), _COLUMNS, cells, notes).without_empty()


def _cells(outlook: Outlook, mode: str, row: Row, several: bool) -> tuple[str, ...]:
    gpus = f"{ASKED} {row.gpus}" if row.gpus == outlook.asked else str(row.gpus)
    nodes = str(row.nodes) if several else NONE
    step = row.step
    speedup, efficiency = outlook.speedup(row), outlook.efficiency(mode, row)
    if step is None or speedup is None or efficiency is None:
        why = NO_SPLIT if row.problem is not None else NO_ROOM
        return (gpus, nodes, why, *[NONE] * 5)
    return (
        gpus,
        nodes,
        f"{step.seconds * 1e3:.1f}",
        told(step.sent) if step.sent else NONE,
        f"{step.tokens:.2f}",
        f"{step.speed:.1f}",
        f"{speedup:.2f}",
        f"{efficiency:.0%}",
    )


def _footnotes(outlook: Outlook, console: Console, shown: set[str]) -> None:
    """What the columns are, of those that a table shows."""
    notes = {
        "× plain": f"× plain: tokens per second over {words.baseline(outlook)}",
        "per GPU": "per GPU: tokens per second of each, over those of the first possible row",
        "sent": "sent: bytes that each GPU gives to exchanges in a step",
    }
    for title, note in notes.items():
        if title in shown:
            screen.line(console, note, "dim")
    if outlook.asked:
        screen.line(console, f"{ASKED} {outlook.asked}: what was asked for", "dim")


def _assumptions(subject: Subject, outlook: Outlook, console: Console) -> None:
    """What all rests on; on a screen, lines that go on stand below their beginning."""
    from rich.table import Table as Grid
    from rich.text import Text

    screen.line(console, "It rests on:", "bold")
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for number, text in enumerate(words.assumptions(subject, outlook), start=1):
        grid.add_row(f"{number}.", Text(printable(text)))
    screen.show(grid, console)
