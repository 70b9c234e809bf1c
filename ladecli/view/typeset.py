"""Pieces of a reply to styled rows: the text is styled as it comes, never rewritten.

Every character that was said is shown, Markdown's marks included, so nothing moves when a mark
closes.  Prose that is wider than the screen is broken at words.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from ..events import Piece
from ..visualize import printable, style_of
from .emphasis import (
    ACCENT,
    BOLD,
    CODE,
    DIM,
    ITALIC,
    LONGEST,
    MARKS,
    THOUGHT,
    UNDERLINE,
    Emphasis,
)
from .rows import Rows, Run, Tag

if TYPE_CHECKING:
    from .highlight import Highlighter

TAB = 4
"""Cells between tab stops, as code in replies expects them."""

# What is decided character by character stands alone.
_RUNS = re.compile(r"[\n\t<*_`\\]| +|[^\n\t<*_`\\ ]+")
# A line's beginning that may yet become a block's mark, and what it has become.
_MAYBE = re.compile(r"#{1,6}|[-+*]|\d{1,9}[.)]?|`{1,2}|~{1,2}")
_HEADING = re.compile(r"#{1,6} ")
_ITEM = re.compile(r"([-+*]|\d{1,9}[.)]) ")
_FENCES = ("```", "~~~")
_CLOSING = re.compile(r"([ >]*)(`{3,}|~{3,}) *")
_REMEMBERED = 120  # characters of a line, in which a fence must stand

_OPEN_TAG, _CLOSE_TAG = "<think>", "</think>"


class _Mode(enum.Enum):
    """What the next characters of a line are."""

    START = enum.auto()  # the line's mark, if it has one
    PROSE = enum.auto()
    INFO = enum.auto()  # what stands behind an opening fence
    CODE = enum.auto()


@functools.lru_cache(maxsize=1024)
def _style(tag: Tag, markdown: bool, colours: bool) -> Style:
    """The style of a run; with `colours`, its colour is free to tell the source."""
    source, look = tag
    if not markdown:
        look &= THOUGHT
    style = Style(
        bold=True if look & (BOLD | ACCENT) or (look & CODE and colours) else None,
        italic=True if look & ITALIC else None,
        underline=True if look & UNDERLINE else None,
        dim=True if look & (DIM | THOUGHT) else None,
        color="magenta" if look & (CODE | ACCENT) and not colours else None,
    )
    return style + Style.parse(style_of(source)) if colours else style


class Typesetter:
    """Sets a reply in rows, at a cost that depends on the new characters alone.

    Rows are the same however the text was cut into pieces.

    Args:
        markdown: whether marks have a style; may be switched at any time, then the rows
            from the unfinished one on change.
        colours: whether text has the colour of its source; may be switched too.
        thinking: whether the reply begins inside of its reasoning.
    """

    def __init__(self, markdown: bool, colours: bool, thinking: bool = False) -> None:
        self.markdown = markdown
        self.colours = colours
        self.thinking = thinking
        self._rows = Rows(self._dress)
        self._tag: list[Run] = []  # a tag so far
        self._fence = ""  # the opening fence with its indentation, in code
        self._highlighter: Highlighter | None = None
        self._begin_line()

    def feed(self, pieces: Iterable[Piece], width: int) -> list[Text]:
        """Add text; returns the rows that it completed.

        A row whose `end` is empty fills the screen's width, and goes on in the next one.

        Args:
            pieces: in order.
            width: of the screen, in cells; the unfinished row is laid out for it.
        """
        self._rows.resize(width)
        for piece in pieces:
            for run in _RUNS.findall(printable(piece.text)):
                self._take(run, piece.source)
        return self._rows.collect()

    def tail(self, width: int) -> Text:
        """The unfinished row; never wider than `width`, which is that of the last `feed`."""
        look = self._line_look
        waiting = [*self._held, *self._tag]  # characters whose meaning is open
        text = self._rows.tail([(run, (source, look)) for run, (source, _) in waiting])
        if cell_len(text.plain) > width:
            text.truncate(width)
        return text

    def flush(self, width: int) -> list[Text]:
        """The rest of the text, at its end."""
        self._rows.resize(width)
        self._release_tag()
        if not self._rows.empty or self._held:
            self._newline()
        return self._rows.collect()

    def _begin_line(self) -> None:
        in_code = bool(self._fence)
        self._mode = _Mode.CODE if in_code else _Mode.START
        self._rows.begin(wrap=not (in_code and self.markdown))
        self._emphasis = Emphasis()
        self._look = 0  # of the whole line
        self._held: list[Run] = []  # marks so far
        self._line = ""  # its beginning
        self._before = ""  # the last two characters
        self._cells = 0

    # Reasoning: tags are looked for in front of everything else.

    def _take(self, run: str, source: str | None) -> None:
        if self._tag:
            for character in run:
                if self._tag:
                    self._grow_tag(character, source)
                else:
                    self._take(character, source)
        elif run == "<" and (self.thinking or not (self._line.strip() or self._held)):
            self._tag.append((run, (source, 0)))
        else:
            self._put(run, source)

    def _grow_tag(self, character: str, source: str | None) -> None:
        wanted = _CLOSE_TAG if self.thinking else _OPEN_TAG
        so_far = "".join(text for text, _ in self._tag) + character
        if not wanted.startswith(so_far) or (self._fence and not self.thinking):
            self._release_tag()
            self._take(character, source)
            return
        self._tag.append((character, (source, 0)))
        if so_far == wanted:
            tag, self._tag = self._tag, []
            self._decide()
            self.thinking = True
            for text, (origin, _) in tag:
                self._emit(text, origin, DIM)
            self.thinking = wanted == _OPEN_TAG
            # What the reasoning left open does not reach into the answer.
            self._fence, self._highlighter = "", None
            self._emphasis, self._look = Emphasis(), 0
            self._mode = _Mode.START if self._mode is _Mode.START else _Mode.PROSE

    def _release_tag(self) -> None:
        tag, self._tag = self._tag, []
        for text, (source, _) in tag:
            self._put(text, source)

    # Lines and what they begin with.

    def _put(self, run: str, source: str | None) -> None:
        if run == "\n":
            self._newline()
            return
        if run == "\t":
            run = " " * (TAB - (self._cells + len(self._held)) % TAB)
        for at, character in enumerate(run):
            if self._mode is not _Mode.START:
                self._continue(run[at:], source)
                return
            self._start(character, source)

    def _continue(self, run: str, source: str | None) -> None:
        if self._mode is _Mode.PROSE:
            self._prose(run, source)
        elif self._mode is _Mode.CODE:
            self._emit(run, source, 0)
        elif run == "`" and (ticks := self._ticks_before_info()):
            # Code in the line, not a line that opens code.
            self._mode = _Mode.PROSE
            self._emphasis.meet(run, ticks, "", "")
            self._prose(run, source)
        else:
            self._emit(run, source, DIM)

    def _ticks_before_info(self) -> int:
        """The length of this line's fence of backticks, if more than that was said."""
        start = self._line.find("`" * 3)
        info = self._line[start:].lstrip("`")
        return len(self._line) - start - len(info) if start >= 0 and info else 0

    def _start(self, character: str, source: str | None) -> None:
        """One more character of a line that may begin with a mark."""
        self._held.append((character, (source, 0)))
        mark = "".join(text for text, _ in self._held)
        if _MAYBE.fullmatch(mark):
            return
        held, self._held = self._held, []
        if mark == " ":
            self._emit_all(held, 0)
        elif mark == ">":
            self._emit_all(held, DIM)
            self._look |= DIM | ITALIC
        elif _ITEM.fullmatch(mark):
            self._emit_all(held, ACCENT)
        elif _HEADING.fullmatch(mark):
            self._look |= BOLD | (UNDERLINE if len(mark) == 2 else 0)
            self._emit_all(held, DIM)
            self._mode = _Mode.PROSE
        elif mark in _FENCES and len(self._line) + len(mark) < _REMEMBERED:
            self._mode = _Mode.INFO
            self._emit_all(held, DIM)
        else:
            self._mode = _Mode.PROSE
            if mark == "|" and self.markdown:
                self._rows.wrap = False
            for text, (origin, _) in held:
                self._prose(text, origin)
        if self._mode is _Mode.START and self.markdown:
            self._rows.hang = self._cells

    def _decide(self) -> None:
        """Settle what was held back, because nothing of the line follows."""
        if self._held and self._mode is _Mode.START:
            held, self._held = self._held, []
            self._mode = _Mode.PROSE
            for text, (source, _) in held:
                self._prose(text, source)
        self._resolve("")

    def _newline(self) -> None:
        self._decide()
        self._rows.end()
        if self._mode is _Mode.INFO:
            self._open_fence()
        elif self._mode is _Mode.CODE and self._closes():
            self._fence, self._highlighter = "", None
        self._begin_line()

    def _open_fence(self) -> None:
        line = self._line
        at = min(at for mark in _FENCES if (at := line.find(mark)) >= 0)
        marks = len(line) - at - len(line[at:].lstrip(line[at]))
        # Only the place of an item's mark counts for the indentation.
        self._fence = " " * at + line[at : at + marks]
        from .highlight import Highlighter, lexer_for

        lexer = lexer_for(line[at + marks :])
        self._highlighter = Highlighter(lexer) if lexer else None

    def _closes(self) -> bool:
        """Whether this line of code is a closing fence."""
        match = _CLOSING.fullmatch(self._line)
        mark = self._fence.lstrip()
        return (
            match is not None
            and len(self._line) < _REMEMBERED
            and match[2].startswith(mark)
            and len(match[1]) <= len(self._fence) - len(mark) + 3
        )

    # Prose.

    def _prose(self, run: str, source: str | None) -> None:
        if self._held and (run != self._held[0][0] or len(self._held) > LONGEST):
            self._resolve(run[0])
        if run in MARKS and not self._literal(run):
            self._held.append((run, (source, 0)))
        else:
            self._emit(run, source, self._emphasis.look)

    def _literal(self, mark: str) -> bool:
        """Whether a mark stands for itself: in code, escaped, or in a ruler."""
        if self._emphasis.in_code:
            return mark != "`"
        if self._held:
            return False
        return self._before[-1:] in ("\\", mark)

    def _resolve(self, after: str) -> None:
        """Decide on the marks held back, by the character behind them."""
        if self._held:
            held, self._held = self._held, []
            look = self._emphasis.meet(held[0][0], len(held), self._before, after)
            self._emit_all(held, look)

    def _emit_all(self, runs: list[Run], look: int) -> None:
        for text, (source, _) in runs:
            self._emit(text, source, look)

    def _emit(self, text: str, source: str | None, look: int) -> None:
        self._rows.put(text, (source, look | self._line_look))
        self._cells += cell_len(text)
        self._before = (self._before + text)[-2:]
        if len(self._line) < _REMEMBERED:
            self._line += text

    @property
    def _line_look(self) -> int:
        return self._look | (THOUGHT if self.thinking else 0)

    # Looks.

    def _dress(self, runs: list[Run], ending: str | None) -> Text:
        row = Text(no_wrap=True)
        markdown, colours = self.markdown, self.colours
        if self._mode is _Mode.CODE and markdown and runs:
            if self._closes():
                runs = [(text, (source, look | DIM)) for text, (source, look) in runs]
            elif self._highlighter and not colours:
                self._paint(row, runs, ending)
                return row
        styled = [(text, _style(tag, markdown, colours)) for text, tag in runs]
        for style, group in itertools.groupby(styled, itemgetter(1)):
            row.append("".join(text for text, _ in group), style or None)
        return row

    def _paint(self, row: Text, runs: list[Run], ending: str | None) -> None:
        """Code in the colours of its language."""
        assert self._highlighter is not None
        plain = "".join(text for text, _ in runs)
        base = _style((None, runs[0][1][1]), True, False)
        for text, style in self._highlighter.paint(plain, ending):
            row.append(text, base + style or None)
