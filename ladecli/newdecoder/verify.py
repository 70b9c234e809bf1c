"""The walk that accepts: from the current token down the tree, as far as the model agrees.

At every node the model's own token is chosen (the most probable, or a sample).  If a child
holds it, the walk descends and the token is accepted; if not, the token is emitted and the
walk ends.  With deterministic drafts this is exact rejection sampling: the emitted tokens
have the model's own distribution, and a draft is accepted with the highest probability that
any exact method can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .events import Token
from .tree import ROOT, TokenTree

Choose = Callable[[int, Sequence[int]], int]
"""Output row (0 is the current token, i + 1 is node i) and accepted path -> token id."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a walk found: k accepted nodes and k + 1 tokens, the last one the bonus token."""

    nodes: tuple[int, ...]
    tokens: tuple[Token, ...]


def walk(tree: TokenTree, choose: Choose) -> Verdict:
    """Walk down `tree`, asking `choose` for the model's token at each node on the way."""
    nodes: list[int] = []
    path: list[int] = []
    tokens: list[Token] = []
    node = ROOT
    while True:
        chosen = choose(node + 1, path)
        child = tree.child(node, chosen)
        if child is None:
            tokens.append(Token(chosen))
            return Verdict(tuple(nodes), tuple(tokens))
        tokens.append(Token(chosen, tree.sources[child]))
        nodes.append(child)
        path.append(chosen)
        node = child
