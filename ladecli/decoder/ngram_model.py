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

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .step_cost import CostCurve
from .tree import ROOT, TokenTree

ORDER = 4
"""Longest context, in tokens."""
DOUBT = (0.0, 8.0, 4.0, 2.0, 1.0)
"""By length of context: weight of counted evidence at which it gets half of what is left."""
RECYCLED_SHARE = (0.0, 0.65, 0.7, 0.8, 0.95)
"""By length of context: what recycled successors get of what is left."""
DECAY = 0.7
"""What is left of older evidence under a context when new evidence comes."""
SUCCESSORS = 4
"""Successors counted under a context; more of them cost time and are hardly ever right."""
CHILDREN = 5
"""Children of a node."""
MEMORY = 0.98
"""What is left, after a trial, of how often a kind of evidence was right before."""
PRIOR = 2.0
"""Expected hits at which a record counts as much as the faith in the evidence."""
ENOUGH = 0.2
"""Probability left to shorter contexts at which they are not asked any more."""
TRUST = 3.0
"""The most by which a record of kept promises raises probabilities."""
HOPE = 0.5
"""What the best child of a node is taken to have of its probability until somebody looks.
At 1.0 trees took a third more time to grow, and accepted no more."""
LESSON = 2.0
"""What a node is worth in all, in multiples of what it is worth if accepted: its logits teach in
any case.  At 1.0, nodes paying for themselves alone, a text took 1 to 3 % more time by the cost
curve."""
CONTEXTS = 1 << 16
"""Contexts remembered of one length and kind.  Those met first go first: to keep the order of
use would cost more than to learn a frequent one anew."""
BITS = 20
"""Of a token in a context: vocabularies have up to a million ids."""
MASKS = tuple((1 << (BITS * order)) - 1 for order in range(ORDER + 1))

SOURCES = ("context", "trajectory", "recycled")
COPIED = 0
"""The kind of evidence that is the text's own continuation of a long repeated passage."""
KINDS = 1 + 3 * (ORDER + 1)
"""A kind is 1 + 3 * length of context + index of the source, or `COPIED`."""
SOURCE_OF_KIND = ("context", *(SOURCES[kind % 3] for kind in range(KINDS - 1)))

_WHOLE = MASKS[ORDER]
Ranked = list[tuple[float, int, int]]
"""Probability, token and kind of evidence of each successor, the most probable first."""
Rows = dict[int, Mapping[int, float]]
"""By context, the model's own probabilities of successors, the most probable first."""
_Waiting = tuple[float, int, int, int, int]
"""Probability, a number that falls, the row of the parent, token (-1: look for children), kind."""


class Counted:
    """Tokens that followed one context.

    Attributes:
        total: weight of all of them.
        weights: by token.
        sources: by token, the index of the source that saw it last.
    """

    __slots__ = ("sources", "total", "weights")

    def __init__(self) -> None:
        self.total = 0.0
        self.weights: dict[int, float] = {}
        self.sources: dict[int, int] = {}

    def add(self, token: int, weight: float, source: int) -> None:
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

    A context is the last four tokens in one integer, so that a shorter one is its low bits.

    Attributes:
        margin: probability of the last node of the last tree if it had no room for more, else
            0: about what one more node would have been worth.
        counted: by length of context, what was counted under each.
        recycled: likewise, the model's own probabilities of successors, best first.
        guessed: the same behind tokens of the window, which stood on guesses.  They count
            where the model was never asked behind a text or a candidate.
    """

    def __init__(self) -> None:
        self.counted: list[dict[int, Counted]] = [{} for _ in range(ORDER + 1)]
        self.recycled: list[Rows] = [{} for _ in range(ORDER + 1)]
        self.guessed: list[Rows] = [{} for _ in range(ORDER + 1)]
        # What to look at for a context, the longest first.  The tables stay the same objects.
        self._levels = [
            (order, MASKS[order], self.recycled[order], self.guessed[order], self.counted[order])
            for order in range(ORDER, 0, -1)
        ]
        # Calibration: by kind of evidence, hits that were promised, and hits that there were.
        self.promised = [0.0] * KINDS
        self.hits = [0.0] * KINDS
        self._trust = [1.0] * KINDS
        self.margin = 0.0
        # What the last tree was grown from: by node (the root first), its ranked successors.
        self._grown: list[Ranked] = []

    def context_of(self, tokens: Sequence[int]) -> int:
        """The context after `tokens`, of which the last four count."""
        context = 0
        for token in tokens[-ORDER:]:
            context = (context << BITS) | token
        return context

    def after(self, context: int, token: int) -> int:
        """The context one token on."""
        return ((context << BITS) | token) & MASKS[ORDER]

    def learn(self, context: int, orders: int, token: int, weight: float, source: str) -> None:
        """Take evidence that `token` follows `context`.

        Args:
            context: the tokens before.
            orders: how many of them are known to belong together, up to `ORDER`.
            token: what follows.
            weight: 1 for accepted text.
            source: where the evidence comes from.
        """
        index = SOURCES.index(source)
        for order in range(1, orders + 1):
            table = self.counted[order]
            key = context & MASKS[order]
            counted = table.get(key)
            if counted is None:
                if len(table) >= CONTEXTS:
                    forget_oldest(table)
                counted = table[key] = Counted()
            counted.add(token, weight, index)

    def keys(self, contexts: Sequence[int], orders: int) -> list[list[int]]:
        """Under which keys `recycle` puts successors: for each length from 1 on, one a context.

        Args:
            contexts: for each, the tokens before.
            orders: how many of them belong together, up to `ORDER`.
        """
        return [[context & mask for context in contexts] for mask in MASKS[1 : orders + 1]]

    def recycle(
        self,
        tables: list[Rows],
        keys: Sequence[Sequence[int]],
        successors: Sequence[Mapping[int, float]],
    ) -> None:
        """Remember the model's own most probable successors of some contexts.

        Args:
            tables: `recycled` or `guessed`.
            keys: of the contexts, as `keys` gives them.
            successors: for each context, probabilities by token, the most probable first.
        """
        for order, under in enumerate(keys, start=1):
            table = tables[order]
            table.update(zip(under, successors, strict=True))
            if len(table) > CONTEXTS:
                forget_oldest(table)

    def successors(
        self, context: int, floor: float = 0.0, copied: int | None = None, share: float = 0.0
    ) -> Ranked:
        """The most probable successors of a context.

        Args:
            context: the tokens before.
            floor: less probable ones may be left out.
            copied: the token that follows if the text goes on to repeat a passage.
            share: the probability that it does.
        """
        trust = self._trust
        left = 1.0
        found: dict[int, float] = {}
        kinds: dict[int, int] = {}
        if copied is not None:
            found[copied] = share
            kinds[copied] = COPIED
            left -= share
        levels = self._levels
        pair = context & MASKS[2]
        if not (pair in self.counted[2] or pair in self.recycled[2]):
            # What is known of a longer context is known of a pair, too.
            levels = levels[2:]
        for order, mask, recycled, guessed, counted in levels:
            key = context & mask
            kind = 3 * order + 3
            row = recycled.get(key)
            if row is None:
                row = guessed.get(key)
                kind -= 1
            if row is not None:
                unit = left * RECYCLED_SHARE[order]
                left -= unit
                if left <= ENOUGH and not found:
                    # The common case, and in order already.
                    unit *= trust[kind]
                    least = floor / unit
                    return [
                        (unit * probability, token, kind)
                        for token, probability in row.items()
                        if probability > least
                    ]
                if found:
                    for token, probability in row.items():
                        if token in found:
                            found[token] += unit * probability
                        else:
                            found[token] = unit * probability
                            kinds[token] = kind
                else:
                    found = {token: unit * probability for token, probability in row.items()}
                    kinds = dict.fromkeys(row, kind)
            followed = counted.get(key)
            if followed is not None:
                unit = left / (followed.total + DOUBT[order])
                sources = followed.sources
                for token, weight in followed.weights.items():
                    if token in found:
                        found[token] += unit * weight
                    else:
                        found[token] = unit * weight
                        kinds[token] = 3 * order + 1 + sources[token]
                left -= unit * followed.total
            if left <= ENOUGH or left <= floor:
                break
        ranked = [
            (trusted, token, kind)
            for token, kind in kinds.items()
            if (trusted := found[token] * trust[kind]) > floor
        ]
        if len(ranked) > 1:
            ranked.sort(reverse=True)
            del ranked[CHILDREN:]
        return ranked

    def judge(self, tokens: Sequence[int], nodes: Sequence[int]) -> None:
        """Compare what the last tree promised with what the text became, kind by kind.

        The successors of the root and of every accepted node are trials of the probabilities
        that they were given, whether they became nodes or not: so a kind of evidence that
        promised too much is trusted less, and wins trust back without being drafted.

        Args:
            tokens: what the last step committed.
            nodes: the accepted nodes of what the last call of `tree` returned, in order.
        """
        promised, hits, trust = self.promised, self.hits, self._trust
        tried: set[int] = set()
        for node, actual in zip((ROOT, *nodes), tokens, strict=False):
            if node + 1 >= len(self._grown):
                break
            for share, token, kind in self._grown[node + 1]:
                if kind == COPIED:
                    continue  # its source keeps a record of its own
                promised[kind] = promised[kind] * MEMORY + share / trust[kind]
                hits[kind] = hits[kind] * MEMORY + (token == actual)
                tried.add(kind)
        for kind in tried:
            trust[kind] = self._trust_in(kind)

    def load_record(self, promised: Sequence[float], hits: Sequence[float]) -> None:
        """Take up the record of an earlier model, as it stood in `promised` and `hits`."""
        self.promised, self.hits = list(promised), list(hits)
        self._trust = [self._trust_in(kind) for kind in range(KINDS)]

    def _trust_in(self, kind: int) -> float:
        """What probabilities of this kind are multiplied with."""
        return min((self.hits[kind] + PRIOR) / (self.promised[kind] + PRIOR), TRUST)

    def tree(
        self,
        context: int,
        depth: int,
        curve: CostCurve,
        guide: Guide | None = None,
        lesson: float = LESSON,
    ) -> TokenTree:
        """The tree of the most probable prefixes behind a context.

        Nodes come about in order of their probability to be accepted, so that the tree of any
        size is a part of every larger one.  The size is the one with the most expected tokens
        per cost of the step.

        Args:
            context: ends with the current token.
            depth: the deepest node.
            curve: what a step costs by the number of nodes, up to the most that it may have.
            guide: a passage that the text may be repeating.
            lesson: what nodes are worth in all, in multiples of what they are worth if accepted.
        """
        nodes = curve.nodes
        grown: list[Ranked] = [[] for _ in range(nodes + 1)]
        self._grown = grown
        self.margin = 0.0
        if nodes < 1 or depth < 1:
            return TokenTree()
        cost, slope = curve.cost, curve.slope
        passage: Sequence[int] = guide.tokens if guide else ()
        copying, end = (guide.share, guide.end) if guide else (0.0, 0)
        # By row: the current token's, then the nodes'; contexts and places in the passage of
        # those whose children somebody looked for.
        tokens, parents, depths, kinds, values = [-1], [0], [0], [COPIED], [1.0]
        contexts, places = [context] * (nodes + 1), [end] * (nodes + 1)
        places[0] = guide.start if guide else end
        expected, best, best_size = 1.0, 1.0 / cost[0], 0
        # The best one last.  What waits is a token, or a row whose children nobody has looked
        # for, at what the best of them may have.  Of equal ones, those that came first.
        waiting: list[_Waiting] = [(1.0, 0, 0, -1, 0)]
        size = turn = 0
        while waiting and size < nodes:
            value, _, row, token, kind = waiting.pop()
            # Below this no number of further nodes pays.
            floor = best * slope[size] / lesson
            if value <= floor:
                break
            if len(waiting) >= nodes - size:
                # There is no room for what is worse than all that wait.
                floor = max(floor, waiting[size - nodes][0])
            turn -= 1
            if token >= 0:
                size += 1
                tokens.append(token)
                parents.append(row)
                depths.append(depths[row] + 1)
                kinds.append(kind)
                values.append(value)
                expected += lesson * value
                if expected >= best * cost[size]:
                    best, best_size = expected / cost[size], size
                if depths[size] < depth and (hope := value * HOPE) > floor:
                    insort(waiting, (hope, turn, size, -1, 0))
                continue
            least = 0.0
            if row:
                above, token = parents[row], tokens[row]
                contexts[row] = ((contexts[above] << BITS) | token) & _WHOLE
                place = places[above]
                if place < end:
                    places[row] = place + 1 if passage[place] == token else end
                # The root's are all wanted: `judge` tries them whether they pay or not.
                least = floor / values[row]
            place, value = places[row], values[row]
            copied = passage[place] if place < end else None
            ranked = self.successors(contexts[row], least, copied, copying)
            grown[row] = ranked
            for share, token, kind in ranked:
                insort(waiting, (share * value if share < 1.0 else value, turn, row, token, kind))
                turn -= 1
        self.margin = values[size] if best_size == nodes else 0.0
        last = best_size + 1
        sources = [SOURCE_OF_KIND[kind] for kind in kinds[1:last]]
        return TokenTree(
            tokens[1:last], [row - 1 for row in parents[1:last]], depths[1:last], sources
        )


def forget_oldest(table: dict[int, Any]) -> None:
    """Forget the oldest sixteenth of a table, so that it is seldom done."""
    for key in list(islice(table, len(table) // 16 + 1)):
        del table[key]
