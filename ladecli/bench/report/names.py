"""Names for which a chart has room, no two of them alike."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from ..wording import clean
from .summary import Summary

MOST = 32
"""Letters of a name beside a chart of a page."""


def beside(summary: Summary, most: int = MOST) -> dict[str, str]:
    """What contenders are called beside a chart, by name.

    The cells of a sweep go without the strategy that all of them begin with.

    Args:
        summary: of their result.
        most: letters that there is room for.
    """
    spent = (each.contender for each in summary.result.time_spent)
    known = dict.fromkeys([*(each.name for each in summary.result.contenders), *spent])
    shared = _shared(summary)
    labels = [
        summary.label(name).removeprefix(shared if summary.contender(name).cell else "")
        for name in known
    ]
    return dict(zip(known, fitted(labels, most), strict=True))


def _shared(summary: Summary) -> str:
    """What the names of all cells of a sweep begin with; empty if that is nothing."""
    cells = [each for each in summary.result.contenders if each.cell]
    begins = {f"{clean(each.strategy)} " for each in cells}
    shared = begins.pop() if len(begins) == 1 else ""
    return shared if all(summary.label(each.name).startswith(shared) for each in cells) else ""


def fitted(names: Sequence[str], most: int = MOST) -> list[str]:
    """Names that are cut where they are too long, in the middle if that leaves no two alike.

    Where every cut makes some alike, those that are cut have a number.
    """
    for tail in sorted(range(most), key=lambda tail: abs(tail - most // 2)):
        found = [_cut(name, most, tail) for name in names]
        if len(set(found)) == len(set(names)):
            return found
    marks = [f" ({number})" for number in range(1, len(names) + 1)]
    return [
        name if cell_len(name) <= most else f"{_cut(name, most - len(mark), 0)}{mark}"
        for name, mark in zip(names, marks, strict=True)
    ]


def _cut(name: str, most: int, tail: int) -> str:
    """A name of at most so many letters, of which the last so many are its end."""
    if cell_len(name) <= most:
        return name
    begin, end = name[: most - 1 - tail], name[len(name) - tail :]
    # Some letters are as wide as two.
    while cell_len(begin) > most - 1 - tail:
        begin = begin[:-1]
    while cell_len(end) > tail:
        end = end[1:]
    return f"{begin}…{end}"
