"""The paper's 2-D window of Jacobi iterations, and the pool of its n-grams (Fu et al., 2024).

The cell in row r and column j is at offset r + j from the current token.  For W = 4 columns and
N = 4, the offsets of the cells, with brackets around those that cell (2, 1) sees:

    row 0    [0] [1]  2   3      the oldest guesses; (0, 0) is the current token
    row 1     1  [2]  3   4      the model's predictions after row 0, one step later
    row 2     2  [3]  4   5      its predictions after row 1
    outputs   3   4   5   6      its predictions after row 2

A cell (r, j) sees row 0 up to column j and rows 1 to r of its own column: a text of guesses without
a gap, each predicted after the one before it.  A column with its output is an n-gram; the model
has written all of its tokens but the first.
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
    """For each cell its row of the mask: bit i says that it sees cell i (see `layout`).  All cells
    also see the current token and the text before it, which have no bits here."""
    last_row: Sequence[int]
    """Indices of the cells in the last row; -1 stands for the current token, if the only row is
    row 0."""
    filled: bool
    """True if the window has all rows, so that the outputs complete n-grams."""

    def rows(self, current: int) -> tuple[tuple[int, ...], ...]:
        """Return the cells as rows of the window, with the current token in cell (0, 0)."""
        cells, columns = [current, *self.tokens], len(self.last_row)
        return tuple(tuple(cells[i : i + columns]) for i in range(0, len(cells), columns))

    def part(self, columns: range) -> WindowBlock:
        """Return the part of the block that one of several ranks computes: a range of columns, at
        least one, and the cells of row 0 before them, which they see."""
        width = len(self.last_row)
        kept, offsets, seen, last_row = _shape((len(self.tokens) + 1) // width, width, columns)
        tokens = [self.tokens[cell] for cell in kept]
        return WindowBlock(tokens, offsets, seen, last_row, self.filled)


@lru_cache(maxsize=256)
def _shape(rows: int, columns: int, part: range) -> tuple[tuple[int, ...], ...]:
    """Return what does not depend on the tokens of a block, for some of its columns.

    Args:
        rows, columns: the size of the whole block.
        part: the columns, all of them unless ranks share a block.

    Returns:
        The indices in the whole block of the cells that these columns need; then `offsets`, `seen`
        and `last_row` of `WindowBlock`.
    """
    # Cell (0, 0) is the current token, which is not in the block.
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
    indices = {cell: index for index, cell in enumerate(cells)}
    last_row = tuple(indices.get((rows - 1, j), -1) for j in part)
    kept = tuple(r * columns + j - 1 for r, j in cells)
    return kept, tuple(r + j for r, j in cells), seen, last_row


class LookaheadWindow:
    """N - 1 rows of W tokens, advanced by one Jacobi iteration per step.

    The window starts as a single row that is N - 2 columns too wide.  Each of the first N - 2 steps
    adds a row and removes a column, so that every n-gram that `advance` returns comes from real
    iterations.

    Args:
        window: W, columns of the full window.
        ngram: N, so that the full window has N - 1 rows.
        prompt: the first row is drawn from its end, as in the paper: any guess will do, and words
            of the prompt are likelier than others.  The seed is fixed, since ranks must draw the
            same tokens.
    """

    def __init__(self, window: int, ngram: int, prompt: Sequence[int]) -> None:
        self._full_rows = ngram - 1
        draw, start = random.Random(0).choice, prompt[-WINDOW_START:]
        self.rows: list[list[int]] = [[draw(start) for _ in range(window + ngram - 2)]]

    @property
    def filled(self) -> bool:
        """True if the window has all rows, so that the last row's outputs complete n-grams."""
        return len(self.rows) == self._full_rows

    @property
    def max_offset(self) -> int:
        """The largest offset of a cell from the current token."""
        return len(self.rows) + len(self.rows[0]) - 2

    def block(self, current: int) -> WindowBlock:
        """Return the cells to feed in the next step, beside the current token."""
        rows = self.rows
        rows[0][0] = current
        columns = len(rows[0])
        _, offsets, seen, last_row = _shape(len(rows), columns, range(columns))
        tokens = [token for row in rows for token in row]
        return WindowBlock(tokens[1:], offsets, seen, last_row, self.filled)

    def advance(self, outputs: Sequence[int]) -> list[tuple[int, ...]]:
        """Move on by one Jacobi iteration and one column, however many tokens were accepted.

        After k accepted tokens the guesses are k positions late.  That costs little, because they
        serve to make n-grams and not to continue the text.  Advancing by k columns gave fewer
        tokens per step.

        Args:
            outputs: the model's tokens after the last row of the last `block`.

        Returns:
            The W n-grams that these complete; none while the window fills.
        """
        ngrams = [*zip(*self.rows, outputs, strict=True)] if self.filled else []
        self.rows.append(list(outputs))
        if len(self.rows) > self._full_rows:
            del self.rows[0]
        else:
            # Not full yet: keep row 0, and remove the first column.
            self.rows = [row[1:] for row in self.rows]
        return ngrams


class NgramPool:
    """N-grams by their first token; the oldest is dropped first, and a repeated one is renewed."""

    def __init__(self) -> None:
        # A dict keeps the order of insertion: the first continuation is the oldest.
        self._continuations: dict[int, dict[tuple[int, ...], None]] = {}

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Iterate over all n-grams, for each first token the oldest first."""
        for token, continuations in self._continuations.items():
            for continuation in continuations:
                yield token, *continuation

    def add(self, ngram: Sequence[int], guesses: int) -> None:
        """Add or renew one n-gram of two tokens or more; at most `guesses` with its first token
        stay."""
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
