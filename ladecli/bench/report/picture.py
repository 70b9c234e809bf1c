"""A report as one SVG, for a README or a talk: the answer, speed-ups and a few figures.

It stands alone, as those of `export.py` do: no fonts or styles from elsewhere, and light or dark
as the reader's system has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from rich.cells import cell_len

from ...visualize import counted
from ..figures import Figures, Interval
from ..wording import clean, decimal, interval, times
from .document import document
from .names import beside
from .summary import Summary

WIDTH = 760
MARGIN = 28
MOST_ROWS = 12
"""Contenders in the picture; more would be a table."""
_NAMES, _AXIS, _VALUES = 268, 288, 586
"""Where names end, and where the axis and the figures begin."""
_SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_ADVANCE = 0.58
"""Of the size, the width of a character of prose in the widest usual fonts."""
_LIGHT = {
    "page": "#ffffff", "text": "#1b2430", "faint": "#5c6878", "line": "#dde3ea",
    "hero": "#1261c4", "other": "#7b8694", "warn": "#8a4b00",
}  # fmt: skip
_DARK = {
    "page": "#0d1219", "text": "#e4e9f0", "faint": "#9aa6b4", "line": "#2a3442",
    "hero": "#6cb0ff", "other": "#9aa5b1", "warn": "#f3c878",
}  # fmt: skip


def svg(summary: Summary) -> str:
    """The whole picture."""
    report = document(summary)
    marks: list[str] = []
    y = float(MARGIN)
    y = _prose(marks, [report.title], y, 13, "faint")
    y = _prose(marks, report.verdict[:1], y + 6, 21, "text", weight=650)
    y = _prose(marks, report.verdict[1:], y + 4, 14, "text")
    y = _prose(marks, report.doubts, y + 4, 12.5, "warn")
    if rows := _rows(summary):
        y = _forest(marks, summary, rows, y + 14)
    y = _prose(marks, [_figures(summary)], y + 10, 13, "text")
    y = _prose(marks, [_conditions(summary)], y, 11.5, "faint")
    height = math.ceil(y + MARGIN - 8)
    drawn = "\n".join(marks)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" \
width="{WIDTH}" height="{height}" role="img" aria-label="{escape(" ".join(report.verdict))}">
<style>
text{{font-family:{_SANS}}}
{_sheet(_LIGHT)}
@media(prefers-color-scheme:dark){{{_sheet(_DARK)}}}
</style>
<rect class="page" width="{WIDTH}" height="{height}" rx="10"/>
{drawn}
</svg>
"""


def _sheet(colours: dict[str, str]) -> str:
    return "".join(f".{name}{{fill:{c}}}.s-{name}{{stroke:{c}}}" for name, c in colours.items())


def _rows(summary: Summary) -> list[tuple[Figures, Interval]]:
    """What has a speed-up; if there is much of it, the fastest."""
    drawn = summary.fastest(MOST_ROWS)
    return [(each, each.speedup) for each in drawn if each.speedup is not None]


def _forest(
    marks: list[str], summary: Summary, rows: Sequence[tuple[Figures, Interval]], y: float
) -> float:
    """Speed-ups with their intervals; where the next thing may begin."""
    low = min(1.0, *(found.low for _, found in rows))
    high = max(1.0, *(found.high for _, found in rows))
    room = max(high - low, 0.1) * 0.06
    low, high = low - room, high + room

    def at(value: float) -> float:
        return _AXIS + (value - low) / (high - low) * (_VALUES - 24 - _AXIS)

    names = beside(summary, int((_NAMES - MARGIN) / (13 * _ADVANCE)))
    bottom = y + 26 * len(rows) + 4
    for tick in _ticks(low, high):
        x = at(tick)
        dash = ' stroke-dasharray="4 3"' if tick == 1.0 else ""
        colour = "s-faint" if tick == 1.0 else "s-line"
        marks.append(f'<path class="{colour}" d="M{x:.1f} {y:.1f}V{bottom:.1f}"{dash}/>')
        marks.append(_text(f"{tick:g}×", x, bottom + 16, 11.5, "faint", "middle"))
    for number, (each, found) in enumerate(rows):
        middle = y + 26 * number + 15
        hero = summary.hero is not None and each.contender == summary.hero.contender
        colour, weight = ("hero", 650) if hero else ("other", 400)
        marks.append(_text(names[each.contender], _NAMES, middle + 4.5, 13, "text", "end", weight))
        marks.append(
            f'<path class="s-{colour}" stroke-width="3" stroke-linecap="round"'
            f' d="M{at(found.low):.1f} {middle:.1f}H{at(found.high):.1f}"/>'
        )
        marks.append(
            f'<circle class="{colour}" cx="{at(found.value):.1f}" cy="{middle:.1f}" r="5.5"/>'
        )
        marks.append(_text(times(found.value), _VALUES, middle + 4.5, 13, "text", "start", weight))
        marks.append(_text(interval(found), _VALUES + 60, middle + 4.5, 12, "faint"))
    reference = f"speed-up over {summary.label(summary.result.reference)}, with 95 % intervals"
    return _prose(marks, [reference], bottom + 22, 11.5, "faint")


def _ticks(low: float, high: float) -> Iterator[float]:
    """Round numbers between two, and 1 among them."""
    rough = (high - low) / 5
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= rough)
    # Counted from 1, so that 1 is exact.
    for number in range(math.ceil((low - 1.0) / step), math.floor((high - 1.0) / step) + 1):
        yield 1.0 + number * step


def _figures(summary: Summary) -> str:
    hero = summary.hero
    if hero is None:
        return ""
    parts = [
        f"{hero.tokens_per_step:.2f} tokens per step",
        f"{decimal(hero.tokens_per_second)} tok/s",
    ]
    if hero.width:
        parts.append(f"{hero.width:.1f} fed per step")
    if hero.compared:
        parts.append(f"{hero.equal} of {hero.compared} answers equal")
    return f"{summary.label(hero.contender)}: {' · '.join(parts)}"


def _conditions(summary: Summary) -> str:
    result = summary.result
    asked = result.conditions
    versions = ", ".join(f"{name} {version}" for name, version in result.machine.versions.items())
    return clean(
        f"{asked.prompts}, {counted(asked.rows, summary.noun)} × {asked.repeat}, at most"
        f" {asked.max_new_tokens} tokens, {result.model.compute}; {versions}; {result.created[:10]}"
    )


def _prose(
    marks: list[str],
    paragraphs: Sequence[str],
    y: float,
    size: float,
    colour: str,
    weight: int = 400,
) -> float:
    """Paragraphs, wrapped; where the next thing may begin."""
    for paragraph in paragraphs:
        for line in _wrapped(paragraph, size):
            y += size * 1.35
            marks.append(_text(line, MARGIN, y, size, colour, "start", weight))
        y += size * 0.3
    return y


def _wrapped(text: str, size: float) -> Iterator[str]:
    """Lines that have room, broken between words; words that are longer than a line, anywhere."""
    most = int((WIDTH - 2 * MARGIN) / (size * _ADVANCE))
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= most:
            line = joined
            continue
        if line:
            yield line
        line = word
        while cell_len(line) > most:
            yield line[: most // 2]
            line = line[most // 2 :]
    if line:
        yield line


def _text(
    text: str,
    x: float,
    y: float,
    size: float,
    colour: str,
    anchor: str = "start",
    weight: int = 400,
) -> str:
    return (
        f'<text class="{colour}" x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"'
        f' text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
    )
