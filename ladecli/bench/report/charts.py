"""Charts of a page: how fast every contender is, how sure that is, and on which prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..wording import clean, factor, times
from . import ink
from .document import Section
from .names import beside, fitted
from .summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..figures import Interval

MOST_ROWS = 24
"""Contenders in a chart in which each has a row."""
ROOM = 1.6
"""The axis of speed-ups ends at so many times the highest one."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of a page.

    Attributes:
        title: above it.
        caption: below it: how to read it.
        svg: the element.
    """

    title: str
    caption: str
    svg: str


def made(
    figure: Figure | None, name: str, title: str, caption: str, alt: str = ""
) -> Iterator[Chart]:
    """The chart that a figure is; none of no figure."""
    if figure is not None:
        yield Chart(title, caption, ink.as_svg(figure, name, alt or f"{title}: {caption}"))


def overall(summary: Summary, _section: Section) -> Iterator[Chart]:
    """How fast every contender is, and how much of that is sure."""
    reference = summary.label(summary.result.reference)
    alt = "; ".join(
        f"{summary.label(each.contender)} {factor(each.speedup)}"
        for each in summary.fastest(MOST_ROWS)
        if each.speedup
    )
    yield from made(
        forest(summary), "forest", f"Speed-up over {reference}",
        "Points: tokens per second over the reference's; lines: 95 % intervals.  Where a line"
        f" crosses 1, there is no clear difference.{_cut_short(_speeds(summary))}", alt,
    )  # fmt: skip
    yield from made(
        gain(summary), "gain", "Tokens per step, and what becomes of them",
        "Below the dashed line, wider steps cost some of what drafts bring.",
    )  # fmt: skip


def categories(summary: Summary, _section: Section) -> Iterator[Chart]:
    """How fast it is on which kind of prompt."""
    if summary.of_contexts:
        return
    speeds = [found for group in _groups(summary).values() for found in group.values()]
    yield from made(
        bars(summary), "categories", "Speed-up by category",
        f"Lines: 95 % intervals.{_cut_short(speeds)}",
    )  # fmt: skip


def styles(summary: Summary) -> dict[str, int]:
    """The number of the colour, marker and dashes of each contender that has its own."""
    found = {}
    if summary.result.reference is not None:
        found[summary.result.reference] = 0
    if summary.hero is not None:
        found[summary.hero.contender] = 1
    free = iter(range(2 - (summary.hero is None), len(ink.SERIES)))
    for each in summary.drawn:
        if each.contender not in found:
            found[each.contender] = next(free, 0)
    return found


def _speeds(summary: Summary) -> list[Interval]:
    """Those of the chart in which each contender has a row."""
    return [each.speedup for each in summary.fastest(MOST_ROWS) if each.speedup]


def _groups(summary: Summary) -> dict[str, dict[str, Interval]]:
    """Speed-ups by category and contender, of those that are drawn."""
    kept = {each.contender for each in summary.drawn} - {summary.result.reference}
    groups = {
        name: {e.contender: e.speedup for e in found if e.speedup and e.contender in kept}
        for name, found in summary.by_category.items()
    }
    return {name: found for name, found in groups.items() if found}


def forest(summary: Summary) -> Figure | None:
    """Speed-ups with their intervals, a row for each contender."""
    rows = [each for each in summary.fastest(MOST_ROWS) if each.speedup]
    if not rows:
        return None
    figure, axes = ink.canvas(0.62 + 0.27 * len(rows))
    for y, each in enumerate(reversed(rows)):
        assert each.speedup is not None
        hero = summary.hero is not None and each.contender == summary.hero.contender
        colour = ink.SERIES[1] if hero else ink.SERIES[0]
        axes.plot([each.speedup.low, each.speedup.high], [y, y], color=colour, lw=2.2)
        axes.plot(each.speedup.value, y, "o", color=colour, ms=6 if hero else 5)
        axes.annotate(
            times(each.speedup.value), (1.0, y), xycoords=("axes fraction", "data"),
            xytext=(4, 0), textcoords="offset points", va="center",
            weight="bold" if hero else "normal",
        )  # fmt: skip
    axes.axvline(1.0, color=ink.FAINT, lw=1, ls="--", zorder=0)
    names = beside(summary)
    axes.set_yticks(range(len(rows)), [names[each.contender] for each in reversed(rows)])
    axes.tick_params(axis="y", length=0, labelcolor=ink.TEXT)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
    axes.margins(x=0.08)
    _cut(axes, _speeds(summary))
    axes.spines["left"].set_visible(False)
    return figure


def _cut(axes: Axes, speeds: Sequence[Interval]) -> None:
    """Let no interval of a few prompts press all the others into a corner."""
    if (edge := _edge(speeds)) is not None:
        axes.set_xlim(right=edge)


def _edge(speeds: Sequence[Interval]) -> float | None:
    """Where the axis ends before an interval does; None where all of them have room."""
    right = ROOM * max((1.0, *(each.value for each in speeds)))
    return right if any(each.high > right for each in speeds) else None


def _cut_short(speeds: Sequence[Interval]) -> str:
    """What a caption says of intervals that are longer than the axis, if there are some."""
    return "" if _edge(speeds) is None else "  Few prompts make long ones, which end at the edge."


def gain(summary: Summary) -> Figure | None:
    """Speed-up over tokens per step."""
    reference = next(
        (each for each in summary.overall if each.contender == summary.result.reference), None
    )
    rows = [each for each in summary.overall if each.speedup]
    if reference is None or not rows:
        return None
    figure, axes = ink.canvas(3.0)
    known, names = styles(summary), beside(summary)
    for each in rows:
        assert each.speedup is not None
        number = known.get(each.contender, 0)
        axes.plot(
            each.tokens_per_step, each.speedup.value, ink.MARKERS[number], color=ink.SERIES[number],
            label=names[each.contender] if each.contender in known else None,
        )  # fmt: skip
    most = max(each.tokens_per_step for each in rows)
    ends = [reference.tokens_per_step, max(most, reference.tokens_per_step * 1.05)]
    # As fast as its steps are fewer: what drafts would bring if they cost nothing.
    axes.plot(ends, [x / reference.tokens_per_step for x in ends], color=ink.FAINT, lw=1, ls="--")
    axes.axhline(1.0, color=ink.LINE, lw=1)
    axes.set_xlabel("tokens per step")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}×")
    axes.set_ylabel("speed-up")
    ink.legend(figure, axes)
    return figure


def bars(summary: Summary) -> Figure | None:
    """Speed-ups by category, with intervals."""
    contenders = [e for e in summary.drawn if e.contender != summary.result.reference]
    groups = _groups(summary)
    if not groups:
        return None
    size = len(contenders)
    figure, axes = ink.canvas(0.9 + len(groups) * (0.16 + 0.12 * size) + 0.09 * size)
    known, names = styles(summary), beside(summary)
    for number, each in enumerate(contenders):
        colour = ink.SERIES[known[each.contender]]
        places = [
            (-(group + (number + 0.5) / size * 0.8), found[each.contender])
            for group, found in enumerate(groups.values())
            if each.contender in found
        ]
        if not places:
            continue
        y, speeds = zip(*places, strict=True)
        axes.barh(
            y, [found.value for found in speeds], height=0.7 / size, color=colour,
            label=names[each.contender],
        )  # fmt: skip
        for place, found in places:
            axes.plot([found.low, found.high], [place, place], color=ink.TEXT, lw=0.9)
    axes.axvline(1.0, color=ink.FAINT, lw=1, ls="--")
    axes.set_yticks([-(group + 0.4) for group in range(len(groups))])
    axes.set_yticklabels(fitted([clean(name) for name in groups], 18))
    axes.tick_params(axis="y", length=0, labelcolor=ink.TEXT)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
    _cut(axes, [found for group in groups.values() for found in group.values()])
    ink.legend(figure, axes)
    return figure
