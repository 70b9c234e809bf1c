"""The only author of a step's token order, positions and visibility.

A step feeds, in this order: the pending tokens, the candidate tree, the window, padding.
Everything sees the committed text before the step; within the step, pending tokens see their
predecessors, a tree node sees the pending tokens and its ancestors, a window cell sees the
pending tokens and what the window says, and padding sees itself.  Nothing else is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .tree import ROOT, TokenTree
from .window import WindowBlock


@dataclass(frozen=True, slots=True)
class Draft:
    """What a strategy wants to try in one step.

    Attributes:
        tree: candidates behind the current token.
        window: cells of the lookahead window.
        width: the step is padded to so many tokens, if it has fewer.
        successors: how many successors of every output the strategy wants to see; 0 for none.
        limit: where several ranks share the draft, the most tokens that one of them feeds,
            pending ones included.
        widths: where several ranks share it, the only widths that their steps may have,
            ascending; () for any.
    """

    tree: TokenTree = field(default_factory=TokenTree)
    window: WindowBlock | None = None
    width: int = 1
    successors: int = 0
    limit: int = sys.maxsize
    widths: tuple[int, ...] = ()

    @property
    def outputs(self) -> int:
        """Rows whose logits are wanted: the current token's, the nodes', the window's last row."""
        return 1 + len(self.tree) + (len(self.window.last_row) if self.window else 0)


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The inputs of one forward pass of T tokens.

    Attributes:
        tokens: ids, length T.
        positions: their positions in the text, length T.
        visible: bool [T, T], which token (row) sees which token of the step (column); None
            where T is 1 and there is nothing to hide.
        outputs: the rows whose logits are wanted: the current token, then every tree node,
            then the window's last row.
        pending: how many of the tokens are committed already; they come first.
    """

    tokens: list[int]
    positions: list[int]
    visible: NDArray[np.bool_] | None
    outputs: list[int]
    pending: int


NOTHING = StepLayout([], [], None, [], 0)
"""What is fed where memory does not even suffice to read the text."""


def build_chunk(tokens: Sequence[int], position: int, anchor: int | None = None) -> StepLayout:
    """Lay out a chunk of the prompt, whose logits nobody reads.

    Args:
        tokens: the chunk.
        position: the position of its first token.
        anchor: where given, one more token stands at this position, seen by nobody but
            itself: for models that look at the largest position of a step.
    """
    count = len(tokens)
    positions = list(range(position, position + count))
    if anchor is None:
        return StepLayout(list(tokens), positions, _causal(count), [], count)
    visible = np.tri(count + 1, dtype=np.bool_)
    visible[count, :count] = False
    return StepLayout([*tokens, tokens[-1]], [*positions, anchor], visible, [], count)


def build(pending: Sequence[int], position: int, draft: Draft) -> StepLayout:
    """Lay out one step.

    Args:
        pending: committed tokens without keys in the cache, the current token last.
        position: the position of the first of them.
        draft: what to try beside them.
    """
    count = len(pending)
    tokens = list(pending)
    positions = list(range(position, position + count))
    tree, window = draft.tree, draft.window
    current = positions[-1]
    tokens += tree.tokens
    positions += [current + depth for depth in tree.depths]
    outputs = list(range(count - 1, count + len(tree)))
    cells = count + len(tree)
    if window is not None:
        tokens += window.tokens
        positions += [current + offset for offset in window.offsets]
        outputs += [count - 1 if i < 0 else cells + i for i in window.last_row]

    padding = max(draft.width - len(tokens), 0)
    tokens += [tokens[count - 1]] * padding
    positions += [current] * padding

    width = len(tokens)
    if width == count:
        return StepLayout(tokens, positions, _causal(count), outputs, count)
    visible = np.zeros((width, width), dtype=np.bool_)
    end = width - padding
    if count > 1:
        visible[:count, :count] = np.tri(count, dtype=np.bool_)
    visible[0, 0] = True
    visible[count:end, :count] = True
    if len(tree):
        visible[count:cells, count:cells] = _ancestors(tree.parents)
    if window is not None:
        visible[cells:end, cells:end] = window.visible
    if padding:
        visible[end:, end:] = np.eye(padding, dtype=np.bool_)
    return StepLayout(tokens, positions, visible, outputs, count)


def _ancestors(parents: Sequence[int]) -> NDArray[np.bool_]:
    """Which node (row) has which node (column) on the path to it, itself included."""
    # Integers as sets of bits: one operation per node, and one conversion for all of them.
    paths: list[int] = []
    bit = 1
    for parent in parents:
        paths.append(paths[parent] | bit if parent != ROOT else bit)
        bit <<= 1
    size = -(-len(paths) // 8)
    packed = b"".join([path.to_bytes(size, "little") for path in paths])
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(len(paths), size)
    bits = np.unpackbits(rows, axis=1, count=len(paths), bitorder="little")
    return bits.view(np.bool_)


def _causal(count: int) -> NDArray[np.bool_] | None:
    return np.tri(count, dtype=np.bool_) if count > 1 else None
