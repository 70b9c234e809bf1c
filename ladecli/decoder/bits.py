"""Who sees whom, as rows of bits: bit j of row i says that token i sees token j.

Whole numbers hold the rows, so that a union takes one operation however many tokens there are;
they become arrays in one go where somebody wants arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = 4
"""Bytes of the words that rows fill: those of `attention.step`, of 32 bits."""


def causal(count: int) -> list[int]:
    """Every one of `count` tokens sees itself and those before it."""
    return [(2 << place) - 1 for place in range(count)]


def words(rows: Sequence[int]) -> NDArray[np.int32]:
    """The rows in words of 32 bits, as GPUs read them.

    Args:
        rows: of T tokens.

    Returns:
        int32 [T, ceil(T / 32)]: bit j % 32 of word j // 32 in row i says that i sees j.
    """
    return _packed(rows).view(np.int32)


def dense(rows: Sequence[int]) -> NDArray[np.bool_]:
    """The rows of T tokens as bool [T, T]."""
    packed = _packed(rows)
    return np.unpackbits(packed, axis=1, count=len(rows), bitorder="little").view(np.bool_)


def _packed(rows: Sequence[int]) -> NDArray[np.uint8]:
    """The rows as bytes, the lowest bits first: [T, bytes of whole words]."""
    count = len(rows)
    size = -(-count // (8 * _WORD)) * _WORD
    data = b"".join([row.to_bytes(size, "little") for row in rows])
    return np.frombuffer(data, dtype=np.uint8).reshape(count, size)
