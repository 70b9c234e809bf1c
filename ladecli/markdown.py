"""Pieces of a reply to styled rows of a terminal: styled as they come, never rewritten.

Every character of the reply is shown, Markdown's marks included, so nothing moves when a mark
closes.  Prose that is wider than the screen is wrapped at words; code and tables are folded at
its edge.  Rows are the same however the text was cut into pieces.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator

from rich.cells import cell_len, chop_cells
from rich.style import Style
from rich.text import Text

from .events import Piece
from .highlight import Highlighter, lexer_for
from .visualize import printable, style_of

TAB = 4
"""Cells between tab stops, as code in replies expects them."""
_BOLD, _ITALIC, _UNDERLINE, _DIM, _CODE, _MARK, _THOUGHT = (1 << bit for bit in range(7))
"""How a character looks, as bits."""

# A line's beginning: spaces, quotes and items, then what makes it a heading or opens code.
_LEAD = re.compile(r" +|>|(?:[-+*]|\d{1,9}[.)]) ")
_HEADING = re.compile(r"#{1,6} ")
_FENCE = re.compile(r"```|~~~")
_INFO, _FENCE_AND_INFO = re.compile("[^`]*"), re.compile("`*[^`]*")
_UNDECIDED = re.compile(r"#{1,6}|[-+*]|\d{1,9}[.)]?|`{1,2}|~{1,2}|<[/a-z]*|")
_CLOSING = re.compile(r"([ >]*)(`{3,}|~{3,}) *")
_REMEMBERED = 120
"""Characters of a line in which a fence must stand."""
_OPEN_TAG, _CLOSE_TAG = "<think>", "</think>"

_LONGEST = 3
"""Marks in a row; more of them are a ruler, not emphasis."""
_INLINE = re.compile(r"\\[*_`]+|([*_`])\1*|\\|[^*_`\\]+")
_SEPARATORS = frozenset(",;:?)]}、。，；：？）」』】")  # noqa: RUF001

# Units that rows are made of.  Wide characters break anywhere, but before what closes and after
# what opens.
_WIDE = "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uffe6"
_NO_START = "、。，．：；！？）」』】》〉〕］｝…‥・ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々～％"  # noqa: RUF001
_NO_END = "（「『【《〈〔［｛"  # noqa: RUF001
_UNITS = re.compile(
    rf" +|[{_NO_END}]*[^ {_NO_END}{_NO_START}]??[{_WIDE}][{_NO_START}!),.:;?\]}}%'\"]*|[^ {_WIDE}]+"
)


@functools.lru_cache(maxsize=1024)
def _style(source: str | None, look: int, markdown: bool, colours: bool) -> Style:
    """The style of a character; with `colours`, its colour is free to tell the source."""
    if not markdown:
        look &= _THOUGHT
    style = Style(
        bold=True if look & (_BOLD | _MARK) or (look & _CODE and colours) else None,
        italic=True if look & _ITALIC else None,
        underline=True if look & _UNDERLINE else None,
        dim=True if look & (_DIM | _THOUGHT) else None,
        color="magenta" if look & (_CODE | _MARK) and not colours else None,
    )
    return style + Style.parse(style_of(source)) if colours else style


class MarkdownRenderer:
    """Renders a reply to rows, at a cost that depends on the new characters alone.

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
        self._width = 80
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
        self._width, rows = max(width, 2), list[Text]()
        for piece in pieces:
            for number, part in enumerate(printable(piece.text).split("\n")):
                if number:
                    rows += self._end_line()
                self._append(part, piece.source)
        return rows + self._completed()

    def tail(self, width: int) -> Text:
        """The unfinished row; never wider than `width`, which is that of the last `feed`."""
        held = len(self._text) - len(self._looks)
        row = self._row(0, len(self._text), None, held)
        if row.cell_len > width:
            row.truncate(width)
        return row

    def flush(self, width: int) -> list[Text]:
        """The rest of the text, at its end."""
        self._width = max(width, 2)
        return self._end_line() if self._text else []

    # A line.

    def _begin_line(self) -> None:
        self._text = ""  # what is not in a complete row yet
        self._sources: list[str | None] = []  # by character
        self._looks: list[int] = []  # by character, as far as they are decided
        self._line = ""  # the line's beginning
        self._before = ""  # the last two characters that are decided
        self._column = 0  # cells so far
        self._look = 0  # of the whole line
        self._hang = 0  # cells before all rows of the line but the first
        self._continued = False  # whether rows of it are complete
        self._at_start = not self._fence
        self._in_info = False  # after an opening fence
        self._wraps = not (self._fence and self.markdown)
        self._strong = self._em = ""  # the marks that opened them
        self._ticks = 0

    def _append(self, text: str, source: str | None) -> None:
        for number, part in enumerate(text.split("\t")):
            if number:
                part = " " * (TAB - self._column % TAB) + part
            self._text += part
            self._sources += [source] * len(part)
            self._column += cell_len(part)
            if len(self._line) < _REMEMBERED:
                self._line += part

    def _completed(self) -> list[Text]:
        """The rows that are complete: something came that does not fit after them."""
        self._decide(at_end=False)
        if self._at_start:
            return []
        *full, (start, _) = self._breaks(len(self._looks))
        rows = self._full_rows(full)
        self._text = self._text[start:]
        del self._sources[:start], self._looks[:start]
        return rows

    def _full_rows(self, breaks: list[tuple[int, int]]) -> list[Text]:
        rows = []
        for start, end in breaks:
            rows.append(self._row(start, end, ""))
            self._continued = True
        return rows

    def _end_line(self) -> list[Text]:
        rows = self._completed()
        self._decide(at_end=True)
        *full, (start, end) = self._breaks(len(self._text))
        rows += self._full_rows(full)
        rows.append(self._row(start, end, "\n"))
        if self._in_info:
            self._open_fence()
        elif self._fence and self._closes():
            self._fence, self._highlighter = "", None
        self._begin_line()
        return rows

    # What characters look like.

    def _decide(self, at_end: bool) -> None:
        """Decide on the look of characters as far as what follows cannot change it.

        Args:
            at_end: whether the line ends here.
        """
        if self._at_start and not self.thinking and self._text.lstrip(" ").startswith(_OPEN_TAG):
            lead = len(self._text) - len(self._text.lstrip(" "))
            self._set(lead, 0)
            self.thinking = True
            self._set(len(_OPEN_TAG), _DIM)
        while True:
            text, end = self._text, len(self._text)
            close = text.find(_CLOSE_TAG, len(self._looks)) if self.thinking else -1
            if close >= 0:
                end = close
            elif self.thinking and not at_end:
                end -= _partial(text, _CLOSE_TAG)
            if self._at_start:
                self._decide_start(end, at_end or close >= 0)
            if not self._at_start:
                self._decide_rest(end, at_end or close >= 0)
            if close < 0:
                return
            self._set(len(_CLOSE_TAG), _DIM)
            # What the reasoning left open does not reach into the answer.
            self.thinking = self._at_start = self._in_info = False
            self._fence, self._highlighter, self._look = "", None, 0
            self._strong = self._em = ""
            self._ticks = 0

    def _decide_start(self, end: int, at_end: bool) -> None:
        """The marks with which a line begins."""
        while match := _LEAD.match(self._text, len(self._looks), end):
            lead = match[0]
            self._set(len(lead), 0 if lead[0] == " " else _DIM if lead == ">" else _MARK)
            if lead == ">":
                self._look |= _DIM | _ITALIC
        at = len(self._looks)
        if not at_end and _UNDECIDED.fullmatch(self._text, at, end):
            return
        self._at_start = False
        if self.markdown:
            self._hang = cell_len(self._text[:at])
        if match := _HEADING.match(self._text, at, end):
            self._look |= _BOLD | (_UNDERLINE if len(match[0]) == 2 else 0)
            self._set(len(match[0]), _DIM)
            self._hang = 0
        elif _FENCE.match(self._text, at, end) and at + 3 < _REMEMBERED:
            self._in_info = True
            self._set(3, _DIM)
        elif self._text.startswith("|", at) and self.markdown:
            self._wraps = False

    def _decide_rest(self, end: int, at_end: bool) -> None:
        if self._in_info:
            # Also the rest of a longer fence.
            info = _FENCE_AND_INFO if self._before[-1:] == "`" else _INFO
            match = info.match(self._text, len(self._looks), end)
            assert match is not None
            self._set(len(match[0]), _DIM)
            if len(self._looks) == end:
                return
            # Code in the line, not a line that opens code.
            self._in_info = False
            self._ticks = len(re.findall("^[^`]*(`+)", self._line)[0])
        elif self._fence:
            self._set(end - len(self._looks), 0)
        while match := _INLINE.match(self._text, len(self._looks), end):
            run, mark = match[0], match[1]
            if match.end() == end and not at_end and (run == "\\" or mark) and len(run) <= _LONGEST:
                return  # what follows decides
            if not mark or (self._ticks and mark != "`"):
                self._set(len(run), self._inline_look)
            else:
                self._set(len(run), self._mark(mark, len(run), self._text[match.end() : end][:1]))

    def _set(self, count: int, look: int) -> None:
        """Give the next characters their look."""
        at = len(self._looks)
        look |= self._look | (_THOUGHT if self.thinking else 0)
        self._looks += [look] * count
        self._before = (self._before + self._text[at : at + count])[-2:]

    @property
    def _inline_look(self) -> int:
        if self._ticks:
            return _CODE
        return (_BOLD if self._strong else 0) | (_ITALIC if self._em else 0)

    def _mark(self, mark: str, count: int, after: str) -> int:
        """Open or close what marks in a row stand for; how they themselves look.

        It is optimistic: what opens counts although nothing may ever close it.

        Args:
            mark: one of * _ `.
            count: how many there are.
            after: the character after them; "" at the end of the line.
        """
        outer, before, left = self._inline_look, self._before, count
        if mark == "`":
            if self._ticks not in (0, count):
                return _CODE
            self._ticks = 0 if self._ticks else count
            return _CODE | _DIM
        if count > _LONGEST:
            return outer
        # An underscore inside a word is a letter.
        if before[-1:].strip() and (mark != "_" or not _is_wordy(after)):
            if left >= 2 and self._strong == mark:
                self._strong, left = "", left - 2
            if left and self._em == mark and left != 2:
                self._em, left = "", left - 1
        # What closes or separates does not begin an emphasis, and f(*args) has none.
        called = len(before) == 2 and before[1] == "(" and _is_wordy(before[0])
        opens = after.strip() and not _is_wordy(before[-1:]) and after not in _SEPARATORS
        if left and opens and not called:
            if left >= 2 and not self._strong:
                self._strong, left = mark, left - 2
            if left == 1 and not self._em:
                self._em, left = mark, 0
        return outer | self._inline_look | _DIM if left < count else outer

    # Code.

    def _open_fence(self) -> None:
        match = _FENCE.search(self._line)
        assert match is not None
        at, info = match.start(), self._line[match.start() :].lstrip(match[0][0])
        # Only the place of an item's mark counts for the indentation.
        self._fence = " " * at + self._line[at : len(self._line) - len(info)]
        lexer = lexer_for(info)
        self._highlighter = Highlighter(lexer) if lexer else None

    def _closes(self) -> bool:
        """Whether this line of code is a closing fence."""
        match, mark = _CLOSING.fullmatch(self._line), self._fence.lstrip()
        return (
            match is not None
            and len(self._line) < _REMEMBERED
            and match[2].startswith(mark)
            and len(match[1]) <= len(self._fence) - len(mark) + 3
        )

    # Rows.

    @property
    def _indent(self) -> int:
        """Cells before the next row's text."""
        return min(self._hang, self._width // 2) if self._continued and self._wraps else 0

    def _breaks(self, end: int) -> list[tuple[int, int]]:
        """Where the text up to `end` is broken: start and end of each row; spaces between are lost.

        The last one is the unfinished row.
        """
        text, indent, hang = self._text[:end], self._indent, min(self._hang, self._width // 2)
        if not self._wraps:
            return [*_folded(text, 0, self._width, self._width)]
        rows: list[tuple[int, int]] = []
        start = filled = 0  # the row's text, up to its last word
        used, is_bare = indent, True
        for match in _UNITS.finditer(text):
            if match[0][0] == " ":
                if is_bare and not (rows or self._continued):
                    # An indentation; one cell must remain for the text.
                    used = filled = min(len(match[0]), self._width - 1)
                continue
            cells = cell_len(match[0])
            gap = match.start() - filled if not is_bare else 0
            if used + gap + cells > self._width and not is_bare:
                rows.append((start, filled))
                start, used, gap = match.start(), hang, 0
            if used + gap + cells > self._width:
                *full, last = _folded(
                    match[0], match.start(), self._width - used, self._width - hang
                )
                for part in full:
                    rows.append((start, part[1]))
                    start = part[1]
                used, cells, gap = hang, cell_len(text[slice(*last)]), 0
            used, filled, is_bare = used + gap + cells, match.end(), False
        return [*rows, (start, end)]

    def _row(self, start: int, end: int, ending: str | None, held: int = 0) -> Text:
        """A row.

        Args:
            start, end: its text.
            ending: what ends it: a newline, "" where it goes on, None while it is unfinished.
            held: characters at its end whose look is not decided.
        """
        if self._wraps and not self._continued:
            # An indentation; one cell must remain for the text.
            spaces = end - start - len(self._text[start:end].lstrip(" "))
            start += max(spaces - self._width + 1, 0)
        plain, indent = self._text[start:end], " " * self._indent
        row = Text(indent, no_wrap=True)
        full = not self._wraps and cell_len(plain) == self._width
        row.end = "" if full and ending == "" else "\n"
        waiting = [self._look | (_THOUGHT if self.thinking else 0)] * held
        looks = [*self._looks[start : end - held], *waiting]
        if self._fence and not self._in_info and self.markdown and plain:
            mark = self._fence[-1]
            if self._closes():
                looks = [look | _DIM * (c == mark) for c, look in zip(plain, looks, strict=True)]
            elif self._highlighter and not self.colours:
                base = _style(None, looks[0], True, False)
                for text, style in self._highlighter.paint(plain, ending):
                    row.append(text, base + style or None)
                return row
        styles = map(
            _style,
            self._sources[start:end],
            looks,
            itertools.repeat(self.markdown),
            itertools.repeat(self.colours),
        )
        for style, group in itertools.groupby(
            zip(plain, styles, strict=False), lambda pair: pair[1]
        ):
            row.append("".join(character for character, _ in group), style or None)
        return row


def _is_wordy(character: str) -> bool:
    """A character that marks do not open after: one of a word written with spaces around."""
    return (character.isalnum() or character == "_") and cell_len(character) < 2


def _partial(text: str, tag: str) -> int:
    """Characters at the end of a text that may become a tag."""
    return max(count for count in range(len(tag)) if text.endswith(tag[:count]))


def _folded(text: str, offset: int, first: int, width: int) -> Iterator[tuple[int, int]]:
    """Start and end of the parts of a text that is folded at a number of cells, the first at
    another one; the last part may be empty."""
    start = offset
    if first < width and text:
        head = chop_cells(text, max(first, 1))[0]
        if cell_len(head) > first:
            head = ""
        yield start, start + len(head)
        start, text = start + len(head), text[len(head) :]
    for part in chop_cells(text, max(width, 1)) if text else [""]:
        yield start, start + len(part)
        start += len(part)
