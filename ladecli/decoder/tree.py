"""The tree of candidates, which are merged so that a common start is verified once, and the walk
that accepts them.

At every node the model's own token is chosen (the most probable one, or a sample).  If a child
has this token, the token is accepted and the walk goes on there; if not, it is the bonus token and
the walk ends.  That is exact whatever the draft is: at every node the token is the one that plain
decoding would choose there (`sampling`), and a draft decides only whether the logits after it are
there already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from .events import Token

ROOT = -1
"""The parent of first-level nodes: the current token, which is not a node of the tree."""

Choose = Callable[[int, Sequence[int]], int]
"""(output, tokens of the accepted path) -> token id; output 0 is the current token's, i + 1 that of
node i."""


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items two sequences, such as texts, have in common before they differ."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(slots=True)
class TokenTree:
    """A tree of draft tokens below the current token.

    Nodes are numbered in the order in which they were added, parents before children.
    """

    tokens: list[int] = field(default_factory=list)
    """The token of each node."""
    parents: list[int] = field(default_factory=list)
    """The parent of each node: another node or `ROOT`."""
    depths: list[int] = field(default_factory=list)
    """The depth of each node: 1 just below the current token."""
    sources: list[str] = field(default_factory=list)
    """The draft source that proposed each node first."""

    def __len__(self) -> int:
        return len(self.tokens)

    def paths(self) -> list[list[int]]:
        """Return the tokens from the current one, which has none, to each node, inclusive."""
        paths: list[list[int]] = [[]]
        for parent, token in zip(self.parents, self.tokens, strict=True):
            paths.append([*paths[parent + 1], token])
        return paths

    def child(self, node: int, token: int) -> int | None:
        """Return the child of `node` that holds `token`, or None."""
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
            child = self.child(node, token)
            if child is None:
                if len(self.tokens) >= limit:
                    return
                child = self.grow(node, token, source)
            node = child

    def grow(self, parent: int, token: int, source: str) -> int:
        """Add a node that is not there yet; return its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.sources.append(source)
        return len(self.tokens) - 1

    def walk(self, choose: Choose) -> tuple[list[int], list[Token]]:
        """Walk down, asking `choose` for the model's token at each node on the way.

        Returns:
            The k accepted nodes, and k + 1 tokens, the last one the bonus token.
        """
        nodes: list[int] = []
        path: list[int] = []
        tokens: list[Token] = []
        node = ROOT
        while True:
            chosen = choose(node + 1, path)
            child = self.child(node, chosen)
            if child is None:
                tokens.append(Token(chosen))
                return nodes, tokens
            tokens.append(Token(chosen, self.sources[child]))
            nodes.append(child)
            path.append(chosen)
            node = child
