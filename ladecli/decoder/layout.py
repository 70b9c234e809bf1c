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
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from . import mask_bits
from .tree import TokenTree
from .window import WindowBlock


@dataclass(frozen=True, slots=True)
class Draft:
    """What a strategy wants to try in one step.

    Attributes:
        tree: candidates behind the current token.
        window: cells of the lookahead window.
        width: tokens that the step is padded to, if it has fewer.
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


@dataclass(frozen=True)
class StepLayout:
    """The inputs of one forward pass of T tokens.

    Attributes:
        tokens: ids, length T.
        positions: their positions in the text, length T.
        rows: for each token, whom of the step it sees, as a set of bits (see `mask_bits`).
        outputs: the rows whose logits are wanted: the current token, then every tree node,
            then the window's last row.
        pending: how many of the tokens are committed already; they come first.
    """

    tokens: list[int]
    positions: list[int]
    rows: list[int]
    outputs: list[int]
    pending: int

    # Made when somebody asks: steps of fixed shapes read the rows as they are.
    @cached_property
    def visible(self) -> NDArray[np.bool_] | None:
        """Bool [T, T], which token (row) sees which token of the step (column).

        None where T is 1 and there is nothing to hide.
        """
        return mask_bits.dense(self.rows) if len(self.rows) > 1 else None

    def paths(self) -> NDArray[np.int64]:
        """What each output sees of the step, [outputs, T]: its own token wherever it sees none."""
        tokens = np.array(self.tokens)
        own = tokens[self.outputs][:, None]
        return own if self.visible is None else np.where(self.visible[self.outputs], tokens, own)


NOTHING = StepLayout([], [], [], [], 0)
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
    rows = mask_bits.causal(count)
    if anchor is None:
        return StepLayout(list(tokens), positions, rows, [], count)
    rows.append(1 << count)
    return StepLayout([*tokens, tokens[-1]], [*positions, anchor], rows, [], count)


def build(pending: Sequence[int], position: int, draft: Draft) -> StepLayout:
    """Lay out one step.

    Args:
        pending: committed tokens without keys in the cache, the current token last.
        position: the position of the first of them.
        draft: what to try beside them.
    """
    count = len(pending)
    tokens = list(pending)
    current = position + count - 1
    positions = list(range(position, position + count))
    rows = mask_bits.causal(count)
    # Whoever stands behind them sees all pending tokens.
    before = (1 << count) - 1
    tree, window = draft.tree, draft.window
    cells = count + len(tree)
    tokens += tree.tokens
    positions += [current + depth for depth in tree.depths]
    outputs = list(range(count - 1, cells))
    # Shifted by one: the root's row comes first.
    paths = [before]
    bit = before + 1
    for parent in tree.parents:
        paths.append(paths[parent + 1] | bit)
        bit <<= 1
    rows += paths[1:]
    if window is not None:
        tokens += window.tokens
        positions += [current + offset for offset in window.offsets]
        outputs += [count - 1 if i < 0 else cells + i for i in window.last_row]
        rows += [before | row << cells for row in window.seen]

    end = len(tokens)
    if end < draft.width:
        padding = draft.width - end
        tokens += [tokens[count - 1]] * padding
        positions += [current] * padding
        rows += [1 << place for place in range(end, draft.width)]
    return StepLayout(tokens, positions, rows, outputs, count)
