"""Successors as arrays and as rows."""

from __future__ import annotations

import numpy as np

from ladecli.decoder.successors import NONE, NOTHING, Successors

ROWS = [{5: 0.5, 7: 0.25}, {}, {1: 0.125}]


def test_rows_come_back_from_arrays() -> None:
    said = Successors.of(ROWS)
    assert len(said) == 3
    assert said.tokens.tolist() == [[5, 7], [NOTHING, NOTHING], [1, NOTHING]]
    assert (said.tokens.dtype, said.probabilities.dtype) == (np.int32, np.float32)
    assert said.rows() == ROWS


def test_a_part_is_of_some_outputs() -> None:
    said = Successors.of(ROWS)
    assert said.part(slice(1, None)).rows() == ROWS[1:]
    assert said.part(slice(3, None)).rows() == []


def test_nobody_asked() -> None:
    assert len(NONE) == 0
    assert NONE.rows() == Successors.of([]).rows() == []
