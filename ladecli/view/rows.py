"""Rows of a terminal, filled run by run: wrapped at words or folded, final once complete."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from rich.cells import cell_len, get_character_cell_size

if TYPE_CHECKING:
    from rich.text import Text

Tag: TypeAlias = tuple[str | None, int]
"""What a run is: its draft source, and how it looks (bits of `typeset`)."""

Run: TypeAlias = tuple[str, Tag]
"""Characters of one tag."""

Dress: TypeAlias = Callable[[list[Run], str | None], "Text"]
"""Makes a row of runs; given what ends it: a newline, "" where it is folded, None for a tail."""

PLAIN: Tag = (None, 0)

# Characters of one cell that nothing joins: they are handled many at a time.
_SIMPLE = "!-~\u00a0-\u00ac\u00ae-\u02ff\u0370-\u0482"
_PARTS = re.compile(rf" +|[{_SIMPLE}]+|.", re.DOTALL)
_IS_SIMPLE = re.compile(f"[{_SIMPLE}]")

_JOINER = "\N{ZERO WIDTH JOINER}"
_LONGEST_CLUSTER = 32  # a tower of combining marks must not cost its height squared

# Text without spaces breaks anywhere but before what closes and behind what opens.
_NO_START = frozenset(
    "、。，．：；！？）」』】》〉〕］｝…‥・ーぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮ々ゝヽ〜～％"  # noqa: RUF001
    "!),.:;?]}%'\"”’»"  # noqa: RUF001
)
_NO_END = frozenset("（「『【《〈〔［｛([{“‘«")  # noqa: RUF001


def _is_flag_half(text: str) -> bool:
    return len(text) == 1 and "\U0001f1e6" <= text <= "\U0001f1ff"


class Rows:
    """The row that grows at the end of a text, and those that are complete.

    What was said last is always in reach: a row is complete only when something came that does
    not fit behind it.  So rows do not depend on how the text was cut into runs.

    Args:
        dress: makes the rows' texts.
    """

    def __init__(self, dress: Dress) -> None:
        self._dress = dress
        self._done: list[Text] = []
        self.width = 80
        self.begin(wrap=True)

    def begin(self, *, wrap: bool) -> None:
        """Start a line, wrapped at words or else folded at the edge like a terminal does."""
        self.wrap = wrap
        self.hang = 0  # cells before all rows of this line but the first
        self._lead = 0  # cells that stand before this row
        self._clear()

    def _clear(self) -> None:
        # A row is: the lead, what may not move any more, a gap, a word that still may.
        self._row: list[Run] = []
        self._gap: list[Run] = []
        self._word: list[Run] = []
        self._row_cells, self._gap_cells, self._word_cells = self._lead, 0, 0
        self._bare = True  # nothing but space before the word
        self._last, self._last_cells = "", 0

    @property
    def empty(self) -> bool:
        """Whether nothing was said on this row yet."""
        return not (self._row or self._gap or self._word)

    def resize(self, width: int) -> None:
        """Lay the unfinished row out anew if the width changed; complete rows stay."""
        if width == self.width:
            return
        self.width = max(width, 1)
        runs = [*self._row, *self._gap, *self._word]
        self._lead = min(self._lead, self.width // 2)
        self._clear()
        for text, tag in runs:
            self.put(text, tag)

    def collect(self) -> list[Text]:
        """The rows completed since the last call."""
        done, self._done = self._done, []
        return done

    def tail(self, held: list[Run]) -> Text:
        """The unfinished row, with as much of `held` behind it as fits."""
        runs = self._runs()
        room = self.width - sum(cell_len(text) for text, _ in runs)
        for text, tag in held:
            room -= cell_len(text)
            if room >= 0:
                runs.append((text, tag))
        return self._dress(runs, None)

    def end(self) -> None:
        """Complete the row at the end of a line."""
        self._row, self._gap, self._word = self._runs(), [], []
        self._lead = 0
        self._complete("\n")

    def put(self, text: str, tag: Tag) -> None:
        """Add text without control characters."""
        for part in _PARTS.findall(text):
            if part[0] == " ":
                self._space(part, tag)
            elif _IS_SIMPLE.match(part):
                self._place(part, len(part), tag, simple=True)
            else:
                self._character(part, tag)

    def _runs(self) -> list[Run]:
        runs = [(" " * self._lead, PLAIN)] if self._lead else []
        runs += self._row
        room = self.width - self._row_cells - self._word_cells
        for text, tag in self._gap:
            runs.append((text[: max(room, 0)], tag))
            room -= len(text)
        return runs + self._word

    def _space(self, text: str, tag: Tag) -> None:
        if not self.wrap:
            self._place(text, len(text), tag, simple=True)
        elif self._bare and not self._word:
            # An indentation; one cell must remain for the text.
            text = text[: max(self.width - 1 - self._row_cells, 0)]
            self._row.append((text, tag))
            self._row_cells += len(text)
        else:
            self._settle()
            self._gap.append((text, tag))
            self._gap_cells += len(text)

    def _character(self, character: str, tag: Tag) -> None:
        """Add one character that may join the one before it, or be wide."""
        place = self._word if self.wrap else self._row
        if not (place and self._joins(character)):
            # Marks that no character carries would never fill a row.
            least = 1 if len(self._last) >= _LONGEST_CLUSTER else 0
            self._place(character, max(cell_len(character), least), tag, simple=False)
            return
        text, tag = place.pop()
        cluster, rest = self._last + character, text[: -len(self._last)]
        cells = max(cell_len(cluster), self._last_cells)
        if self.wrap:
            self._word_cells -= self._last_cells
        else:
            self._row_cells -= self._last_cells
        if rest:
            place.append((rest, tag))
        self._last = place[-1][0][-1] if place else ""
        self._last_cells = cell_len(self._last)
        self._place(cluster, cells, tag, simple=False)

    def _joins(self, character: str) -> bool:
        last = self._last
        if not last or len(last) >= _LONGEST_CLUSTER:
            return False
        return (
            last[-1] == _JOINER
            or get_character_cell_size(character) == 0
            or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
            or (_is_flag_half(character) and _is_flag_half(last))
        )

    def _place(self, text: str, cells: int, tag: Tag, *, simple: bool) -> None:
        """Add a run of simple characters, or one character of any kind."""
        if self.wrap and self._word and self._breaks(text, cells if not simple else 1):
            self._settle()
        while self._row_cells + self._gap_cells + self._word_cells + cells > self.width:
            if self.wrap and not self._bare:
                self._complete("")
                continue
            room = self.width - self._row_cells - self._word_cells
            if simple and room > 0:
                self._word.append((text[:room], tag))
                self._word_cells += room
                text, cells = text[room:], cells - room
            elif not self._row and not self._word:
                break  # a wide character on a screen of one column
            self._settle()
            self._complete("")
        if self.wrap:
            self._word.append((text, tag))
            self._word_cells += cells
        else:
            self._row.append((text, tag))
            self._row_cells += cells
        self._last, self._last_cells = (text[-1], 1) if simple else (text, cells)

    def _breaks(self, text: str, cells: int) -> bool:
        """Whether a row may end between the word and `text`."""
        wide = cells == 2 or self._last_cells == 2
        return wide and text[0] not in _NO_START and self._last[:1] not in _NO_END

    def _settle(self) -> None:
        """Take the word as a part of this row."""
        self._row += self._gap
        self._row += self._word
        self._row_cells += self._gap_cells + self._word_cells
        self._bare = self._bare and not self._word
        self._gap, self._word = [], []
        self._gap_cells = self._word_cells = 0
        self._last, self._last_cells = "", 0

    def _complete(self, ending: str) -> None:
        """Put the row, without gap and word, to the complete ones; those two start the next."""
        word, word_cells, last = self._word, self._word_cells, (self._last, self._last_cells)
        lead = [(" " * self._lead, PLAIN)] if self._lead else []
        text = self._dress([*lead, *self._row], ending)
        # A full row needs no newline to end: so the terminal knows that the line goes on, and
        # copies it as one.
        full = not self.wrap and self._row_cells == self.width
        text.end = "" if full and not ending else "\n"
        self._done.append(text)
        self._lead = min(self.hang, self.width // 2) if self.wrap and not ending else 0
        self._clear()
        self._word, self._word_cells = word, word_cells
        self._last, self._last_cells = last
