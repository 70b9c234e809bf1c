"""The only author of a step's token order, positions and attention mask.

A step feeds, in this order: the pending tokens, the candidate tree, the window, padding.
Everything sees the committed text before the step.  Within the step, pending tokens see their
predecessors, a tree node sees the pending tokens and its ancestors, a window cell sees the
pending tokens and the cells that `window` names, and padding sees itself.  Nothing else is seen.

Masks within a step are rows of bits: bit j of row i means that token i sees token j.  A row is one
Python integer, so that the union of two rows is one operation however wide the step.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .strategy import Draft

WORD = 32
"""Bits of the words in which rows are packed for kernels."""
_FORMATS = {1: "I", 2: "Q"}
"""`struct` formats of rows of one and two words."""


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The inputs of one forward pass of T tokens."""

    tokens: list[int]
    """Ids, length T."""
    positions: list[int]
    """Their positions in the text, length T."""
    rows: list[int]
    """The mask, length T."""
    outputs: list[int]
    """The rows whose logits are wanted: the current token, then every tree node, then the window's
    last row."""
    pending: int
    """The number of tokens that are committed already; they come first."""

    def paths(self) -> NDArray[np.int64]:
        """The tokens that each output sees, [outputs, T]: its own where it does not see one."""
        tokens = np.array(self.tokens)
        return np.where(dense(self.rows)[self.outputs], tokens, tokens[self.outputs][:, None])


NOTHING = StepLayout([], [], [], [], 0)
"""The layout without tokens: memory does not even suffice to read the text."""


def words_for(count: int) -> int:
    """Words that hold `count` bits."""
    return -(-count // WORD)


def packed(rows: Sequence[int], words: int) -> bytes:
    """Rows as little-endian int32 [len(rows), words]: bit j % 32 of word j // 32 is bit j."""
    if words in _FORMATS:
        # In one call: it is made in every step.
        return struct.pack(f"<{len(rows)}{_FORMATS[words]}", *rows)
    return b"".join([row.to_bytes(4 * words, "little") for row in rows])


def dense(rows: Sequence[int]) -> NDArray[np.bool_]:
    """Return the rows of T tokens as bool [T, T]."""
    count = len(rows)
    words = words_for(count)
    each = np.frombuffer(packed(rows, words), dtype=np.uint8).reshape(count, 4 * words)
    return np.unpackbits(each, axis=1, count=count, bitorder="little").view(np.bool_)


def build_chunk(tokens: Sequence[int], position: int, anchor: int | None = None) -> StepLayout:
    """Lay out a chunk of the prompt, without outputs.

    Args:
        tokens: the chunk.
        position: the position of its first token.
        anchor: the position of one more token, which only itself sees, for models that look at
            the largest position of a step; None for no such token.
    """
    count = len(tokens)
    positions = list(range(position, position + count))
    rows = [(2 << place) - 1 for place in range(count)]  # bits 0 to `place`
    if anchor is None:
        return StepLayout(list(tokens), positions, rows, [], count)
    return StepLayout([*tokens, tokens[-1]], [*positions, anchor], [*rows, 1 << count], [], count)


def build(pending: Sequence[int], position: int, draft: Draft) -> StepLayout:
    """Lay out one step.

    Args:
        pending: committed tokens without keys in the cache, the current token last.
        position: the position of the first of them.
        draft: what to try beside them.
    """
    count, tree, window = len(pending), draft.tree, draft.window
    current, first_cell = position + count - 1, count + len(tree.tokens)
    tokens = [*pending, *tree.tokens]
    positions = [*range(position, position + count), *[current + depth for depth in tree.depths]]
    outputs = list(range(count - 1, first_cell))
    rows = [(2 << place) - 1 for place in range(count)]
    bit = 1 << count
    for parent in tree.parents:
        rows.append(rows[count + parent] | bit)  # the root is -1, and so the current token
        bit <<= 1
    if window is not None:
        tokens += window.tokens
        positions += [current + offset for offset in window.offsets]
        outputs += [count - 1 if i < 0 else first_cell + i for i in window.last_row]
        before = rows[count - 1]
        rows += [before | row << first_cell for row in window.seen]
    end = len(tokens)
    if end < draft.width:
        padding = draft.width - end
        tokens += [tokens[count - 1]] * padding
        positions += [current] * padding
        rows += [1 << place for place in range(end, draft.width)]
    return StepLayout(tokens, positions, rows, outputs, count)
