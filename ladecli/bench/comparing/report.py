"""A comparison on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...screen import is_screen, line, print_table
from ...table import Table
from .change import EQUAL, FASTER, SLOWER, UNCLEAR
from .tables import others, times, unlike
from .values import Comparison
from .words import findings, notes

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {SLOWER: "bold red", FASTER: "bold green", UNCLEAR: "yellow", EQUAL: "bold"}


def show(comparison: Comparison, console: Console) -> None:
    """Print what is not the same, the times, the exact figures, and what it comes to."""
    if comparison.unlike:
        console.print()
        _unlike(unlike(comparison), console)
    left_out: set[str] = set()
    for table in (times(comparison), others(comparison)):
        console.print()
        left_out |= print_table(table, console)
    console.print()
    if left_out:
        names = ", ".join(sorted(left_out))
        line(console, f"without room here: {names}; a wider screen or --json has them", "dim")
    for note in notes(comparison):
        line(console, f"note: {note}", "yellow")
    for finding in findings(comparison):
        line(console, finding.text, _STYLES.get(finding.verdict or EQUAL, "bold"))


def _unlike(table: Table, console: Console) -> None:
    """As a table; where that has no room, as lines, which break between words."""
    from rich.cells import cell_len

    widest = (max(cell_len(row[number]) for row in table.rows) for number in range(3))
    if not is_screen(console) or sum(widest) + 2 * 2 <= console.width:
        print_table(table, console)
        return
    line(console, table.title, "bold")
    for what, a, b in table.rows:
        line(console, f"{what}: {a} in A, {b} in B")
