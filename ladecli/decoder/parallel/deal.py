"""A step's candidates and window columns, dealt out over ranks (Fu et al., 2024, section 3.5).

A branch of the tree is computed with the current token and the branch's own ancestors, a column
of the window with row 0 up to it: no rank needs a key of another one.  What two ranks need both
compute.  Shares are cut from neighbours, branches in the order of a walk through the tree, so
that they have little in common, and so that the widest share is as narrow as can be: all ranks
wait for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..layout import Draft
from ..step_cost import fitting
from ..tree import ROOT, TokenTree
from ..window import WindowBlock


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank computes of a draft.

    Attributes:
        draft: what it feeds: a tree and a window block of its own.
        nodes: for every node of its tree the node's number in the whole one, ascending; a range
            where it has all of them.
        columns: of the window's last row, those whose outputs are its.
    """

    draft: Draft
    nodes: Sequence[int]
    columns: range = range(0)

    def held(self, path: Sequence[int]) -> list[int]:
        """The first nodes of a path through the whole tree, as far as it has them, as its own."""
        if isinstance(self.nodes, range):
            return list(path)  # the whole tree
        place = {node: index for index, node in enumerate(self.nodes)}
        found: list[int] = []
        for node in path:
            if node not in place:
                break
            found.append(place[node])
        return found


@dataclass(frozen=True, slots=True)
class Dealt:
    """A draft and its shares, by rank.

    Attributes:
        draft: the whole, as far as the ranks have room for it.
        shares: as many as there are ranks.
    """

    draft: Draft
    shares: tuple[Share, ...]


def deal(draft: Draft, missing: Sequence[int]) -> Dealt:
    """Deal a draft out over ranks.

    Where they have no room for all of it, the tree loses the nodes that were added last, which
    are the least promising, or else the window goes.

    Args:
        draft: with a limit of tokens for each rank.
        missing: for every share, the committed tokens before the current one that its rank must
            feed, for it lacks their keys.
    """
    loads = [1 + count for count in missing]
    if _columns(draft.window, loads, draft.limit) is None:
        draft = replace(draft, window=None)
    walk = _Walk(draft.tree)
    while isinstance(cuts := _cuts(draft.window, walk, loads, draft.limit), int):
        # Half of what is missing: without those nodes, other ranks need fewer of the same ones.
        draft = replace(draft, tree=_first(draft.tree, len(draft.tree) - (cuts + 1) // 2))
        walk = _Walk(draft.tree)
    # The widest share counts, so the narrowest limit under which all of it fits is wanted.
    low = _least(draft, loads)
    high = min(draft.limit, low + len(draft.tree) + _cells(draft.window))
    while low < high:
        middle = (low + high) // 2
        narrower = _cuts(draft.window, walk, loads, middle)
        if isinstance(narrower, int):
            low = middle + 1
        else:
            high, cuts = middle, narrower
    shares = (_share(draft, walk, load, *cut) for load, cut in zip(loads, cuts, strict=True))
    return Dealt(draft, tuple(shares))


Cut = tuple[range, range]
"""The columns of the window, and the stretch of the walk, that one rank gets."""


class _Walk:
    """The nodes of a tree in the order of a walk, every branch in one stretch."""

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
            if below := children[node]:
                waiting += below
            else:
                self.ends.append(len(self.order))
        self.depths = [tree.depths[node] for node in self.order]

    def reach(self, start: int, room: int) -> int:
        """How far a stretch from `start` goes whose nodes, with their ancestors, have room.

        A stretch ends with a leaf: a path that is cut would have to be computed twice.
        """
        if start == len(self.order):
            return start
        end = start + room - (self.depths[start] - 1)
        if end <= start:
            return start
        leaf = bisect_right(self.ends, end)
        return max(self.ends[leaf - 1], start) if leaf else start


def _columns(window: WindowBlock | None, loads: Sequence[int], limit: int) -> list[range] | None:
    """Stretches of columns with which no rank feeds more than `limit` tokens; None if some do."""
    if window is None:
        return [range(0)] * len(loads)
    whole = len(window.last_row)
    rows = (len(window.tokens) + 1) // whole
    cuts: list[range] = []
    first = 0
    for load in loads:
        # Beside row 0 up to its end, a stretch has the rows below in its own columns.
        end = (limit - load + 1 + (rows - 1) * first) // rows
        end = min(max(end, first), whole)
        cuts.append(range(first, end))
        first = end
    return cuts if first == whole else None


def _cells_of(columns: range, window: WindowBlock | None) -> int:
    """Cells that a stretch of columns takes, the current token left out."""
    if window is None or not columns:
        return 0
    rows = (len(window.tokens) + 1) // len(window.last_row)
    return columns.stop - 1 + (rows - 1) * len(columns)


def _cuts(
    window: WindowBlock | None, walk: _Walk, loads: Sequence[int], limit: int
) -> list[Cut] | int:
    """The shares under which no rank feeds more than `limit` tokens.

    Returns:
        The shares, or how many things at least do not fit.
    """
    columns = _columns(window, loads, limit)
    if columns is None:
        return 1
    cuts: list[Cut] = []
    node = 0
    for load, own in zip(loads, columns, strict=True):
        end = walk.reach(node, limit - load - _cells_of(own, window))
        cuts.append((own, range(node, end)))
        node = end
    return len(walk.order) - node or cuts


def _least(draft: Draft, loads: Sequence[int]) -> int:
    """A width below which the widest share cannot be."""
    tokens = sum(loads) + len(draft.tree) + _cells(draft.window)
    return max(*loads, -(-tokens // len(loads)), max(draft.tree.depths, default=0) + min(loads))


def _cells(window: WindowBlock | None) -> int:
    return len(window.tokens) if window else 0


def _share(draft: Draft, walk: _Walk, load: int, columns: range, stretch: range) -> Share:
    """One rank's share: its stretch of the walk with all ancestors, and its columns.

    Args:
        draft: the whole.
        walk: through its tree.
        load: pending tokens that the rank feeds, the current one included.
        columns, stretch: its own.
    """
    tree = draft.tree
    nodes = {walk.order[place] for place in stretch}
    if stretch:
        above = tree.parents[walk.order[stretch.start]]
        while above != ROOT:
            nodes.add(above)
            above = tree.parents[above]
    own = sorted(nodes)
    place = {node: index for index, node in enumerate(own)}
    place[ROOT] = ROOT
    part = TokenTree(
        [tree.tokens[node] for node in own],
        [place[tree.parents[node]] for node in own],
        [tree.depths[node] for node in own],
        [tree.sources[node] for node in own],
    )
    window = draft.window.part(columns) if draft.window and columns else None
    width = fitting(load + len(own) + _cells(window), draft.widths)
    return Share(replace(draft, tree=part, window=window, width=width), own, columns)


def _first(tree: TokenTree, count: int) -> TokenTree:
    """The first `count` nodes of a tree: parents stand before their children."""
    kept = slice(count)
    return TokenTree(tree.tokens[kept], tree.parents[kept], tree.depths[kept], tree.sources[kept])
