"""One small online language model that all draft sources feed, and the tree it proposes.

Evidence about what follows what is of two kinds: tokens that did follow (from the text, from
the n-grams of the lookahead window), counted with decay; and the model's own probabilities for
the successors of tokens that some step computed anyway ("recycled": Luo et al., "Turning Trash
into Treasure: Token Recycling", 2024).  A backoff model interpolates them: the longest context
that is known speaks first, and leaves the rest of the probability to shorter ones (Witten and
Bell, 1991).  The draft is the tree of its most probable prefixes.

Separate models for each source, with shares learned by expectation maximisation, were tried:
they accepted 2 % fewer tokens per step than this one, which is simpler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..step_cost import CostCurve
from ..successors import Successors
from ..tree import ROOT, TokenTree
from . import kernels, tables
from .kernels import COUNTED, KINDS, NODE, ORDER, RANKED
from .tables import Table

LESSON = 2.0
"""What a node is worth in all, in multiples of what it is worth if accepted: its logits teach in
any case.  At 1.0, nodes paying for themselves alone, a text took 1 to 3 % more time by the cost
curve."""
SOURCES = ("context", "trajectory", "recycled")
SOURCE_OF_KIND = ("context", *(SOURCES[kind % 3] for kind in range(KINDS - 1)))
"""By kind of evidence, the source that drafts of it are credited to."""
_FIELDS = ("token", "parent", "depth", "kind")


@dataclass(frozen=True, slots=True)
class Guide:
    """An earlier passage that goes on where the text stands now.

    Attributes:
        tokens: what holds the passage.
        start: index of what follows the text, if the passage is repeated further.
        end: index behind the last token that it may lead to.
        share: the probability that it is, token by token.
    """

    tokens: Sequence[int]
    start: int
    end: int
    share: float


class NgramModel:
    """Learns from tokens and proposes trees of them.

    Attributes:
        margin: probability of the last node of the last tree if it had no room for more, else
            0: about what one more node would have been worth.
        counted: tokens that followed each context.
        ranked: what the model said would follow, where it was asked behind a text or a candidate;
            elsewhere what it said behind tokens of the window, which stood on guesses.
        promised, hits: float64 [KINDS]: by kind of evidence, the hits that its probabilities
            promised, and those that there were.
    """

    def __init__(self) -> None:
        self.counted, self.ranked = Table(COUNTED), Table(RANKED)
        self.promised, self.hits = np.zeros(KINDS), np.zeros(KINDS)
        # What probabilities of each kind are multiplied with.
        self._trust = np.ones(KINDS)
        self.margin = 0.0
        # The current token and the nodes of the last tree, of which so many are in use.
        self._nodes = np.zeros(1, NODE)
        self._grown = 0
        self._tree: TokenTree | None = None

    def learn(self, rows: Sequence[Sequence[int]], first: int, weight: float, source: str) -> None:
        """Take evidence of tokens that follow one another, under up to four before each.

        Args:
            rows: of equal length.
            first: index of the first token in each that is new; those before it are known.
            weight: 1 for accepted text.
            source: where the evidence comes from.
        """
        if not rows:
            return
        array, index = _tokens(rows), SOURCES.index(source)
        count, columns = array.shape
        # A long text comes in pieces, for which room can be made.
        piece = max(tables.CONTEXTS // (16 * count), 1)
        for start in range(first, columns, piece):
            before = min(start, ORDER)
            part = np.ascontiguousarray(array[:, start - before : start + piece])
            self.counted.reserve(count * (part.shape[1] - before))
            kernels.count(self.counted.arrays, part, before, float(weight), index)

    def recycle(self, text: Sequence[int], tree: TokenTree, said: Successors) -> None:
        """Remember what the model said behind a text and behind each node of a tree.

        Args:
            text: as much of it as is known, or its last four tokens.
            tree: candidates behind it.
            said: after the text, then after each of the nodes.
        """
        self.ranked.reserve(len(said))
        nodes, last = self._nodes, _tokens(text[-ORDER:])
        if tree is not self._tree:
            # Another one than has grown here last.
            nodes = np.zeros(len(tree) + 1, NODE)
            nodes["token"][1:], nodes["parent"][1:] = tree.tokens, tree.parents
        kernels.answers(self.ranked.arrays, nodes, last, len(text), said.tokens, said.probabilities)

    def guess(self, pairs: Sequence[tuple[int, int]], said: Successors) -> None:
        """Remember what the model said behind pairs of tokens that are guesses themselves."""
        self.ranked.reserve(len(pairs))
        array = _tokens(pairs).reshape(-1, 2)
        kernels.guesses(self.ranked.arrays, array, said.tokens, said.probabilities)

    def successors(self, text: Sequence[int]) -> list[tuple[float, int, int]]:
        """The most probable successors of a text: probability, token and kind of evidence."""
        nodes = np.zeros(2, NODE)
        self._grow(nodes, text, 1, _ALONE, (), 0.0, LESSON)
        count = nodes[0]["count"]
        found = (nodes[0][name][:count].tolist() for name in ("shares", "tokens", "kinds"))
        return list(zip(*found, strict=True))

    def judge(self, tokens: Sequence[int], nodes: Sequence[int]) -> None:
        """Compare what the last tree promised with what the text became, kind by kind.

        The successors of the root and of every accepted node are trials of the probabilities
        that they were given, whether they became nodes or not: so a kind of evidence that
        promised too much is trusted less, and wins trust back without being drafted.

        Args:
            tokens: what the last step committed.
            nodes: the accepted nodes of what the last call of `tree` returned, in order.
        """
        grown = self._nodes[: self._grown]
        told = self.promised, self.hits, self._trust
        kernels.judge(grown, _tokens(tokens), _tokens(nodes), *told)

    def load_record(self, promised: ArrayLike, hits: ArrayLike) -> None:
        """Take up the record of an earlier model, as it stood in `promised` and `hits`."""
        self.promised[:], self.hits[:] = promised, hits
        # Of no tree at all: this works out what to trust.
        self._grown = 0
        self.judge((), ())

    def tree(
        self,
        text: Sequence[int],
        depth: int,
        curve: CostCurve,
        guide: Guide | None = None,
        lesson: float = LESSON,
    ) -> TokenTree:
        """The tree of the most probable prefixes behind a text.

        Nodes come about in order of their probability to be accepted, so that the tree of any
        size is a part of every larger one.  The size is the one with the most expected tokens
        per cost of the step.

        Args:
            text: ends with the current token; the last four count.
            depth: the deepest node.
            curve: what a step costs by the number of nodes, up to the most that it may have.
            guide: a passage that the text may be repeating.
            lesson: what nodes are worth in all, in multiples of what they are worth if accepted.
        """
        self.margin, self._grown, self._tree = 0.0, 0, None
        room = curve.nodes
        if room < 1 or depth < 1:
            return TokenTree()
        if len(self._nodes) <= room:
            self._nodes = np.zeros(room + 1, NODE)
        passage: Sequence[int] = ()
        copying = 0.0
        if guide is not None:
            end = min(guide.end, guide.start + min(room, depth))
            passage, copying = guide.tokens[guide.start : end], guide.share
        size, best = self._grow(self._nodes, text, depth, curve, passage, copying, lesson)
        self._grown = size + 1
        if best == room:
            self.margin = float(self._nodes["value"][size])
        chosen = self._nodes[1 : best + 1]
        tokens, parents, depths, kinds = (chosen[name].tolist() for name in _FIELDS)
        self._tree = TokenTree(tokens, parents, depths, map(SOURCE_OF_KIND.__getitem__, kinds))
        return self._tree

    def _grow(
        self,
        nodes: NDArray[Any],
        text: Sequence[int],
        depth: int,
        curve: CostCurve,
        passage: Sequence[int],
        copying: float,
        lesson: float,
    ) -> tuple[int, int]:
        """See `kernels.grow`."""
        known = self.counted.arrays, self.ranked.arrays, self._trust
        last, follows = _tokens(text[-ORDER:]), _tokens(passage)
        grown: tuple[int, int] = kernels.grow(
            known, nodes, last, depth, *curve.arrays, follows, float(copying), float(lesson)
        )
        return grown


def prepare() -> None:
    """Have everything compiled before it is needed: the first time on a machine takes seconds."""
    model, said = NgramModel(), Successors.of([{1: 1.0}, {2: 1.0}])
    model.learn([[1, 2]], 1, 1.0, "context")
    model.recycle([1], TokenTree([2], [ROOT], [1], ["context"]), said)
    model.guess([(1, 2)], said.part(slice(1)))
    model.tree([1], 1, _ALONE)
    model.judge([2], [])
    for table in (model.counted, model.ranked):
        table.load(1, table.entries(1))


_ALONE = CostCurve((1.0, 1.0), (0.0, 0.0))
"""Room for one node, which costs nothing."""


def _tokens(tokens: ArrayLike) -> NDArray[np.int32]:
    # Always a new one: for arrays of other strides, or that may not be written to, the kernels
    # would be compiled once more.
    return np.array(tokens, np.int32, order="C")
