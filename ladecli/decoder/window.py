"""The 2-D lookahead window of Jacobi iterations (Fu et al., 2024, section 3.1).

With the current token at position p, row r and column j stand at position p + r + j.  Row 0,
column 0 is the current token itself.  A cell (r, j) sees row 0 up to column j and rows 1 to r
of its own column: a diagonal of guesses from successive iterations, which reads as text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class WindowBlock:
    """The window's part of a step: every cell but (0, 0), row by row.

    Attributes:
        tokens: the cells' tokens, length n.
        offsets: the cells' positions relative to the current token, length n.
        seen: for each cell its row of the mask: bit j says that it sees cell j (see `mask_bits`).
            All cells see the current token and the text before it, which have no bits.
        last_row: indices of the cells in the last row; -1 stands for the current token,
            which is in the last row when there is only one.
        last_tokens: for each cell of the last row, the token before it and its own.
        filled: whether all rows are there, so that the outputs close n-grams.
    """

    tokens: list[int]
    offsets: Sequence[int]
    seen: tuple[int, ...]
    last_row: Sequence[int]
    last_tokens: list[tuple[int, int]]
    filled: bool

    def rows(self, current: int) -> tuple[tuple[int, ...], ...]:
        """The cells as rows of the window, with the current token in cell (0, 0)."""
        cells, columns = [current, *self.tokens], len(self.last_row)
        return tuple(tuple(cells[i : i + columns]) for i in range(0, len(cells), columns))

    def part(self, columns: range) -> WindowBlock:
        """What one rank computes: the cells of some neighbouring columns, and row 0 up to them.

        Args:
            columns: at least one; the last row is left with these.
        """
        whole = len(self.last_row)
        kept, seen, last_row = _part(self.seen, whole, columns)
        return WindowBlock(
            [self.tokens[cell] for cell in kept],
            [self.offsets[cell] for cell in kept],
            seen,
            last_row,
            [self.last_tokens[column] for column in columns],
            self.filled,
        )


@lru_cache(maxsize=64)
def _shape(rows: int, columns: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Offsets, mask and last row of a block, which depend on the window's size alone."""
    cells = [(r, j) for r in range(rows) for j in range(columns)][1:]
    seen = tuple(
        sum(
            1 << key
            for key, (s, i) in enumerate(cells)
            if (s == 0 and i <= j) or (i == j and s <= r)
        )
        for r, j in cells
    )
    last_row = tuple((rows - 1) * columns + j - 1 for j in range(columns))
    return tuple(r + j for r, j in cells), seen, last_row


@lru_cache(maxsize=256)
def _part(
    seen: tuple[int, ...], whole: int, columns: range
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Cells of a block that some columns need, their mask, and the indices of the last row."""
    cells = len(seen)
    kept = tuple(
        cell
        for cell in range(cells)
        # Cell (0, 0) is the current token and has no place in the block.
        if (column := (cell + 1) % whole) in columns or (cell + 1 < whole and column < columns.stop)
    )
    place = {cell: index for index, cell in enumerate(kept)}
    first = cells - whole
    left = tuple(
        sum(1 << index for index, key in enumerate(kept) if seen[cell] >> key & 1) for cell in kept
    )
    return kept, left, tuple(place.get(first + column, -1) for column in columns)


class LookaheadWindow:
    """N - 1 rows of W tokens, advanced by one Jacobi iteration per step.

    The window starts as a single row of `start` tokens that is N - 2 columns too wide.  Each
    of the first N - 2 steps adds a row and takes a column away, so that every n-gram that
    `ngrams` reports was closed by real iterations.

    Args:
        window: W, columns of the full window.
        ngram: N, so that the full window has N - 1 rows.
        start: tokens to draw the first row from, usually those of the prompt.
        rng: draws them.
    """

    def __init__(self, window: int, ngram: int, start: Sequence[int], rng: random.Random) -> None:
        self._full_rows = ngram - 1
        self.rows: list[list[int]] = [[rng.choice(start) for _ in range(window + ngram - 2)]]

    @property
    def filled(self) -> bool:
        """Whether all rows are there, so that the last row's outputs close n-grams."""
        return len(self.rows) == self._full_rows

    @property
    def max_offset(self) -> int:
        """The largest offset of a cell from the current token."""
        return len(self.rows) + len(self.rows[0]) - 2

    def block(self, current: int) -> WindowBlock:
        """The cells to feed in the next step, beside the current token."""
        rows = [[current, *self.rows[0][1:]], *self.rows[1:]]
        offsets, seen, last_row = _shape(len(rows), len(rows[0]))
        # A cell of the last row continues the cell above it, or in a single row the one before.
        above = rows[-2] if len(rows) > 1 else [current, *rows[0][:-1]]
        last_tokens = list(zip(above, rows[-1], strict=True))
        tokens = [token for row in rows for token in row]
        return WindowBlock(tokens[1:], offsets, seen, last_row, last_tokens, self.filled)

    def ngrams(self, current: int, outputs: Sequence[int]) -> list[tuple[int, ...]]:
        """The W n-grams that the last row's `outputs` close; none while the window fills.

        Args:
            current: the current token of the step that made the outputs.
            outputs: the model's token after each cell of the last row.
        """
        if not self.filled:
            return []
        columns = zip(*self.rows, outputs, strict=True)
        first = (current, *next(columns)[1:])
        return [first, *columns]

    def advance(self, outputs: Sequence[int]) -> None:
        """Move on by one Jacobi iteration and one column, however many tokens were accepted.

        Advancing by the number of accepted tokens gave fewer tokens per step.  Cell (0, 0) is a
        placeholder from now on: `block` and `ngrams` take the current token.
        """
        self.rows.append(list(outputs))
        if len(self.rows) > self._full_rows:
            del self.rows[0]
        else:
            # Not full yet: keep row 0, and move all rows on by one column.
            self.rows = [row[1:] for row in self.rows]

    def narrow(self, columns: int) -> None:
        """Drop the columns furthest ahead, down to a window of `columns`."""
        spare = self._full_rows - len(self.rows)
        self.rows = [row[: columns + spare] for row in self.rows]
