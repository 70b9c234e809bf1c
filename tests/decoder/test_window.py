"""The 2-D window: its shape while it fills, what a cell sees, which n-grams it closes."""

from __future__ import annotations

import random

import pytest

from ladecli.decoder.window import LookaheadWindow


def window_of(window: int, ngram: int, start: list[int] | None = None) -> LookaheadWindow:
    return LookaheadWindow(window, ngram, start or [1], random.Random(0))


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("ngram", [2, 3, 6])
def test_fills_in_n_minus_2_steps(window: int, ngram: int) -> None:
    lookahead = window_of(window, ngram)
    for step in range(ngram - 2):
        assert not lookahead.filled
        assert [len(row) for row in lookahead.rows] == [window + ngram - 2 - step] * (step + 1)
        outputs = list(range(window + ngram - 2 - step))
        assert lookahead.ngrams(7, outputs) == []
        lookahead.advance(outputs)
    assert lookahead.filled
    assert [len(row) for row in lookahead.rows] == [window] * (ngram - 1)


def test_cells_see_row_0_to_their_left_and_their_own_column() -> None:
    lookahead = window_of(3, 4)
    while not lookahead.filled:
        lookahead.advance(lookahead.rows[-1])
    block = lookahead.block(7)
    cells = [(r, j) for r in range(3) for j in range(3)][1:]
    assert list(block.offsets) == [r + j for r, j in cells]
    assert list(block.last_row) == [cells.index((2, j)) for j in range(3)]
    for query, (r, j) in enumerate(cells):
        seen = {cells[key] for key in range(len(cells)) if block.visible[query, key]}
        row_0 = {(0, i) for i in range(1, j + 1)}
        column = {(s, j) for s in range(1, r + 1)}
        assert seen == row_0 | column


def test_what_a_cell_sees_reads_as_text() -> None:
    """The positions that a cell sees, with the current token at 0, have no gap."""
    block = window_of(5, 5).block(7)
    for query in range(len(block.tokens)):
        seen = [o for key, o in enumerate(block.offsets) if block.visible[query, key]]
        assert sorted([0, *seen]) == list(range(block.offsets[query] + 1))


def test_what_stands_before_the_last_row() -> None:
    lookahead = window_of(3, 4)
    lookahead.rows = [[0, 11, 12], [20, 21, 22], [30, 31, 32]]
    assert lookahead.block(9).last_tokens == [(20, 30), (21, 31), (22, 32)]
    lookahead.rows = [[0, 11, 12], [20, 21, 22]]
    assert lookahead.block(9).last_tokens == [(9, 20), (11, 21), (12, 22)]
    lookahead.rows = [[0, 11, 12]]
    assert lookahead.block(9).last_tokens == [(9, 9), (9, 11), (11, 12)]


def test_ngrams_are_columns_closed_by_the_outputs() -> None:
    lookahead = window_of(3, 4)
    lookahead.rows = [[0, 11, 12], [20, 21, 22], [30, 31, 32]]
    assert lookahead.ngrams(9, [40, 41, 42]) == [
        (9, 20, 30, 40),
        (11, 21, 31, 41),
        (12, 22, 32, 42),
    ]
    lookahead.advance([40, 41, 42])
    assert lookahead.rows == [[20, 21, 22], [30, 31, 32], [40, 41, 42]]


def test_a_window_of_bigrams_is_one_row_that_ends_at_the_current_token() -> None:
    lookahead = window_of(3, 2)
    assert lookahead.filled
    assert list(lookahead.block(7).last_row) == [-1, 0, 1]
    lookahead.rows = [[0, 11, 12]]
    assert lookahead.ngrams(9, [5, 6, 7]) == [(9, 5), (11, 6), (12, 7)]


def test_starts_from_the_prompt() -> None:
    lookahead = window_of(30, 5, start=[3, 4])
    assert set(lookahead.rows[0]) == {3, 4}


def test_a_narrowed_window_goes_on_with_its_first_columns() -> None:
    wide = LookaheadWindow(4, 3, [1, 2, 3], random.Random(0))
    narrow = LookaheadWindow(4, 3, [1, 2, 3], random.Random(0))
    for window in (wide, narrow):
        window.advance([10, 11, 12, 13, 14])
    narrow.narrow(2)
    assert narrow.rows == [row[:2] for row in wide.rows]
    assert narrow.ngrams(9, [20, 21]) == wide.ngrams(9, [20, 21, 22, 23])[:2]


def test_a_window_can_be_narrowed_before_it_is_full() -> None:
    window = LookaheadWindow(6, 4, [1], random.Random(0))
    window.narrow(2)
    while not window.filled:
        window.advance([5] * len(window.rows[0]))
    assert [len(row) for row in window.rows] == [2, 2, 2]
