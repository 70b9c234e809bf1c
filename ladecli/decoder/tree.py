"""Candidates merged by common prefix, so that a shared token is verified once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
        tokens: Iterable[int] = (),
        parents: Iterable[int] = (),
        depths: Iterable[int] = (),
        sources: Iterable[str] = (),
    ) -> None:
        self.tokens = list(tokens)
        self.parents = list(parents)
        self.depths = list(depths)
        self.sources = list(sources)

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that holds `token`, or None."""
        child = node
        try:
            while True:
                # Children come after their parents.
                child = self.tokens.index(token, child + 1)
                if self.parents[child] == node:
                    return child
        except ValueError:
            return None

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
