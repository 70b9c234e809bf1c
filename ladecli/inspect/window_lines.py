"""The lookahead window of a step as lines: its rows, where they come from, what they close."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from ..cells import ELLIPSIS, cropped, padded, section, styled, visible
from ..decoder.events import Detail
from ..visualize import style_of
from .trace import Trace

_NGRAM_STYLE = style_of("trajectory")
_CELLS = (14, 10, 7, 5)
"""The most cells for one token: the first with which all columns fit, else the last but one."""


def moved_on(before: Detail, columns: int) -> tuple[tuple[int, ...], ...]:
    """The rows that follow from a step's window and outputs, one Jacobi iteration on.

    Row r takes row r + 1 and the last one the outputs.  While the window fills, row 0 stays
    and every row drops its first column instead.

    Args:
        before: of the step before.
        columns: of the window that follows; it may have been made narrower.
    """
    rows = (*before.window, before.outputs)
    rows = rows[1:] if before.closed else tuple(row[1:] for row in rows)
    return tuple(row[:columns] for row in rows)


def origins(trace: Trace, number: int) -> list[int | None]:
    """For each row of a step's window the step whose outputs it is; None for the first row.

    Cell (0, 0) does not count: it is the current token, whatever the window had there.
    """
    made: list[int | None] = []
    before: Detail | None = None
    last = 0
    for place, step in enumerate(trace.steps[:number], start=1):
        if step.detail is None or not step.detail.window:
            continue
        detail = step.detail
        if before is not None and _follows(before, detail):
            made = [*(made[1:] if before.closed else made), last]
        else:  # the first window, or a new one after steps without any
            made = [None] * len(detail.window)
        before, last = detail, place
    return made


def _follows(before: Detail, detail: Detail) -> bool:
    expected = moved_on(before, len(detail.outputs))
    cells = [cell for row in detail.window for cell in row][1:]
    return cells == [cell for row in expected for cell in row][1:]


def window_lines(trace: Trace, number: int, width: int) -> list[Text]:
    """The window of a step that has details, its last row's outputs below.

    Args:
        trace: the recorded generation.
        number: of the step.
        width: of a line, in cells.
    """
    detail = trace.steps[number - 1].detail
    if detail is None or not detail.window:
        return [section("window", "none in this step", width)]
    labels = [f"↑ step {made}" if made else "↑ start" for made in origins(trace, number)]
    labels.append(f"= step {number}")
    about = f"{len(detail.outputs)} columns; every row is what a step put out, and moves up"
    if not detail.closed:
        rows = "1 row" if len(detail.window) == 1 else f"{len(detail.window)} rows"
        about = f"filling: {rows} so far, one more with every step"
    lines = [section("window", about, width)]
    cells = [[Text(visible(trace.spell(token))) for token in row] for row in detail.window]
    cells[0][0].stylize("bold reverse")
    cells.append([styled(visible(trace.spell(t)), _NGRAM_STYLE) for t in detail.outputs])
    margin = max(map(len, labels)) + 2
    for label, row in zip(labels, _columns(cells, width - margin), strict=True):
        lines.append(padded(styled(label, "dim"), margin) + row)
    return lines


def _columns(rows: list[list[Text]], width: int) -> list[Text]:
    """Rows of cells as lines: columns as wide as they need, those without room left out."""
    wanted = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    cell = next((c for c in _CELLS if _needed(wanted, c) <= width), _CELLS[-2])
    count = len(wanted)
    while count > 1 and _needed(wanted[:count], cell) > width - (count < len(wanted)) * 2:
        count -= 1
    more = [ELLIPSIS, " "][count == len(wanted)]
    lines = []
    for row in rows:
        line = Text()
        for text, want in zip(row[:count], wanted, strict=False):
            line += padded(text, min(want, cell)).append("  ")
        line.append(more, "dim").rstrip()
        lines.append(cropped(line, width))
    return lines


def _needed(wanted: Sequence[int], cell: int) -> int:
    return sum(min(want, cell) + 2 for want in wanted) - 2


def ngram_lines(detail: Detail, spell: Callable[[int], str], width: int, height: int) -> list[Text]:
    """The n-grams that a step closed; nothing for a step without a window.

    Args:
        detail: of the step.
        spell: the text of a token id.
        width: of a line, in cells.
        height: the most lines of n-grams.
    """
    if not detail.window:
        return []
    if not detail.closed:
        return [section("n-grams", "none yet: the window is not full", width)]
    lines, line, shown = list[Text](), Text(), 0
    for ngram in detail.ngrams:
        words = styled(" ".join(visible(spell(token)) for token in ngram), _NGRAM_STYLE)
        if len(line) and line.cell_len + 3 + words.cell_len > width:
            lines.append(line)
            line = Text()
            if len(lines) == height:
                break
        line += (styled(" · ", "dim") if len(line) else Text()) + words
        shown += 1
    lines += [line] if len(line) else []
    about = f"{len(detail.ngrams)} closed, the window's columns"
    if shown < len(detail.ngrams):
        about = f"{len(detail.ngrams)} closed, the first {shown} of the window's columns"
    return [section("n-grams", about, width), *(cropped(line, width) for line in lines)]
