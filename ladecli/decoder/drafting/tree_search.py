"""The search for the tree of the most probable continuations of a text, best first.

The probability of a node is the product of the probabilities along its path.  The search keeps a
frontier, and takes its most probable entry again and again.  There are two sorts of entries:

1. A node of the tree.  Its successors are looked up, and the best one joins the frontier.
2. A successor of a node.  It becomes a node, and the next best successor of its parent joins the
   frontier.  So does the new node, with a guess at the probability of its best successor.

The search ends when no further node pays, and the tree is cut to the size that pays most.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import TypeAlias

from ..config import SamplingConfig
from ..grammar import Grammar
from ..noise import drawn_probabilities
from ..step_cost import CostCurve
from ..tree import ROOT, TokenTree
from .constants import CONSTANTS
from .copy_pointer import RepeatedSpan
from .ngram_model import (
    FORCED,
    MASKS,
    ORDER,
    REPEATED,
    SOURCE_OF_KIND,
    TOKEN_BITS,
    NgramModel,
    Ranked,
    pack,
)

Entry: TypeAlias = tuple[float, int, int, int | None]
"""Probability, order, node, and the index of its best successor that is not in the tree; None
before its successors are looked up.  Of equally probable entries the oldest has the highest order.
"""


class TreeSearch:
    """Grows the tree of the most probable continuations of a text.

    Args:
        model: the n-gram model.
        text: the text, which ends with the current token; its last four tokens count.
        spans: passages that the text may be repeating, the most probable one first.
        sampling: the settings by which the next tokens are drawn; None for greedy.
        grammar: constrains the text; what it forces is certain, and what it forbids is left out.

    Attributes:
        looked_up: the successors that were looked up, by node + 1; 0 is the current token.
    """

    def __init__(
        self,
        model: NgramModel,
        text: Sequence[int],
        spans: Sequence[RepeatedSpan] = (),
        sampling: SamplingConfig | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        self.looked_up: dict[int, Ranked] = {}
        self._look_up = model.look_up
        self._sampling, self._grammar = sampling, grammar
        self._length = len(text)
        # By node + 1, the spans that the path to it repeats.
        self._followed: dict[int, list[RepeatedSpan]] = {0: [*spans]}
        # By node + 1, the current token first; only nodes that may be looked up have `_contexts`.
        self._tokens, self._parents = [0], [ROOT]
        self._kinds, self._probabilities = [REPEATED], [1.0]
        self._contexts, self._paths = {0: pack(text)}, [list[int]()]

    def grow(
        self,
        depth: int,
        curve: CostCurve,
        exploration: float = CONSTANTS.exploration,
        children: int = CONSTANTS.max_children,
    ) -> TokenTree:
        """Search, and cut the tree to the size with the most expected tokens for its cost.

        Nodes come in the order of their probability to be accepted.

        Args:
            depth: the depth of the deepest node.
            curve: what a step costs by the number of nodes, up to the most that it may have.
            exploration: see `exploration`.
            children: the most children of a node; 1 for a chain.
        """
        if depth < 1:
            return TokenTree()
        last = 1 + self._search(depth, curve, exploration, children)
        sources = [SOURCE_OF_KIND[kind] for kind in self._kinds[1:last]]
        depths = [*map(len, self._paths[1:last])]
        return TokenTree(self._tokens[1:last], self._parents[1:last], depths, sources)

    def _search(self, depth: int, curve: CostCurve, exploration: float, children: int) -> int:
        """Add nodes until none pays any more; return the size of the tree that pays most."""
        tokens, parents, kinds, paths = self._tokens, self._parents, self._kinds, self._paths
        probabilities, contexts, looked_up = self._probabilities, self._contexts, self.looked_up
        cost, slope = curve.cost, curve.slope
        frontier: list[Entry] = [(1.0, 0, 0, None)]  # ascending
        newest = size = best_size = 0
        expected, best, room = 1.0, 1.0 / cost[0], len(cost) - 1
        while frontier and size < room:
            probability, order, node, place = frontier.pop()
            # Below this probability, no number of further nodes is worth its cost.
            floor = best * slope[size] / exploration
            if probability <= floor:
                break
            # Only `left` more nodes fit, so no entry below the best `left` will be taken.
            left = room - size
            if len(frontier) >= left and frontier[-left][0] > floor:
                floor = frontier[-left][0]
            if place is None:
                # Look up the node's successors; the best one joins the frontier.
                if ranked := self._successors(node, floor):
                    newest -= 1
                    following = min(ranked[0][0], 1.0) * probabilities[node]
                    insort(frontier, (following, newest, node, 0))
                continue
            # Add the successor to the tree; the next best one joins the frontier.
            siblings = looked_up[node]
            _, token, kind = siblings[place]
            if (place := place + 1) < children and place < len(siblings):
                share = siblings[place][0]
                following = probabilities[node] * (share if share < 1.0 else 1.0)
                insort(frontier, (following, order, node, place))
            size += 1
            path = [*paths[node], token]
            tokens.append(token)
            parents.append(node - 1)
            paths.append(path)
            kinds.append(kind)
            probabilities.append(probability)
            # The best size has the most expected tokens for the cost of the step.
            expected += exploration * probability
            if expected >= best * cost[size]:
                best, best_size = expected / cost[size], size
            # The new node joins the frontier, if its successors can still be worth it.
            hope = probability if kind == FORCED else probability * CONSTANTS.optimism
            if len(path) < depth and hope > floor:
                contexts[size] = (contexts[node] << TOKEN_BITS | token) & MASKS[ORDER]
                newest -= 1
                insort(frontier, (hope, newest, size, None))
        return best_size

    def _successors(self, node: int, floor: float) -> Ranked:
        """Look up the successors of a node whose paths' probabilities exceed `floor`."""
        path, grammar = self._paths[node], self._grammar
        repeated = self._repeated(node)
        if grammar is not None and (token := grammar.forced(path)) is not None:
            self.looked_up[node] = [(1.0, token, FORCED)]
            return self.looked_up[node]
        # All successors of the root are looked up, to be calibrated even if they do not pay.
        floor = floor / self._probabilities[node] if node else 0.0
        # With noise, an improbable token may be the one that is drawn, so there is no floor.
        least = floor if self._sampling is None else 0.0
        ranked = self._look_up(self._contexts[node], least, repeated)
        if grammar is not None and (allowed := grammar.allowed(path)) is not None:
            ranked = [successor for successor in ranked if successor[1] in allowed]
        if self._sampling is not None:
            ranked = _drawn(ranked, self._sampling, self._length + len(path), floor)
        self.looked_up[node] = ranked = ranked[: CONSTANTS.max_children]
        return ranked

    def _repeated(self, node: int) -> list[tuple[int, float]]:
        """Return the next tokens of the spans that the path to a node repeats."""
        depth, token = len(self._paths[node]), self._tokens[node]
        spans = self._followed[self._parents[node] + 1] if node else self._followed[0]
        if not spans:
            self._followed[node] = spans
            return []
        repeated, followed = [], []
        for span in spans:
            tokens, ladder = span
            if depth < len(tokens) and (not node or tokens[depth - 1] == token):
                followed.append(span)
                repeated.append((tokens[depth], ladder[min(depth, len(ladder) - 1)]))
        self._followed[node] = followed
        return repeated


def _drawn(ranked: Ranked, sampling: SamplingConfig, position: int, floor: float) -> Ranked:
    """Return the successors whose probabilities to be drawn at a position exceed `floor`, best
    first."""
    estimates, tokens, _ = zip(*ranked, strict=True) if ranked else ((), (), ())
    drawn = drawn_probabilities(sampling, tokens, estimates, position)
    likely = [
        (probability, *successor[1:])
        for probability, successor in zip(drawn, ranked, strict=True)
        if probability > floor
    ]
    likely.sort(reverse=True)
    return likely
