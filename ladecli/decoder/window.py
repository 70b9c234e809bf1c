"""The paper's 2-D window of Jacobi iterations, and the pool of its n-grams (Fu et al., 2024).

With the current token at position p, row r and column j stand at position p + r + j.  For W = 4
columns and N = 4, rows by their offsets r + j, and in brackets what cell (2, 1) sees:

    row 0    [0] [1]  2   3      the oldest guesses; (0, 0) is the current token
    row 1     1  [2]  3   4      the model's answers to row 0, one step later
    row 2     2  [3]  4   5      its answers to row 1
    outputs   3   4   5   6      its answers to row 2

A cell (r, j) sees row 0 up to column j and rows 1 to r of its own column.  Their positions follow
one another without a gap, so that they read as a text of guesses, each of which answers the one
before it.  So does a column with its output: that is an n-gram, of which the model has written
all but the first token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

WINDOW_START = 512
"""The window starts with tokens drawn from this many at the end of the prompt."""


@dataclass(frozen=True, slots=True)
class WindowBlock:
    """The window's part of a step: every cell but (0, 0), row by row; n cells."""

    tokens: list[int]
    """The cells' tokens, length n."""
    offsets: Sequence[int]
    """The cells' positions relative to the current token, length n."""
    seen: tuple[int, ...]
    """For each cell its row of the mask: bit j says that it sees cell j (see `layout`).  All cells
    see the current token and the text before it, which have no bits."""
    last_row: Sequence[int]
    """Indices of the cells in the last row; -1 stands for the current token, which is in the last
    row when there is only one."""
    filled: bool
    """Whether all rows are there, so that the outputs close n-grams."""

    def rows(self, current: int) -> tuple[tuple[int, ...], ...]:
        """Return the cells as rows of the window, with the current token in cell (0, 0)."""
        cells, columns = [current, *self.tokens], len(self.last_row)
        return tuple(tuple(cells[i : i + columns]) for i in range(0, len(cells), columns))

    def part(self, columns: range) -> WindowBlock:
        """The cells that one of several ranks computes: those of some neighbouring columns, at
        least one, and row 0 up to them."""
        whole = len(self.last_row)
        kept, offsets, seen, last_row = _shape((len(self.tokens) + 1) // whole, whole, columns)
        tokens = [self.tokens[cell] for cell in kept]
        return WindowBlock(tokens, offsets, seen, last_row, self.filled)


@lru_cache(maxsize=256)
def _shape(rows: int, columns: int, part: range) -> tuple[tuple[int, ...], ...]:
    """The cells that some columns of a block need: their indices, offsets and mask, and the indices
    among them of the last row.  All that depends on the size of the block alone."""
    # Cell (0, 0) is the current token and has no place in the block.
    cells = [
        (r, j)
        for r in range(rows)
        for j in range(columns)
        if (r or j) and (j in part or (r == 0 and j < part.stop))
    ]
    seen = tuple(
        sum(
            1 << key
            for key, (s, i) in enumerate(cells)
            if (s == 0 and i <= j) or (i == j and s <= r)
        )
        for r, j in cells
    )
    place = {cell: index for index, cell in enumerate(cells)}
    last_row = tuple(place.get((rows - 1, j), -1) for j in part)
    kept = tuple(r * columns + j - 1 for r, j in cells)
    return kept, tuple(r + j for r, j in cells), seen, last_row


class LookaheadWindow:
    """N - 1 rows of W tokens, advanced by one Jacobi iteration per step.

    The window starts as a single row that is N - 2 columns too wide.  Each of the first N - 2 steps
    adds a row and takes a column away, so that every n-gram that `advance` reports was closed by
    real iterations.

    Args:
        window: W, columns of the full window.
        ngram: N, so that the full window has N - 1 rows.
        prompt: the first row is drawn from its end, as the paper does: any guess will do, and its
            words are likelier than others.  Always the same way, for ranks must draw alike.
    """

    def __init__(self, window: int, ngram: int, prompt: Sequence[int]) -> None:
        self._full_rows = ngram - 1
        draw, start = random.Random(0).choice, prompt[-WINDOW_START:]
        self.rows: list[list[int]] = [[draw(start) for _ in range(window + ngram - 2)]]

    @property
    def filled(self) -> bool:
        """Whether all rows are there, so that the last row's outputs close n-grams."""
        return len(self.rows) == self._full_rows

    @property
    def max_offset(self) -> int:
        """The largest offset of a cell from the current token."""
        return len(self.rows) + len(self.rows[0]) - 2

    def block(self, current: int) -> WindowBlock:
        """Return the cells to feed in the next step, beside the current token."""
        rows = self.rows
        rows[0][0] = current  # its place in the window
        columns = len(rows[0])
        _, offsets, seen, last_row = _shape(len(rows), columns, range(columns))
        tokens = [token for row in rows for token in row]
        return WindowBlock(tokens[1:], offsets, seen, last_row, self.filled)

    def advance(self, outputs: Sequence[int]) -> list[tuple[int, ...]]:
        """Move on by one Jacobi iteration and one column, however many tokens were accepted.

        After k accepted tokens the guesses stand k positions late, which costs little: they are
        there for their n-grams, not for their place.  Advancing by k gave fewer tokens per step.

        Args:
            outputs: the model's tokens after the cells of the last row, of a step with the last
                `block`.

        Returns:
            The W n-grams that these close; none while the window fills.
        """
        closed = [*zip(*self.rows, outputs, strict=True)] if self.filled else []
        self.rows.append(list(outputs))
        if len(self.rows) > self._full_rows:
            del self.rows[0]
        else:
            # Not full yet: keep row 0, and move all rows on by one column.
            self.rows = [row[1:] for row in self.rows]
        return closed


class NgramPool:
    """N-grams under their first token: the oldest goes first, a repeated one is renewed."""

    def __init__(self) -> None:
        # A dict keeps the order of insertion: the first continuation is the oldest.
        self._continuations: dict[int, dict[tuple[int, ...], None]] = {}

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """All n-grams, under each first token the oldest first."""
        for token, continuations in self._continuations.items():
            for continuation in continuations:
                yield token, *continuation

    def add(self, ngram: Sequence[int], guesses: int) -> None:
        """Add or renew one n-gram of two tokens or more; at most G stay under its first token."""
        if guesses == 0:
            return
        continuations = self._continuations.setdefault(ngram[0], {})
        continuation = tuple(ngram[1:])
        continuations.pop(continuation, None)
        while len(continuations) >= guesses:
            del continuations[next(iter(continuations))]
        continuations[continuation] = None

    def candidates(self, token: int) -> Iterator[tuple[int, ...]]:
        """Return the continuations of `token`, the newest first."""
        return reversed(self._continuations.get(token, {}))
