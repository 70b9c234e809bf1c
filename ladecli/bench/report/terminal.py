"""A report on the terminal: tables that fit, heat maps in colour, the paper's law as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...screen import bare_table, draws, is_screen, line, print_table, show
from .document import Document, Section, document
from .shades import LEVELS, best, ink_on, shade, text_of
from .summary import Summary
from .sweeps import Grid, Law

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

PLOT = 66
"""Columns of the plot."""
_MARKS = "123456789abcdefghijklmnopqrstuvwxyz"


def print_report(summary: Summary, console: Console) -> None:
    """Print everything but what is only looked up."""
    report = document(summary)
    _headline(report, console)
    left_out: set[str] = set()
    for section in report.sections:
        console.print()
        _section(section, console, left_out)
    if left_out:
        console.print()
        names = ", ".join(sorted(left_out))
        line(console, f"without room here: {names}; a wider screen or --report has them", "dim")


def _headline(report: Document, console: Console) -> None:
    line(console, report.title, "bold")
    for sentence in report.verdict:
        line(console, sentence)
    for doubt in report.doubts:
        line(console, f"note: {doubt}", "yellow")


def _section(section: Section, console: Console, left_out: set[str]) -> None:
    for number, grid in enumerate(section.grids):
        if number:
            console.print()
        _heat_map(grid, console)
    if section.text:
        line(console, section.title, "bold")
    if section.law is not None and draws(console, PLOT):
        line(console, _legend(section.law), "dim")
        for row in plot(section.law).splitlines():
            line(console, row.rstrip())
    for text in section.text:
        line(console, text)
    for number, table in enumerate(section.tables):
        if number:
            console.print()
        left_out |= print_table(table, console)


def _heat_map(grid: Grid, console: Console) -> None:
    """A grid as a table whose shades say the same as its figures."""
    line(console, grid.title, "bold")
    # A grid that is wider than the screen goes on below.
    widest = max(len(text_of(cell, grid)) for cells in grid.cells for cell in cells)
    room = (console.width - 16) // (widest + 4) if is_screen(console) else len(grid.columns)
    for start in range(0, len(grid.columns), max(room, 1)):
        show(_shaded(grid, slice(start, start + max(room, 1))), console)
    line(console, "* the highest", "dim")


def _shaded(grid: Grid, part: slice) -> RichTable:
    """Some columns of a grid."""
    from rich.style import Style
    from rich.text import Text

    table = bare_table()
    table.add_column(Text(f"{grid.down} \\ {grid.across}"), overflow="fold")
    for name in grid.columns[part]:
        table.add_column(Text(name), justify="right", overflow="fold")
    top = best(grid)
    for name, cells in zip(grid.rows, grid.cells, strict=True):
        shown = [Text(name)]
        for cell in cells[part]:
            mark = "*" if cell is not None and cell == top else " "
            text = Text(f" {text_of(cell, grid)}{mark}")
            if cell is not None:
                level = shade(cell, grid)
                colours = Style(color=ink_on(level), bgcolor=LEVELS[level], bold=mark == "*")
                text.stylize(colours)
            shown.append(text)
        table.add_row(*shown)
    return table


def plot(found: Law) -> str:
    """Tokens per step over the logarithm of the work, a mark for each N, and the line."""
    import math

    import plotille

    figure = plotille.Figure()
    figure.width, figure.height = 46, 10
    figure.with_colors = False
    points = [point for series in found.series for point in series.points]
    low = math.floor(min(math.log2(x) for x, _ in points))
    high = max(math.ceil(max(math.log2(x) for x, _ in points)), low + 1)
    ends = [y for _, y in points] + [
        fit.slope * math.log2(x) + fit.intercept
        for fit in found.fits[:1]
        for x in (fit.low, fit.high)
    ]
    figure.set_x_limits(low, high)
    figure.set_y_limits(min(ends) - 0.05, max(ends) + 0.05)
    figure.x_label, figure.y_label = "tokens fed", "per step"
    figure.x_ticks_fkt = lambda low, _high: f"{2**low:.0f}"
    figure.y_ticks_fkt = lambda low, _high: f"{low:.2f}"
    for fit in found.fits[:1]:
        x = [math.log2(fit.low), math.log2(fit.high)]
        figure.plot(x, [fit.slope * each + fit.intercept for each in x])
    for mark, series in zip(_MARKS, found.series, strict=False):
        x = [math.log2(each) for each, _ in series.points]
        figure.scatter(x, [y for _, y in series.points], marker=mark)
    return str(figure.show())


def _legend(found: Law) -> str:
    named = [
        f"{mark} {series.name}"
        for mark, series in zip(_MARKS, found.series, strict=False)
        if series.name
    ]
    return f"tokens per step over tokens fed per step{': ' if named else ''}{', '.join(named)}"
