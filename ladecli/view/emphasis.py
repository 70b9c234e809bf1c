"""Emphasis of Markdown on one line: which of it is open, decided mark by mark, never back."""

from __future__ import annotations

from rich.cells import cell_len

BOLD, ITALIC, UNDERLINE, DIM, CODE, ACCENT, THOUGHT = (1 << bit for bit in range(7))
"""How a run looks, as bits; `typeset` gives them styles."""

_SEPARATORS = frozenset(",;:?)]}、。，；：？）」』】")  # noqa: RUF001

MARKS = frozenset("*_`")
LONGEST = 3
"""Marks in a row; more of them are a ruler, not emphasis."""


class Emphasis:
    """What is open on a line.  It is optimistic: what opens counts although none may close it."""

    def __init__(self) -> None:
        self._strong = self._em = ""  # the mark that opened it
        self._ticks = 0

    @property
    def in_code(self) -> bool:
        """Whether only backticks mean anything here."""
        return self._ticks > 0

    @property
    def look(self) -> int:
        """How text looks here."""
        if self._ticks:
            return CODE
        return (BOLD if self._strong else 0) | (ITALIC if self._em else 0)

    def meet(self, mark: str, count: int, before: str, after: str) -> int:
        """Open or close what `count` marks in a row stand for.

        Args:
            mark: one of `MARKS`.
            count: how many there are.
            before: up to two characters before them, fewer at the start of the line.
            after: the character behind them; "" at the end of the line.

        Returns:
            How the marks themselves look.
        """
        outer = self.look
        if mark == "`":
            return self._meet_ticks(count)
        if count > LONGEST:
            return outer
        rest = count
        if _closes(mark, before, after):
            if rest >= 2 and self._strong == mark:
                self._strong, rest = "", rest - 2
            if rest and self._em == mark and rest != 2:
                self._em, rest = "", rest - 1
        if rest and _opens(mark, before, after):
            if rest >= 2 and not self._strong:
                self._strong, rest = mark, rest - 2
            if rest == 1 and not self._em:
                self._em, rest = mark, 0
        changed = rest < count
        return outer | self.look | DIM if changed else outer

    def _meet_ticks(self, count: int) -> int:
        if not self._ticks:
            self._ticks = count
        elif self._ticks == count:
            self._ticks = 0
        else:
            return CODE
        return CODE | DIM


def _space(character: str) -> bool:
    return not character or character.isspace()


def _wordy(character: str) -> bool:
    """A character that marks do not open behind: one of a word written with spaces around."""
    return (character.isalnum() or character == "_") and cell_len(character) < 2


def _opens(mark: str, before: str, after: str) -> bool:
    if _space(after) or _wordy(before[-1:]):
        return False
    if before[-1:] == "(" and _wordy(before[:1]) and len(before) == 2:
        return False  # f(*args)
    # What closes or separates does not begin an emphasis.
    return after not in _SEPARATORS


def _closes(mark: str, before: str, after: str) -> bool:
    if _space(before[-1:]):
        return False
    # snake_case: an underscore inside a word is a letter.
    return mark != "_" or not _wordy(after)
