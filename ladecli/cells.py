"""Text measured in terminal cells: made visible, wrapped, and split into runs of one style."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

_NAMED = {" ": "␣", "\n": "⏎", "\t": "⇥", "\x7f": "␡"}
_UNSEEN = "·"
# These have no width of their own, but what they join would fall apart without them.
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"
_WORD = re.compile(r"[^\S\n]+|[^\s]+")


@lru_cache(maxsize=4096)
def visible(spelling: str) -> str:
    """One token's text with every character in sight: ␣ for a space, ⏎ for a line break.

    Nothing of it can drive a terminal or change the direction of the text around it.
    """
    return "".join(map(_visible_character, spelling)) or "∅"


def _visible_character(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if character < " ":
        return chr(0x2400 + ord(character))  # the picture of this control character
    if character in _JOINERS:
        return character
    match unicodedata.category(character):
        case "Zs":
            return "␣"
        case "Cc" | "Cf" | "Cn" | "Co" | "Cs" | "Zl" | "Zp":
            return _UNSEEN
    return character


def styled(text: str, style: str = "") -> Text:
    """`text` in a style that ends with it: what is appended later does not take it on."""
    return Text().append(text, style)


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
