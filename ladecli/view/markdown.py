"""Render a reply as styled rows of a terminal, row by row, without rewriting earlier rows.

Every character of the reply is shown, including Markdown's marks, so nothing moves when a mark is
closed.  An open mark styles the rest of its line, so complete rows can be printed before their line
has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate, chain

from rich.cells import chop_cells
from rich.console import Console
from rich.text import Text

from ..errors import printable
from ..events import Piece
from ..visualize import Sections, style_of

TAB = 4
"""Cells between tab stops, as is usual for code in replies."""

# The start of a line: indentation, quotes and list items; then a heading or a code fence.
_LEAD = re.compile(r" *(?P<quote>(?:> ?)*) *(?P<items>(?:(?:[-+*]|\d{1,9}[.)]) +)*)")
_HEADING = re.compile(r"(#{1,6}) ")
_FENCE = re.compile(r"(`{3,}|~{3,})([^`]*)$")

# No mark opens in the middle of a word, as in 2*3, after the ( of a call, or before punctuation
# that separates or closes.
_INLINE = re.compile(
    r"(?<![`\\])(?P<ticks>`+)(?P<code>[^`].*?)(?:(?<!`)(?P=ticks)(?!`)|$)"
    r"|(?<![\w*\\])(?<!\w\()(?P<mark>\*{1,3}|_{1,3})(?P<text>[^\s*_,;:?)\]}].*?)"
    r"(?:(?<![\s\\])(?P=mark)(?![\w*])|$)",
    re.ASCII,
)
_EMPHASIS = {1: "italic", 2: "bold", 3: "bold italic"}

_LONGEST = 5000
"""The most characters of a line that are laid out together, since the cost is quadratic."""
_WRAPPER = Console()
"""A console that Rich's wrapping requires, although it needs it only for justified text."""


class MarkdownRenderer:
    """Renders a reply to rows.

    Args:
        markdown: True if marks have a style; a change applies from the unfinished row on.
        colours: True if text has the colour of its source; may be changed, too.
        reasoning: True if reasoning is shown, dim and without styles.
    """

    def __init__(self, markdown: bool, colours: bool, reasoning: bool = True) -> None:
        self.markdown = markdown
        self.colours = colours
        self.reasoning = reasoning
        self._sections = Sections(reasoning)
        self._dim = False  # the line is reasoning, or a label
        self._line: list[Piece] = []  # the unfinished line
        self._start = 0  # the number of its characters in complete rows
        self._fence = ""  # the opening fence, inside of code

    def feed(self, pieces: Iterable[Piece], width: int) -> tuple[list[Text], Text]:
        """Add text; return the completed rows, and the unfinished one.

        A row whose `end` is empty fills the screen's width, and continues in the next row.

        Args:
            pieces: in order.
            width: of the screen, in cells.
        """
        complete: list[Text] = []
        for span in chain.from_iterable(map(self._sections.of, pieces)):
            self._dim = span.dim  # changes only between lines
            first, *others = printable(span.text).split("\n")
            complete += self._add(first, span.source, width)
            for part in others:
                complete += self._end_line(width)
                complete += self._add(part, span.source, width)
        *rows, unfinished = self._rows(width)
        return complete + rows, unfinished

    def flush(self, width: int) -> list[Text]:
        """Return the rows of the unfinished line, at the end of the text."""
        return self._end_line(width) if any(piece.text for piece in self._line) else []

    def _add(self, text: str, source: str | None, width: int) -> list[Text]:
        """Add text to the line; return rows that were split off because the line is too long."""
        complete = []
        room = _LONGEST - len(self._plain())
        while len(text) > room:
            self._line.append(Piece(text[:room], source))
            text = text[room:]
            *rows, _ = self._rows(width)
            line = self._styled()
            complete += rows if self._start else [line]  # such as blanks alone
            rest = line.plain[self._start :] if self._start else ""
            self._line, self._start = [Piece(rest, source)], 0
            room = _LONGEST - len(rest)
        self._line.append(Piece(text, source))
        return complete

    def _end_line(self, width: int) -> list[Text]:
        rows, plain = self._rows(width), self._plain()
        if self._closes(plain):
            self._fence = ""
        elif not self._fence and not self._dim and (opening := _opening(plain)):
            self._fence = opening[1]
        self._line, self._start = [], 0
        return rows

    def _rows(self, width: int) -> list[Text]:
        """Return the new rows of the line, and set `_start` to the start of the last one."""
        line, width = self._styled(), max(width, 2)
        if self.markdown and (self._fence or line.plain.lstrip(" ").startswith("|")):
            return self._folded(line, width)
        return self._wrapped(line, width)

    def _folded(self, line: Text, width: int) -> list[Text]:
        """Return rows of code or a table: the terminal wraps them, so that copies are unbroken."""
        rest = line[self._start :]
        parts = chop_cells(rest.plain, width)[:-1]
        rows = list(rest.divide(accumulate(map(len, parts))))
        for row in rows[:-1]:
            row.end = ""
        self._start = len(line) - len(rows[-1])
        return rows

    def _wrapped(self, line: Text, width: int) -> list[Text]:
        """Return rows of prose, wrapped at words and indented below the mark of a list or quote."""
        lead = _LEAD.match(line.plain)
        hang = lead.end() if lead and self.markdown else 0
        if hang > (width - 1) // 2:
            hang = 0
        rows = []
        while True:
            at = max(self._start, hang)
            # One row at a time, from a bounded part of the line: rows must not depend on how much
            # of the line has arrived.
            end = at + 16 * width
            row, *others = line[at:end].wrap(_WRAPPER, width - hang, overflow="fold")
            following = line.plain[at + len(row.plain.rstrip()) :].lstrip()
            rows.append((Text(" " * hang) if self._start else line[:hang]).append_text(row))
            # Blanks, and accents without letters, fill no row.
            if not following or (not others and end >= len(line)):
                return rows
            rows[-1].rstrip()
            self._start = len(line) - len(following)

    def _plain(self) -> str:
        return "".join(piece.text for piece in self._line)

    # Styles.

    def _styled(self) -> Text:
        """Return the unfinished line with styles."""
        line = Text(no_wrap=True)
        for piece in self._line:
            line.append(piece.text, style_of(piece.source) if self.colours else None)
        if self._dim or (self.markdown and self._closes(line.plain)):
            line.stylize("dim")
        elif self.markdown and not self._fence:
            self._style_prose(line)
        line.expand_tabs(TAB)
        return line

    def _style_prose(self, line: Text) -> None:
        lead = _LEAD.match(line.plain)
        assert lead is not None
        # If sources have colours, Markdown has none.
        line.stylize("bold" if self.colours else "bold magenta", *lead.span("items"))
        if lead["quote"]:
            line.stylize("dim", *lead.span("quote"))
            line.stylize("dim italic", lead.end("quote"))
        if heading := _HEADING.match(line.plain, lead.end()):
            line.stylize("bold underline" if len(heading[1]) == 1 else "bold", lead.end())
            line.stylize("dim", *heading.span())
        elif opening := _opening(line.plain):
            line.stylize("dim", *opening.span())
        else:
            self._style_inline(line, lead.end(), len(line))

    def _style_inline(self, line: Text, start: int, end: int) -> None:
        """Style emphasis and code between two characters; marks are dim."""
        for match in _INLINE.finditer(line.plain, start, end):
            if match["ticks"]:
                inner = match.span("code")
                line.stylize("bold" if self.colours else "magenta", *match.span())
            else:
                inner = match.span("text")
                line.stylize(_EMPHASIS[len(match["mark"])], *match.span())
                self._style_inline(line, *inner)
            line.stylize("dim", match.start(), inner[0])
            line.stylize("dim", inner[1], match.end())

    def _closes(self, plain: str) -> bool:
        """Return True if a line is the closing fence of the open code."""
        mark = plain.strip(" >")
        return bool(self._fence) and mark.startswith(self._fence) and len({*mark}) == 1


def _opening(plain: str) -> re.Match[str] | None:
    """Return the match of the fence and the language, if a line opens code."""
    lead = _LEAD.match(plain)
    return _FENCE.match(plain, lead.end()) if lead else None
