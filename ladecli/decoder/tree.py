"""Candidates merged by common prefix, so that a shared token is verified once."""

from __future__ import annotations

from collections.abc import Sequence

ROOT = -1
"""The parent of first-level nodes: the current token, which is no node of the tree."""


class TokenTree:
    """A tree of draft tokens below the current token.

    Nodes are numbered in the order in which they were added, parents before children.
    Node i has `tokens[i]`, `parents[i]` (a node or `ROOT`), `depths[i]` (1 just below the
    current token) and `sources[i]`, the source that proposed it first.
    """

    def __init__(
        self,
        tokens: Sequence[int] = (),
        parents: Sequence[int] = (),
        depths: Sequence[int] = (),
        sources: Sequence[str] = (),
    ) -> None:
        self.tokens = list(tokens)
        self.parents = list(parents)
        self.depths = list(depths)
        self.sources = list(sources)
        # Made when somebody asks, in one go.
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that holds `token`, or None."""
        if len(self._children) < len(self.tokens):
            self.index()
        return self._children.get((node, token))

    def index(self) -> None:
        """Make ready for `child`, which does it itself if need be."""
        children = self._children
        for new in range(len(children), len(self.tokens)):
            children[self.parents[new], self.tokens[new]] = new

    def add(self, candidate: Sequence[int], source: str, limit: int) -> None:
        """Add a candidate path, up to the point where the tree would exceed `limit` nodes."""
        node = ROOT
        for token in candidate:
            known = self.child(node, token)
            if known is None:
                if len(self.tokens) >= limit:
                    return
                known = self.grow(node, token, source)
            node = known

    def grow(self, parent: int, token: int, source: str) -> int:
        """Add a node that is not there yet; returns its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.sources.append(source)
        return len(self.tokens) - 1
