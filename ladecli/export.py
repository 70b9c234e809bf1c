"""An answer in its colours as a file: SVG for a page or a talk, HTML for a browser or a phone.

Both stand alone: no fonts, scripts or styles from elsewhere, and light or dark as the reader's
system has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from . import outputs
from .events import Ended, TextEvent, TextStep
from .metrics import Tally
from .visualize import printable, statistics_line, style_of, styled

COLUMNS = 88
"""Cells of a line in the SVG."""

# What XML cannot hold, escaped or not.
_FORBIDDEN = re.compile("[\ud800-\udfff\ufffe\uffff]")
_WORD = re.compile(r"[^\S\n]+|[^\s]+")
_LIGHT = {
    "page": "#ffffff",
    "text": "#1f2328",
    "faint": "#656d76",
    "green": "#1a7f37",
    "cyan": "#0b7a8a",
    "blue": "#0550ae",
    "magenta": "#a0309a",
    "yellow": "#8a6100",
}
_DARK = {
    "page": "#0d1117",
    "text": "#e6edf3",
    "faint": "#8d96a0",
    "green": "#4ac26b",
    "cyan": "#56d4dd",
    "blue": "#79b8ff",
    "magenta": "#e685e0",
    "yellow": "#e3b341",
}
_MONO = "ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono','Noto Sans Mono',monospace"


class Exporter:
    """Collects an answer, and writes it when it is over, also when it was interrupted.

    Args:
        svg: where to write an SVG; None for none.
        html: where to write an HTML page; None for none.
        title: of the files, usually the model's name.
        prompt: what the answer continues.
        plain_step: seconds of a plain step, where it was measured.
    """

    def __init__(
        self,
        svg: Path | None,
        html: Path | None,
        title: str,
        prompt: str,
        plain_step: float | None = None,
    ) -> None:
        self._svg = svg
        self._html = html
        self._title = _clean(title)
        self._text = styled(_clean(prompt), "dim")
        self._tally = Tally()
        self._plain_step = plain_step

    def show(self, event: TextEvent) -> None:
        """Take what the event adds."""
        self._tally.add(event)
        match event:
            case TextStep():
                for piece in event.pieces:
                    self._text.append(_clean(piece.text), style_of(piece.source))
            case Ended():
                self._text.append(_clean(event.rest))

    def finish(self) -> None:
        """Write the files.

        Raises:
            LadeError: one of them cannot be written.
        """
        if self._svg:
            figures = statistics_line(self._tally, COLUMNS, self._plain_step)
            outputs.write_whole(self._svg, as_svg(self._title, self._text, figures), "--svg")
        if self._html:
            figures = statistics_line(self._tally, 10**6, self._plain_step)
            outputs.write_whole(self._html, as_html(self._title, self._text, figures), "--html")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", printable(text))


def _classes(style: Style) -> str:
    """The names of a style in the style sheets below; empty for plain text."""
    names = [style.color.name] if style.color else []
    return " ".join(names + ["faint"] * bool(style.dim) + ["bold"] * bool(style.bold))


def _sheet(rule: str, page: str) -> str:
    """Colours in light and in dark.

    Args:
        rule: the property that colours text.
        page: the start of the rule that colours the page.
    """

    def rules(colours: dict[str, str]) -> str:
        names = "".join(f".{name}{{{rule}:{value}}}" for name, value in colours.items())
        return f"{page}:{colours['page']}}}{names}"

    return f"{rules(_LIGHT)}\n@media(prefers-color-scheme:dark){{{rules(_DARK)}}}"


def as_html(title: str, text: Text, figures: Text) -> str:
    """A page with an answer and its figures.

    Args:
        title: plain text.
        text: the answer, its colours as styles.
        figures: below it, with the legend of its colours.
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
body{{margin:0 auto;padding:1rem;max-width:52rem;font:1rem/1.55 {_MONO}}}
h1{{font-size:1rem;margin:0 0 1rem}}
pre{{font:inherit;margin:0;white-space:pre-wrap;overflow-wrap:anywhere;tab-size:8}}
footer{{margin-top:1.5rem;font-size:.875rem}}
.bold{{font-weight:bold}}
{_sheet("color", "body{background")}
</style>
</head>
<body class="text">
<h1>{escape(title)}</h1>
<pre>
{"".join(_spans(text))}</pre>
<footer>{"".join(_spans(figures))}</footer>
</body>
</html>
"""


def _spans(text: Text) -> Iterator[str]:
    for part, style in runs(text):
        names = _classes(style)
        yield f'<span class="{names}">{escape(part)}</span>' if names else escape(part)


_SIZE = 14
_ADVANCE = 8.4
"""Width of a cell: 0.6 of the size in nearly all monospaced fonts, and stretched to it in others"""
_LEADING = 20
_MARGIN = 20


def as_svg(title: str, text: Text, figures: Text) -> str:
    """A picture of an answer and its figures.

    Every run of one colour stands where its cells are, so that fonts with other widths, and
    characters that come from other fonts, move nothing behind them.

    Args:
        title: plain text.
        text: the answer, its colours as styles.
        figures: below it, with the legend of its colours.
    """
    text = text.copy()
    text.expand_tabs(8)
    text.rstrip()
    body = wrapped(text, COLUMNS)
    lines = [Text(title, "bold"), Text(), *body, Text(), *figures.split("\n")]
    width = round(COLUMNS * _ADVANCE + 2 * _MARGIN)
    height = len(lines) * _LEADING + 2 * _MARGIN
    drawn = "\n".join(
        mark
        for number, line in enumerate(lines)
        for mark in _line(line, _MARGIN + number * _LEADING + _SIZE)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
width="{width}" height="{height}" role="img">
<style>
text{{font:{_SIZE}px {_MONO};white-space:pre}}
.bold{{font-weight:bold}}
{_sheet("fill", "rect{fill")}
</style>
<rect width="{width}" height="{height}" rx="8"/>
{drawn}
</svg>
"""


def _line(line: Text, y: int) -> Iterator[str]:
    cells = 0
    for part, style in _of_one_width(line):
        width = cell_len(part)
        bare = part.strip(" ")
        if bare and width:
            # Spaces at the ends of an element are not drawn everywhere: begin behind them.
            x = _MARGIN + (cells + len(part) - len(part.lstrip(" "))) * _ADVANCE
            yield (
                f'<text class="{_classes(style) or "text"}" x="{x:.1f}" y="{y}"'
                f' textLength="{cell_len(bare) * _ADVANCE:.1f}" xml:space="preserve">'
                f"{escape(bare)}</text>"
            )
        cells += width


def _of_one_width(line: Text) -> Iterator[tuple[str, Style]]:
    """Runs of one style, and of characters that are all as wide: stretched, they stay even."""
    for part, style in runs(line):
        start = 0
        for at in range(1, len(part)):
            widths = cell_len(part[at - 1]), cell_len(part[at])
            # What has no width belongs to the character before it, or joins two of them.
            if 0 not in widths and widths[0] != widths[1]:
                yield part[start:at], style
                start = at
        if part:
            yield part[start:], style


def wrapped(text: Text, width: int) -> list[Text]:
    """The lines of `text`, broken between words where there are any; spaces stay.

    A word that is wider than a line is broken inside.  The lines joined are the text without
    its line breaks.

    Args:
        text: tabs count as a cell; expand them before.
        width: in cells, at least 2: the widest character has 2.
    """
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        lines += line.divide(_breaks(line.plain, width))
    return lines


def _breaks(line: str, width: int) -> list[int]:
    """Where to break a line without line breaks."""
    breaks, used = [], 0
    for word in _WORD.finditer(line):
        needed = cell_len(word.group())
        if used and used + needed > width and not word.group().isspace():
            breaks.append(word.start())
            used = 0
        if used + needed <= width:
            used += needed
            continue
        for at, character in enumerate(word.group(), start=word.start()):
            cells = cell_len(character)
            if used + cells > width:
                breaks.append(at)
                used = 0
            used += cells
    return breaks


def runs(text: Text) -> Iterator[tuple[str, Style]]:
    """`text` in parts of one style each."""
    ends = sorted({0, len(text), *(at for span in text.spans for at in (span.start, span.end))})
    for start, end in pairwise(at for at in ends if at <= len(text)):
        named = [span.style for span in text.spans if span.start <= start and span.end >= end]
        styles = [Style.parse(s) if isinstance(s, str) else s for s in (text.style, *named)]
        yield text.plain[start:end], Style.combine(styles)
