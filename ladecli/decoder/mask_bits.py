"""Visibility within a step as rows of bits: bit j of row i means that token i sees token j.

A row is one Python integer, so that the union of two rows is one operation however wide the step.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WORD = 32
"""Bits of the words in which rows are packed for kernels."""
_FORMATS = {1: "I", 2: "Q"}
"""`struct` formats of rows of one and two words."""


def words_for(count: int) -> int:
    """Words that hold `count` bits."""
    return -(-count // WORD)


def causal(count: int) -> list[int]:
    """Rows of `count` tokens that each see themselves and those before."""
    return [(2 << place) - 1 for place in range(count)]


def packed(rows: Sequence[int], words: int) -> bytes:
    """Rows as little-endian int32 [len(rows), words]: bit j % 32 of word j // 32 is bit j."""
    if words in _FORMATS:
        # In one call: it is made in every step.
        return struct.pack(f"<{len(rows)}{_FORMATS[words]}", *rows)
    return b"".join([row.to_bytes(4 * words, "little") for row in rows])


def dense(rows: Sequence[int]) -> NDArray[np.bool_]:
    """The rows of T tokens as bool [T, T]."""
    count = len(rows)
    words = words_for(count)
    each = np.frombuffer(packed(rows, words), dtype=np.uint8).reshape(count, 4 * words)
    return np.unpackbits(each, axis=1, count=count, bitorder="little").view(np.bool_)
