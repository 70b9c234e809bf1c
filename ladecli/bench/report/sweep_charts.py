"""Charts of sweeps: heat maps, the paper's law, and figures over one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import ink, names, sweeps
from .charts import Chart, made, styles
from .document import Section
from .shades import LEVELS, best, ink_on, shade, text_of
from .summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sweep(summary: Summary, section: Section) -> Iterator[Chart]:
    """Grids of two axes, or lines along one."""
    for number, grid in enumerate(section.grids):
        caption = "The highest figure has a frame; a dash: there is none."
        yield from made(heat_map(grid), f"grid{number}", grid.title, caption)
    axis = next(iter(sweeps.axes_of(summary)), "")
    (called,) = names.fitted([axis])
    for number, (title, series) in enumerate(section.lines.items()):
        figure = _lines(series, range(1, len(ink.SERIES)), called)
        yield from made(figure, f"line{number}", title, f"Along {axis}.")


def law(_summary: Summary, section: Section) -> Iterator[Chart]:
    """Tokens per step over the logarithm of the work."""
    found = section.law
    if found is not None:
        caption = "Work: tokens fed per step, the mean of each setting."
        alt = "; ".join(sweeps.law_sentences(found))
        yield from made(
            law_figure(found), "law", "Tokens per step over the work per step", caption, alt
        )


def contexts(summary: Summary, section: Section) -> Iterator[Chart]:
    """Figures over the length of the context."""
    known, called = styles(summary), names.beside(summary)
    for number, (title, series) in enumerate(section.lines.items()):
        colours = [known.get(each.name, 0) for each in series]
        named = [sweeps.Series(called[each.name], each.points) for each in series]
        level = title == sweeps.SPEED_UP
        figure = _lines(named, colours, "tokens of context", log=True, level=level)
        yield from made(figure, f"context{number}", title, "By the length of the context.")


def heat_map(grid: sweeps.Grid) -> Figure:
    """A grid as squares with figures in them."""
    from matplotlib.patches import Rectangle

    figure, axes = ink.canvas(0.65 + 0.36 * len(grid.rows))
    top = best(grid)
    size = 9.0 if len(grid.columns) <= 5 else 7.0
    for y, cells in enumerate(grid.cells):
        for x, cell in enumerate(cells):
            if cell is None:
                axes.text(x, y, "-", ha="center", va="center", color=ink.FAINT)
                continue
            level = shade(cell, grid)
            axes.add_patch(
                Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=LEVELS[level], edgecolor=ink.CARD)
            )
            axes.text(
                x, y, text_of(cell, grid), ha="center", va="center", color=ink_on(level),
                weight="bold" if cell == top else "normal", size=size,
            )  # fmt: skip
            if cell == top:
                box = (x - 0.46, y - 0.44)
                axes.add_patch(
                    Rectangle(box, 0.92, 0.88, fill=False, edgecolor=ink.SERIES[2], lw=1.6)
                )
    axes.set_xlim(-0.5, len(grid.columns) - 0.5)
    axes.set_ylim(len(grid.rows) - 0.5, -0.5)
    axes.set_xticks(range(len(grid.columns)), names.fitted(grid.columns, 12))
    axes.set_yticks(range(len(grid.rows)), names.fitted(grid.rows, 18))
    across, down = names.fitted([grid.across, grid.down])
    axes.set_xlabel(across)
    axes.set_ylabel(down)
    axes.grid(visible=False)
    axes.tick_params(length=0, labelcolor=ink.TEXT)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def law_figure(found: sweeps.Law) -> Figure:
    """Points and straight lines on a logarithmic axis."""
    figure, axes = ink.canvas(3.2)
    colours = {series.name: 1 + n % 7 for n, series in enumerate(found.series)}
    for series in found.series:
        number = colours[series.name]
        x, y = np.array(series.points).T
        name = series.name or "settings"
        axes.plot(x, y, ink.MARKERS[number], color=ink.SERIES[number], label=name)
    for fit in found.fits:
        x = np.geomspace(fit.low, fit.high, 2)
        number = colours.get(fit.name, 0)
        axes.plot(
            x, fit.slope * np.log2(x) + fit.intercept, "-" if number else "--",
            color=ink.SERIES[number], lw=1.1, alpha=0.9,
            label=None if number else f"{fit.name}: R² = {fit.explained:.2f}",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    ink.plain_numbers(axes, "x", base=2)
    axes.set_xlabel("tokens fed per step")
    axes.set_ylabel("tokens per step")
    ink.legend(figure, axes, columns=3)
    return figure


def _lines(
    series: Sequence[sweeps.Series],
    colours: Sequence[int],
    axis: str,
    log: bool = False,
    level: bool = False,
) -> Figure:
    """Lines with a point for each value.

    Args:
        series: to draw.
        colours: of each, by number.
        axis: what x is.
        log: whether x is logarithmic.
        level: whether to mark 1.
    """
    figure, axes = ink.canvas(2.8)
    labels = names.fitted([each.name for each in series])
    for each, colour, label in zip(series, colours, labels, strict=False):
        x, y = np.array(each.points).T
        axes.plot(
            x, y, ink.DASHES[colour], marker=ink.MARKERS[colour], color=ink.SERIES[colour],
            label=label,
        )  # fmt: skip
    if level:
        axes.axhline(1.0, color=ink.FAINT, lw=1, ls="--")
    if log:
        axes.set_xscale("log", base=2)
    ticks = sorted({x for each in series for x, _ in each.points})
    if len(ticks) <= 8:
        axes.set_xticks(ticks, [f"{x:,.10g}" for x in ticks], minor=False)
    axes.set_xlabel(axis)
    ink.legend(figure, axes)
    return figure
