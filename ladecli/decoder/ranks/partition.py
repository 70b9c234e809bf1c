"""The partition of a step's draft over ranks: lookahead parallelism (Fu et al., 2024, section 3.5).

A branch of the tree is computed with all of its ancestors, a window column with row 0 up to it, so
that no rank needs keys of another; what two ranks need, both compute.  A share is a range of
neighbouring branches in a walk through the tree, which have most ancestors in common, and a range
of window columns.  All ranks wait for the widest share, so that is made as narrow as possible.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ..step_cost import fitting
from ..strategy import Draft
from ..tree import ROOT, TokenTree
from ..window import WindowBlock


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a draft that one rank computes."""

    draft: Draft  # the rank's own tree, window block and padded width
    nodes: Sequence[int]
    """For each node of its tree, the node's number in the whole tree; ascending."""
    columns: range  # window columns whose last row the rank computes

    def held(self, path: Sequence[int]) -> list[int]:
        """Return the start of a path of the whole tree, up to the first node that is not in this
        share; its nodes are numbered as in the share."""
        return [*map(self.nodes.index, takewhile(self.nodes.__contains__, path))]


def partition(draft: Draft, loads: Sequence[int]) -> tuple[Draft, list[Share]]:
    """Divide a draft over ranks.

    If the ranks have no room for all of it, the window is dropped if it does not fit, and then the
    last (least probable) nodes of the tree.

    Args:
        draft: the draft; its `limit` is the most tokens that one rank feeds.
        loads: for each rank, the tokens that it feeds in any case.

    Returns:
        The draft, cut down to what the ranks have room for, and each rank's share.
    """
    if _column_cuts(draft.window, loads, draft.limit) is None:
        draft = replace(draft, window=None)
    walk = _Walk(draft.tree)
    cuts, left = _cuts(draft.window, walk, loads, draft.limit)
    while left:
        # Drop half of the nodes that are left over: then shares repeat fewer ancestors.
        first = range(len(draft.tree) - (left + 1) // 2)
        draft = replace(draft, tree=_part(draft.tree, first))
        walk = _Walk(draft.tree)
        cuts, left = _cuts(draft.window, walk, loads, draft.limit)

    cells = len(draft.window.tokens) if draft.window else 0
    low = max(loads)
    widths = range(low, min(draft.limit, low + len(draft.tree) + cells))
    best = bisect_left(widths, True, key=lambda w: not _cuts(draft.window, walk, loads, w)[1])
    if best < len(widths):
        cuts, _ = _cuts(draft.window, walk, loads, widths[best])
    shares = [_share(draft, walk, load, *cut) for load, cut in zip(loads, cuts, strict=True)]
    return draft, shares


_Cut = tuple[range, range]
"""A rank's window columns, and its stretch of the walk through the tree."""


class _Walk:
    """The nodes of a tree in depth-first order: every branch is one stretch."""

    def __init__(self, tree: TokenTree) -> None:
        children: list[list[int]] = [[] for _ in range(len(tree) + 1)]
        for node in reversed(range(len(tree))):
            children[tree.parents[node]].append(node)  # the root's are at index -1
        self.order: list[int] = []
        self.ends: list[int] = []
        waiting = children[ROOT][:]
        while waiting:
            node = waiting.pop()
            self.order.append(node)
            waiting += children[node]
            if not children[node]:
                self.ends.append(len(self.order))
        self.depths = [tree.depths[node] for node in self.order]

    def reach(self, start: int, room: int) -> int:
        """Return the end of the longest stretch from `start` that has room with its ancestors.

        It ends with a leaf: the nodes of a path that is cut would be computed twice.
        """
        if start == len(self.order):
            return start
        leaf = bisect_right(self.ends, start + room - (self.depths[start] - 1))
        return max(self.ends[leaf - 1], start) if leaf else start


def _cuts(
    window: WindowBlock | None, walk: _Walk, loads: Sequence[int], limit: int
) -> tuple[list[_Cut], int]:
    """Return cuts by which no rank feeds more than `limit` tokens, and how many nodes are left."""
    columns = _column_cuts(window, loads, limit)
    if columns is None:
        return [], 1
    cuts: list[_Cut] = []
    node = 0
    for load, own in zip(loads, columns, strict=True):
        cells = own.stop - 1 + (_rows(window) - 1) * len(own) if own else 0
        end = walk.reach(node, limit - load - cells)
        cuts.append((own, range(node, end)))
        node = end
    return cuts, len(walk.order) - node


def _column_cuts(
    window: WindowBlock | None, loads: Sequence[int], limit: int
) -> list[range] | None:
    """Return ranges of columns by which no rank feeds more than `limit` tokens, or None."""
    columns = len(window.last_row) if window else 0
    rows, first = _rows(window), 0
    cuts: list[range] = []
    for load in loads:
        # Row 0 up to the stretch's end, and the other rows within the stretch.
        end = (limit - load + 1 + (rows - 1) * first) // rows
        cuts.append(range(first, min(max(end, first), columns)))
        first = cuts[-1].stop
    return cuts if first == columns else None


def _rows(window: WindowBlock | None) -> int:
    return (len(window.tokens) + 1) // len(window.last_row) if window else 1


def _share(draft: Draft, walk: _Walk, load: int, columns: range, stretch: range) -> Share:
    """Make a rank's share: a stretch of the walk with all ancestors, and columns of the window."""
    tree = draft.tree
    nodes = {walk.order[place] for place in stretch}
    node = tree.parents[walk.order[stretch.start]] if stretch else ROOT
    while node != ROOT:
        nodes.add(node)
        node = tree.parents[node]
    own = sorted(nodes)
    window = draft.window.part(columns) if draft.window and columns else None
    width = load + len(own) + (len(window.tokens) if window else 0)
    width = fitting(width, draft.widths)
    return Share(replace(draft, tree=_part(tree, own), window=window, width=width), own, columns)


def _part(tree: TokenTree, nodes: Sequence[int]) -> TokenTree:
    """Return a tree of some nodes, ascending, among which are all of their ancestors."""
    place = {ROOT: ROOT} | {node: index for index, node in enumerate(nodes)}
    return TokenTree(
        [tree.tokens[node] for node in nodes],
        [place[tree.parents[node]] for node in nodes],
        [tree.depths[node] for node in nodes],
        [tree.sources[node] for node in nodes],
    )
