"""The layout of a step: the order of its tokens, their positions, and the attention mask.

A step feeds, in this order: the pending tokens, the candidate tree, the window, padding.  Every
token sees itself and the text before the step.  Within the step, pending tokens also see their
predecessors, a tree node sees the pending tokens and its ancestors, and a window cell sees the
pending tokens and the cells that `window` names.

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
"""The bits of one word of a packed row."""
_FORMATS = {1: "I", 2: "Q"}
"""The `struct` formats of rows of one and two words."""


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The inputs of one forward pass of T tokens."""

    tokens: list[int]
    """Token ids, length T."""
    positions: list[int]
    """Positions in the text, length T."""
    rows: list[int]
    """The mask, length T."""
    outputs: list[int]
    """The indices of the tokens whose logits are computed: the current token, then every tree node,
    then the window's last row."""
    pending: int
    """The number of pending tokens, which come first."""

    def paths(self) -> NDArray[np.int64]:
        """Return the tokens of the step that each output sees, [outputs, T]; the output's own token
        stands in for those that it does not see."""
        tokens = np.array(self.tokens)
        return np.where(dense(self.rows)[self.outputs], tokens, tokens[self.outputs][:, None])


NOTHING = StepLayout([], [], [], [], 0)
"""The layout of no step."""


def words_for(count: int) -> int:
    """Return the number of words that hold `count` bits."""
    return -(-count // WORD)


def packed(rows: Sequence[int], words: int) -> bytes:
    """Return rows as kernels read them, little-endian int32 [len(rows), words]: bit j of a row is
    bit j % 32 of word j // 32."""
    if words in _FORMATS:  # by one call, since this runs in every step
        return struct.pack(f"<{len(rows)}{_FORMATS[words]}", *rows)
    return b"".join([row.to_bytes(4 * words, "little") for row in rows])


def dense(rows: Sequence[int]) -> NDArray[np.bool_]:
    """Return the rows of T tokens as bool [T, T]."""
    count = len(rows)
    words = words_for(count)
    octets = np.frombuffer(packed(rows, words), dtype=np.uint8).reshape(count, 4 * words)
    return np.unpackbits(octets, axis=1, count=count, bitorder="little").view(np.bool_)


def build_chunk(tokens: Sequence[int], position: int, anchor: int | None = None) -> StepLayout:
    """Lay out a chunk of the prompt, without outputs.

    Args:
        tokens: the chunk.
        position: the position of its first token.
        anchor: the position of one more token, which only itself sees, for models that choose
            rotary frequencies by the largest position of a step; None for no such token.
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
        pending: the pending tokens, the current one last.
        position: the position of the first of them.
        draft: the draft to try.
    """
    count, tree, window = len(pending), draft.tree, draft.window
    current, first_cell = position + count - 1, count + len(tree.tokens)
    tokens = [*pending, *tree.tokens]
    positions = [*range(position, position + count), *[current + depth for depth in tree.depths]]
    outputs = list(range(count - 1, first_cell))
    rows = [(2 << place) - 1 for place in range(count)]
    bit = 1 << count
    for parent in tree.parents:
        rows.append(rows[count + parent] | bit)  # if the parent is the root, -1: the current token
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
