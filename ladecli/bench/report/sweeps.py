"""What a sweep says: grids of its settings, the paper's law, and figures over the context."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..figures import Figures
from ..wording import clean
from .summary import Summary

SPEED_UP = "Speed-up"
"""The title of the measure of which 1 is as fast as the reference."""
FEWEST = 3
"""A line through two points fits always, and says nothing."""
_FIRST = ("W", "N")


@dataclass(frozen=True, slots=True)
class Grid:
    """A figure over two axes of a sweep.

    Attributes:
        title: of the figure, and the values of all other axes.
        across, down: names of the axes.
        columns, rows: their values, as typed.
        cells: [rows, columns]; None where nothing was measured.
        unit: behind each figure, "×" or "".
    """

    title: str
    across: str
    down: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    unit: str

    @property
    def bounds(self) -> tuple[float, float]:
        """The least figure and the greatest."""
        found = [cell for row in self.cells for cell in row if cell is not None]
        return min(found), max(found)


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart.

    Attributes:
        name: for the legend; empty for the only one.
        points: x and y of each.
    """

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A straight line through points: y = slope × log2(x) + intercept.

    Attributes:
        name: of the points that it was fitted to.
        slope, intercept: of the line.
        explained: R², the share of the variance that it explains.
        low, high: between which x there are points.
    """

    name: str
    slope: float
    intercept: float
    explained: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Law:
    """Tokens per step over the work of a step, and the lines through them.

    Attributes:
        series: of each N, or all together.
        fits: a line for each series that has points enough.
    """

    series: tuple[Series, ...]
    fits: tuple[Fit, ...]


MEASURES: tuple[tuple[str, str, Callable[[Figures], float | None]], ...] = (
    (SPEED_UP, "×", lambda each: each.speedup.value if each.speedup else None),
    ("Tokens per step", "", lambda each: each.tokens_per_step),
)
"""What grids and lines of a sweep show: title, unit, and the figure itself."""


def axes_of(summary: Summary) -> dict[str, tuple[str, ...]]:
    """Axes along which contenders differ: W and N first, then numbers, then names."""
    contenders = [each for each in summary.result.contenders if each.cell]
    names = dict.fromkeys(name for each in contenders for name in each.cell)
    found = {}
    for name in names:
        typed = summary.result.conditions.sweep.get(name, ())
        met = dict.fromkeys(each.cell[name] for each in contenders if name in each.cell)
        values = [value for value in typed if value in met]
        values += [value for value in met if value not in values]
        if len(values) > 1:
            found[name] = tuple(values)
    order = sorted(found, key=lambda name: (name not in _FIRST, not is_numeric(found[name])))
    if order[:2] == ["N", "W"]:
        order[:2] = _FIRST
    return {name: found[name] for name in order}


def is_numeric(values: Sequence[str]) -> bool:
    """Whether all values of an axis are numbers."""
    return all(_number(value) is not None for value in values)


def grids(summary: Summary) -> Iterator[Grid]:
    """Both measures over the first two axes, for each combination of all others."""
    axes = axes_of(summary)
    if len(axes) < 2:
        return
    across, down, *others = axes
    strategies = dict.fromkeys(each.strategy for each in summary.result.contenders if each.cell)
    combinations = list(itertools.product(*(axes[name] for name in others)))
    for (measure, unit, figure), strategy in itertools.product(MEASURES, strategies):
        for combination in combinations:
            fixed = dict(zip(others, combination, strict=True))
            found = _cells(summary, strategy, fixed, figure)
            cells = tuple(
                tuple(found.get((column, row)) for column in axes[across]) for row in axes[down]
            )
            if all(cell is None for row in cells for cell in row):
                continue
            where = [clean(strategy)] if len(strategies) > 1 else []
            where += [clean(f"{name}={value}") for name, value in fixed.items()]
            yield Grid(
                title=", ".join([measure, *where]),
                across=clean(across),
                down=clean(down),
                columns=tuple(clean(value) for value in axes[across]),
                rows=tuple(clean(value) for value in axes[down]),
                cells=cells,
                unit=unit,
            )


def _cells(
    summary: Summary,
    strategy: str,
    fixed: dict[str, str],
    figure: Callable[[Figures], float | None],
) -> dict[tuple[str, str], float | None]:
    across, down, *_ = axes_of(summary)
    found = {}
    for each in summary.overall:
        contender = summary.contender(each.contender)
        cell = contender.cell
        if contender.strategy != strategy or any(cell.get(k) != v for k, v in fixed.items()):
            continue
        if across in cell and down in cell:
            found[cell[across], cell[down]] = figure(each)
    return found


def lines(summary: Summary) -> dict[str, tuple[Series, ...]]:
    """Both measures along the only axis of a sweep, by title; empty where there is no such."""
    axes = axes_of(summary)
    if len(axes) != 1 or not is_numeric(next(iter(axes.values()))):
        return {}
    axis = next(iter(axes))
    found = {}
    for title, _, figure in MEASURES:
        by_strategy: dict[str, list[tuple[float, float]]] = {}
        for each in summary.overall:
            contender = summary.contender(each.contender)
            x, y = _number(contender.cell.get(axis, "")), figure(each)
            if x is not None and y is not None:
                by_strategy.setdefault(contender.strategy, []).append((x, y))
        found[title] = _series(by_strategy)
    return {title: series for title, series in found.items() if series}


def law(summary: Summary) -> Law | None:
    """Tokens per step over the mean width of the cells' steps.

    The paper's claim (arXiv 2402.02057, section 4.2) is that tokens per step grow linearly with
    the logarithm of the work per step, for an N that is large enough.

    Returns:
        None where no window is swept, fewer than three cells have a width, or all have the same.
    """
    if not {"W", "N"} & summary.result.conditions.sweep.keys():
        return None
    by_n: dict[str, list[tuple[float, float]]] = {}
    for each in summary.overall:
        contender = summary.contender(each.contender)
        n = contender.cell.get("N", contender.settings.get("ngram"))
        if contender.cell and each.width and n is not None:
            by_n.setdefault(clean(f"N={n}"), []).append((each.width, each.tokens_per_step))
    series = _series(by_n)
    points = [point for one in series for point in one.points]
    if (joint := _fit("all", points)) is None:
        return None
    if len(series) == 1:
        return Law(series, (joint,))
    own = [fit for one in series if (fit := _fit(one.name, one.points)) is not None]
    return Law(series, (joint, *own))


def _fit(name: str, points: Sequence[tuple[float, float]]) -> Fit | None:
    if len(points) < FEWEST or len({x for x, _ in points}) < 2:
        return None
    x = np.log2([x for x, _ in points])
    y = np.array([y for _, y in points])
    slope, intercept = (float(value) for value in np.polyfit(x, y, 1))
    rest, spread = y - (slope * x + intercept), y - y.mean()
    variance = float(spread @ spread)
    explained = 1.0 - float(rest @ rest) / variance if variance > 0 else 1.0
    return Fit(name, slope, intercept, explained, float(2 ** x.min()), float(2 ** x.max()))


def law_sentences(found: Law) -> list[str]:
    """What the law comes to, a sentence for each line through the points."""
    names = {"all": "all settings together" if len(found.series) > 1 else "the settings"}
    return [
        f"{names.get(fit.name, fit.name)}: {fit.slope:+.2f} tokens per step for every doubling of"
        f" the work; a straight line explains {100 * max(fit.explained, 0.0):.0f} % of the"
        f" variance (R² = {fit.explained:.2f})"
        for fit in found.fits
    ]


def over_contexts(summary: Summary) -> dict[str, tuple[Series, ...]]:
    """Speed-up, milliseconds per step and peak memory over the length, by title."""
    if not summary.of_contexts:
        return {}
    measures: tuple[tuple[str, Callable[[Figures], float | None]], ...] = (
        (SPEED_UP, MEASURES[0][2]),
        ("Milliseconds per step", lambda each: each.step_median and each.step_median * 1e3),
        ("Peak memory, GB", lambda each: each.peak_memory and each.peak_memory / 1e9),
    )
    # With one length alone, figures by category are the overall ones.
    lengths = summary.by_category or dict.fromkeys(summary.result.categories, summary.overall)
    kept = {each.contender for each in summary.drawn}
    found = {}
    for title, figure in measures:
        by_name: dict[str, list[tuple[float, float]]] = {}
        for length, all_ in lengths.items():
            for each in all_:
                x, y = _number(length), figure(each)
                if x and y and each.contender in kept:
                    by_name.setdefault(each.contender, []).append((x, y))
        found[title] = _series(by_name)
    return {title: series for title, series in found.items() if series}


def _series(points: dict[str, list[tuple[float, float]]]) -> tuple[Series, ...]:
    return tuple(Series(name, tuple(sorted(found))) for name, found in points.items())


def _number(text: str) -> float | None:
    """The number that a value is, if it is one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
