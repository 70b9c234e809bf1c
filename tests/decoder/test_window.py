"""The lookahead window and the paper's pool: shape, masks, n-grams, and the order of removal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.window import LookaheadWindow, NgramPool, WindowBlock


def window_of(window: int, ngram: int, start: list[int] | None = None) -> LookaheadWindow:
    return LookaheadWindow(window, ngram, start or [1])


def sees(block: WindowBlock, query: int) -> list[int]:
    return [key for key in range(len(block.tokens)) if block.seen[query] >> key & 1]


@given(st.integers(1, 6), st.integers(2, 7))
def test_fills_in_n_minus_2_steps(window: int, ngram: int) -> None:
    lookahead = window_of(window, ngram)
    for step in range(ngram - 2):
        columns = window + ngram - 2 - step
        assert not lookahead.filled
        assert [len(row) for row in lookahead.rows] == [columns] * (step + 1)
        assert lookahead.advance(range(columns)) == []
    assert lookahead.filled
    assert [len(row) for row in lookahead.rows] == [window] * (ngram - 1)


@given(st.integers(1, 6), st.integers(2, 7), st.integers(0, 5))
def test_a_cell_sees_a_text_without_gaps(window: int, ngram: int, steps: int) -> None:
    """Row 0 up to its column, then its own column down to itself: positions without a gap."""
    lookahead = window_of(window, ngram)
    for _ in range(steps):
        lookahead.advance(lookahead.rows[-1])
    block, columns = lookahead.block(7), len(lookahead.rows[0])
    cells = [(r, j) for r in range(len(lookahead.rows)) for j in range(columns)][1:]
    assert list(block.offsets) == [r + j for r, j in cells]
    assert max(block.offsets, default=0) == lookahead.max_offset
    for query, (r, j) in enumerate(cells):
        seen = {cells[key] for key in sees(block, query)}
        assert seen == {(0, i) for i in range(1, j + 1)} | {(s, j) for s in range(r + 1)} - {(0, 0)}
        assert sorted([0, *(r + j for r, j in seen)]) == list(range(block.offsets[query] + 1))
    last = [-1 if cell < 0 else cells[cell] for cell in block.last_row]
    assert last == [
        (r, j) if r + j else -1 for r, j in [(len(lookahead.rows) - 1, j) for j in range(columns)]
    ]


def test_ngrams_are_columns_closed_by_the_outputs() -> None:
    lookahead = window_of(3, 4)
    lookahead.rows = [[0, 11, 12], [20, 21, 22], [30, 31, 32]]
    assert lookahead.block(9).rows(9) == ((9, 11, 12), (20, 21, 22), (30, 31, 32))
    assert lookahead.advance([40, 41, 42]) == [(9, 20, 30, 40), (11, 21, 31, 41), (12, 22, 32, 42)]
    assert lookahead.rows == [[20, 21, 22], [30, 31, 32], [40, 41, 42]]


def test_the_oldest_ngram_is_dropped_and_a_repeated_one_renewed() -> None:
    pool = NgramPool()
    for token in (2, 3, 2, 4):
        pool.add((1, token), 2)
    assert list(pool.candidates(1)) == [(4,), (2,)]
    assert [*pool] == [(1, 2), (1, 4)]
