"""Who sees whom, as rows of bits: bit j of row i says that token i sees token j.

Whole numbers hold the rows, so that a union takes one operation however many tokens there are;
they become arrays in one go where somebody wants arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = 4
"""Bytes of the words that rows fill: those of `attention.step`, of 32 bits."""
_FORMATS = {1: "I", 2: "Q"}
"""Whole numbers of so many words, as `struct` calls them."""


def causal(count: int) -> list[int]:
    """Every one of `count` tokens sees itself and those before it."""
    return [(2 << place) - 1 for place in range(count)]


def packed(rows: Sequence[int], words: int) -> bytes:
    """The rows in words of 32 bits, as GPUs read them.

    Args:
        rows: of T tokens.
        words: that each row takes.

    Returns:
        int32 [T, words] in bytes: bit j % 32 of word j // 32 in row i says that i sees j.
    """
    if words in _FORMATS:
        # In one call: a GPU waits for it.
        return struct.pack(f"<{len(rows)}{_FORMATS[words]}", *rows)
    size = _WORD * words
    return b"".join([row.to_bytes(size, "little") for row in rows])


def dense(rows: Sequence[int]) -> NDArray[np.bool_]:
    """The rows of T tokens as bool [T, T]."""
    count = len(rows)
    words = -(-count // (8 * _WORD))
    each = np.frombuffer(packed(rows, words), dtype=np.uint8).reshape(count, _WORD * words)
    return np.unpackbits(each, axis=1, count=count, bitorder="little").view(np.bool_)
