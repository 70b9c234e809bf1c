"""Charts of time: how long steps take, what they consist of, and what the machine could do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from ..result import Run
from . import ink
from .charts import MOST_ROWS, Chart, made, styles
from .document import Section
from .names import beside
from .summary import Summary
from .time_tables import PARTS, TITLES, Reached, parts_of, reached

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def runs(summary: Summary, _section: Section) -> Iterator[Chart]:
    """How step times are distributed, and whether the machine was steady."""
    yield from made(
        step_times(summary), "steps", "How long a step takes",
        "Share of the steps that took no longer; dots: median and 95th percentile.",
    )  # fmt: skip
    yield from made(
        drift(summary), "drift", "Was the machine steady?",
        "Rate of every run over the median of its like; a steady machine stays near 1.",
    )  # fmt: skip


def time(summary: Summary, _section: Section) -> Iterator[Chart]:
    """Where time goes, and the roofline."""
    yield from made(
        stacked(summary), "parts", "Milliseconds of a step",
        "Host: drafting, laying out and learning.",
    )  # fmt: skip
    yield from made(
        roofline(summary), "roofline", "Roofline of the forward pass",
        "The roof is what this machine reached in the same run: left of its ridge a step waits for"
        " memory, right of it for arithmetic.",
    )  # fmt: skip


def stacked(summary: Summary) -> Figure | None:
    """Milliseconds of a step by part, a bar for each contender."""
    spent = summary.time_spent[:MOST_ROWS]
    if not spent:
        return None
    figure, axes = ink.canvas(1.05 + 0.27 * len(spent))
    rows = list(reversed(range(len(spent))))
    ends = np.zeros(len(spent))
    for number, part in enumerate(PARTS, start=1):
        values = np.array([parts_of(each)[part] * 1e3 for each in spent])
        axes.barh(
            rows, values, left=ends, height=0.66, color=ink.SERIES[number],
            edgecolor=ink.CARD, linewidth=0.5, label=TITLES.get(part, part),
        )  # fmt: skip
        ends = ends + values
    names = beside(summary)
    axes.set_yticks(rows, [names[each.contender] for each in spent])
    axes.tick_params(axis="y", length=0, labelcolor=ink.TEXT)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("ms")
    ink.legend(figure, axes, columns=3)
    return figure


def roofline(summary: Summary) -> Figure | None:
    """Arithmetic rate over operations per byte, below what the machine can do."""
    ceiling = summary.result.ceiling
    found = [rates for spent in summary.time_spent if (rates := reached(spent))]
    found = [each for each in found if each.arithmetic > 0]
    if not found or ceiling is None or min(ceiling.bandwidth, ceiling.arithmetic) <= 0:
        return None
    figure, axes = ink.canvas(3.0)
    ridge = ceiling.arithmetic / ceiling.bandwidth
    low = min([ridge, *(each.intensity for each in found)]) / 3
    high = max([ridge, *(each.intensity for each in found)]) * 6
    roof = [ceiling.bandwidth * low, ceiling.arithmetic, ceiling.arithmetic]
    axes.loglog([low, ridge, high], [y / 1e9 for y in roof], color=ink.TEXT, lw=1.6)
    _rates(summary, axes, found)
    middle = float(np.sqrt(low * ridge))
    axes.annotate(
        f"{ceiling.bandwidth / 1e9:.3g} GB/s", (middle, ceiling.bandwidth * middle / 1e9),
        xytext=(-6, 3), textcoords="offset points", ha="right", color=ink.FAINT,
    )  # fmt: skip
    axes.annotate(
        f"{ceiling.arithmetic / 1e9:,.3g} GFLOP/s", (high, roof[1] / 1e9), xytext=(0, 4),
        textcoords="offset points", ha="right", color=ink.FAINT,
    )  # fmt: skip
    axes.set_ylim(top=ceiling.arithmetic / 1e9 * 3)
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("GFLOP/s")
    ink.plain_numbers(axes, "xy")
    ink.legend(figure, axes)
    return figure


def _rates(summary: Summary, axes: Axes, found: Sequence[Reached]) -> None:
    known, names = styles(summary), beside(summary)
    for each in found:
        number = known.get(each.contender, 0)
        axes.plot(
            each.intensity, each.arithmetic / 1e9, ink.MARKERS[number], color=ink.SERIES[number],
            label=names[each.contender] if each.contender in known else None,
        )  # fmt: skip


def step_times(summary: Summary) -> Figure | None:
    """How the seconds of steps are distributed, a line for each contender."""
    shares = np.linspace(0.0, 0.995, 120)  # the slowest of all would stretch the axis
    known, names = styles(summary), beside(summary)
    figure, axes = ink.canvas(3.0)
    for each in summary.drawn:
        steps = [
            s * 1e3 for run in summary.result.runs_of(each.contender) for s in run.step_seconds
        ]
        if not steps or min(steps) <= 0:
            continue
        number = known[each.contender]
        axes.plot(
            np.quantile(steps, shares), 100 * shares, ink.DASHES[number], color=ink.SERIES[number],
            label=names[each.contender],
        )  # fmt: skip
        axes.plot(np.quantile(steps, [0.5, 0.95]), [50, 95], "o", color=ink.SERIES[number], ms=3)
    if not axes.lines:
        return None
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0f} %")
    ink.plain_numbers(axes, "x")
    ink.legend(figure, axes)
    return figure


def drift(summary: Summary) -> Figure | None:
    """The rate of every run, relative to its like, by when it began."""
    kept = {each.contender for each in summary.drawn}
    timed = [run for run in summary.result.runs if run.contender in kept and run.decode_seconds > 0]
    rates = defaultdict(list)
    for run in timed:
        rates[_like(run)].append(run.decoded / run.decode_seconds)
    points = sorted(
        (run.began, run.decoded / run.decode_seconds / middle)
        for run in timed
        if (middle := median(rates[_like(run)])) > 0
    )
    # A single repeat is its own median, and says nothing of the machine.
    if len(points) < 4 or max(run.repeat for run in timed) == 1:
        return None
    figure, axes = ink.canvas(2.2)
    unit, name = (60.0, "minutes") if points[-1][0] > 300 else (1.0, "seconds")
    x, y = np.array(points).T
    axes.plot(x / unit, y, "o", color=ink.SERIES[0], ms=2.2, alpha=0.6)
    window = max(len(y) // 12, 3)
    smooth = [float(np.median(y[max(i - window, 0) : i + window + 1])) for i in range(len(y))]
    axes.plot(x / unit, smooth, color=ink.SERIES[1])
    axes.axhline(1.0, color=ink.FAINT, lw=1, ls="--")
    axes.set_xlabel(f"{name} since the start")
    return figure


def _like(run: Run) -> tuple[object, ...]:
    """What runs have in common that should be as fast as each other."""
    return run.contender, run.category, run.row, run.turn
