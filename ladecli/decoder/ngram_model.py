"""One small online language model that all draft sources feed, and the tree it proposes.

Evidence about what follows what comes from the accepted text (`context`), from the n-grams of
the lookahead window (`trajectory`) and from the model's own probabilities for successors that
some step computed anyway (`recycled`, after Luo et al., "Turning Trash into Treasure: Token
Recycling", 2024).  A backoff model interpolates it: the longest context that was seen speaks
first, and leaves the rest of the probability to shorter ones (Witten and Bell, 1991).  The
draft is the tree of its most probable prefixes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .tree import ROOT, TokenTree

ORDER = 4
"""Longest context, in tokens."""
DOUBT = (0.0, 16.0, 8.0, 3.0, 6.0)
"""By length of context: weight of evidence at which it gets half of what is left."""
DECAY = 0.7
"""What is left of older evidence under a context when new evidence comes."""
SUCCESSORS = 4
"""Successors remembered under a context; more of them cost time and are hardly ever right."""
CHILDREN = 5
"""Children of a node."""
PAIR_SHARE = 0.6
"""What successors recycled for the last two tokens get of what longer contexts leave."""
MEMORY = 0.95
"""What is left, after a step, of how often each source was right before."""
PRIOR = 2.0
"""Expected hits at which a source's own record counts as much as the faith in it."""
CONTEXTS = 200_000
"""Contexts remembered of one length; the oldest go first."""
_BITS = 20  # of a token in a context: vocabularies have up to a million ids
_MASKS = [(1 << (_BITS * order)) - 1 for order in range(ORDER + 1)]

Ranked = list[tuple[float, int, str]]
"""Probability, token and source of each successor, the most probable first."""


class _Successors:
    """Evidence under one context."""

    __slots__ = ("sources", "total", "weights")

    def __init__(self) -> None:
        self.total = 0.0
        self.weights: dict[int, float] = {}
        self.sources: dict[int, str] = {}

    def add(self, token: int, weight: float, source: str) -> None:
        """Count `token` once more, and everything before a little less."""
        weights = self.weights
        for known in weights:
            weights[known] *= DECAY
        self.total = self.total * DECAY + weight
        if token in weights:
            weights[token] += weight
        else:
            if len(weights) >= SUCCESSORS:
                rarest = min(weights, key=weights.__getitem__)
                self.total -= weights.pop(rarest)
                del self.sources[rarest]
            weights[token] = weight
        self.sources[token] = source


class NgramModel:
    """Learns from tokens and proposes trees of them.

    A context is the last four tokens in one integer, so that a shorter one is its low bits.
    """

    def __init__(self) -> None:
        self._seen: list[dict[int, _Successors]] = [{} for _ in range(ORDER + 1)]
        # Calibration: by source, the hits that its probabilities promised, and those there were.
        self._promised: dict[str, float] = {}
        self._hits: dict[str, float] = {}
        self._shares: list[float] = []
        self._recycled: list[dict[int, list[tuple[float, int]]]] = [{} for _ in range(3)]

    def context_of(self, tokens: Sequence[int]) -> int:
        """The context after `tokens`, of which the last four count."""
        context = 0
        for token in tokens[-ORDER:]:
            context = (context << _BITS) | token
        return context

    def after(self, context: int, token: int) -> int:
        """The context one token on."""
        return ((context << _BITS) | token) & _MASKS[ORDER]

    def learn(self, context: int, orders: int, token: int, weight: float, source: str) -> None:
        """Take evidence that `token` follows `context`.

        Args:
            context: the tokens before.
            orders: how many of them are known to belong together, up to `ORDER`.
            token: what follows.
            weight: 1 for accepted text.
            source: where the evidence comes from.
        """
        for order in range(1, orders + 1):
            table = self._seen[order]
            key = context & _MASKS[order]
            successors = table.get(key)
            if successors is None:
                if len(table) >= CONTEXTS:
                    del table[next(iter(table))]
                successors = table[key] = _Successors()
            successors.add(token, weight, source)

    def recycle(self, context: int, orders: int, ranked: list[tuple[float, int]]) -> None:
        """Remember the model's own most probable successors of a context.

        Args:
            context: the tokens before.
            orders: 1 or 2: how many of them belong together.
            ranked: probability and token, the most probable first.
        """
        for order in range(1, orders + 1):
            table = self._recycled[order]
            key = context & _MASKS[order]
            # Anew, so that the oldest of the table is the one that was not renewed longest.
            table.pop(key, None)
            if len(table) >= CONTEXTS:
                del table[next(iter(table))]
            table[key] = ranked

    def successors(self, context: int) -> Ranked:
        """The most probable successors of a context."""
        found: dict[int, float] = {}
        sources: dict[int, str] = {}
        left = 1.0
        for order in range(ORDER, 0, -1):
            if order == 1:
                left = self._from_recycled(2, context, left, PAIR_SHARE, found, sources)
            seen = self._seen[order].get(context & _MASKS[order])
            if seen is None:
                continue
            total = seen.total
            unit = left / (total + DOUBT[order])
            for token, weight in seen.weights.items():
                if token in found:
                    found[token] += unit * weight
                else:
                    found[token] = unit * weight
                    sources[token] = seen.sources[token]
            left -= unit * total
        self._from_recycled(1, context, left, 1.0, found, sources)
        ranked = [(probability, token, sources[token]) for token, probability in found.items()]
        ranked.sort(reverse=True)
        return ranked[:CHILDREN]

    def _from_recycled(
        self,
        order: int,
        context: int,
        left: float,
        share: float,
        found: dict[int, float],
        sources: dict[int, str],
    ) -> float:
        """Add recycled successors to `found`; returns the probability that is left."""
        ranked = self._recycled[order].get(context & _MASKS[order])
        if ranked is None:
            return left
        unit = left * share
        for probability, token in ranked:
            if token in found:
                found[token] += unit * probability
            else:
                found[token] = unit * probability
                sources[token] = "recycled"
        return left - unit

    def judge(self, tree: TokenTree, accepted: Sequence[int]) -> None:
        """Compare what the last tree promised with what was accepted, source by source.

        The children of every node that the verification reached are a trial of the
        probabilities that they were given.  A source that promised too much is trusted less in
        the next trees, until its record fades.

        Args:
            tree: what the last call of `tree` returned.
            accepted: its accepted nodes.
        """
        for source in self._promised:
            self._promised[source] *= MEMORY
            self._hits[source] *= MEMORY
        reached = {ROOT, *accepted}
        for node, parent in enumerate(tree.parents):
            if parent in reached:
                source = tree.sources[node]
                promised = self._promised.get(source, 0.0) + self._shares[node]
                self._promised[source] = promised
                self._hits[source] = self._hits.get(source, 0.0) + (node in reached)

    def tree(self, context: int, nodes: int, depth: int, token_cost: float) -> TokenTree:
        """The tree of the most probable prefixes behind a context.

        Nodes come in order of their probability to be accepted.  The tree is full when it has
        `nodes` nodes, or when the next one is not worth what it costs: with q tokens expected
        of a step that costs c, a node pays only if its probability is above its cost times q / c.

        Args:
            context: ends with the current token.
            nodes: the most nodes.
            depth: the deepest node.
            token_cost: what a token adds to the cost of a step, relative to a plain step.
        """
        tree = TokenTree()
        if nodes < 1 or depth < 1:
            return tree
        expected = cost = 1.0
        # Best first; of a node's children only the best waits, its sibling comes when it goes.
        waiting: list[tuple[float, int, int, int, Ranked, int, float]] = []

        trust = {s: (self._hits[s] + PRIOR) / (p + PRIOR) for s, p in self._promised.items()}
        self._shares = shares = []

        def wait(above: float, parent: int, before: int, ranked: Ranked, rank: int) -> None:
            share, _, source = ranked[rank]
            probability = above * min(share * trust.get(source, 1.0), 1.0)
            entry = (-probability, len(tree), parent, rank, ranked, before, above)
            heapq.heappush(waiting, entry)

        first = self.successors(context)
        if first:
            wait(1.0, ROOT, context, first, 0)
        while waiting and len(tree) < nodes:
            negative, _, parent, rank, ranked, before, above = heapq.heappop(waiting)
            probability = -negative
            if probability * cost < token_cost * expected:
                break
            share, token, source = ranked[rank]
            node = tree.grow(parent, token, source)
            shares.append(share)
            expected += probability
            cost += token_cost
            if rank + 1 < len(ranked):
                wait(above, parent, before, ranked, rank + 1)
            if tree.depths[node] < depth:
                here = self.after(before, token)
                below = self.successors(here)
                if below:
                    wait(probability, node, here, below, 0)
        return tree
