"""One small online language model that all draft sources feed, and the tree it proposes.

Evidence is of two kinds: tokens that followed a context (in the text, in the n-grams of the
lookahead window), counted with decay; and the model's own most probable successors, which steps
compute anyway ("recycled": Luo et al., "Turning Trash into Treasure: Token Recycling", 2024).
A backoff model interpolates them: the longest known context takes its share of the probability
and leaves the rest to shorter ones (Witten and Bell, 1991).  After a token that no evidence is of,
the prior holds: what the model expected after other tokens when they were new.  The `noise` that
tokens will be drawn with weighs all these.  The draft is the tree of the most probable prefixes.

A context is the last one to four tokens packed into an integer of 20 bits a token, with a table
for each length.  A row holds the successors of one context: weight or probability by token.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import TypeAlias

from ..noise import Dice
from ..step_cost import CostCurve
from ..strategy import Successors
from ..tree import ROOT, TokenTree

Row: TypeAlias = "dict[int, float]"
Table: TypeAlias = "dict[int, Row]"
Ranked: TypeAlias = "list[tuple[float, int, int]]"
"""Probability, token and kind of evidence, best first."""

ORDER = 4  # longest context, in tokens
TOKEN_BITS = 20  # vocabularies have up to a million ids
TOKEN = (1 << TOKEN_BITS) - 1
WINDOW = 1 << TOKEN_BITS  # added to counted tokens that the window's n-grams showed last
MASKS = tuple((1 << TOKEN_BITS * order) - 1 for order in range(ORDER + 1))  # by length of context
CONTEXTS = 1 << 16  # remembered in a table; the oldest go first
MAX_SUCCESSORS = 6  # of a context; further ones cost time and are hardly ever right
MAX_CHILDREN = 8  # of a tree node
SAMPLED_SUCCESSORS = 12  # remembered when tokens are drawn, where a rare one may come next
PRIOR_SUCCESSORS = 64  # that the prior holds
PRIOR_ROWS = 12  # that it learns at once, since ranking takes time
PRIOR_DECAY = 0.95  # what the prior keeps when it learns another row
DECAY = 0.7  # what older counts of a context keep when it gets a new one
NEGLIGIBLE = 0.2  # probability left at which shorter contexts are not looked up any more
# By length of context: the weight of counts that get half of the probability left, and what the
# model's own successors get of it.
DISCOUNTS = (0.0, 8.0, 4.0, 2.0, 1.0)
MODEL_SHARES = (0.0, 0.65, 0.7, 0.8, 0.95)

# Kinds of evidence are calibrated separately: 1 + 3 * length of context + index of the source.
SOURCES = ("context", "trajectory", "recycled")
KINDS = 1 + 3 * (ORDER + 1)
REPEATED = 0  # drafted along a repeated span, whose source calibrates itself
PRIOR = 3  # recycled, without a context
SOURCE_OF_KIND = ("context", *(SOURCES[kind % 3] for kind in range(KINDS - 1)))
CALIBRATION_DECAY = 0.98  # what a kind's record keeps when it is tried again
CALIBRATION_PRIOR = 2.0  # expected hits at which a record counts as much as no correction
MAX_TRUST = 3.0  # the most by which a record raises probabilities

OPTIMISM = 0.5
"""Assumed probability of the best child of a node that was not looked up yet.  At 1.0 trees took
a third longer to build and accepted no more."""
EXPLORATION = 1.5
"""Worth of a node relative to its probability to be accepted: its logits teach in any case.  By
the cost curves of two processors a text took up to 2 % more time at 1.0, and 2.5 % at 2.0."""


@dataclass(frozen=True, slots=True)
class RepeatedSpan:
    """An earlier passage that the end of the text repeats.

    Attributes:
        tokens: what holds the passage.
        start: index in `tokens` of what follows if the text repeats it further.
        end: index after its last usable token.
        probability: that the next token is repeated too.
    """

    tokens: Sequence[int]
    start: int
    end: int
    probability: float


def pack(tokens: Sequence[int]) -> int:
    """The context after some tokens: the last `ORDER` of them, in an integer."""
    context = 0
    for token in tokens[-ORDER:]:
        context = context << TOKEN_BITS | token
    return context


class NgramModel:
    """Learns from tokens and proposes trees of them.

    Attributes:
        counts: by length of context, decayed counts of the tokens that followed.
        answers: by length of context, the model's successors after a text or a candidate.
        prior: decayed mean of the model's successors after tokens that were new, best first.
        promised, hits: by kind of evidence, the hits that its probabilities promised, and those
            that there were.
    """

    def __init__(self) -> None:
        self.counts: list[Table] = [{} for _ in MASKS]
        self.answers: list[Table] = [{} for _ in MASKS]
        self.prior: Row = {}
        self._new_rows: list[Row] = []  # that the prior is still to learn
        self.promised, self.hits = [0.0] * KINDS, [0.0] * KINDS
        # What probabilities of each kind are multiplied with.
        self._trust = [1.0] * KINDS
        # The successors that the last tree looked up: by node + 1, so that 0 is the root.
        self._looked_up: dict[int, Ranked] = {}
        tables = zip(MASKS, self.answers, self.counts, range(ORDER + 1), strict=True)
        self._longest_first = list(tables)[:0:-1]

    def learn(
        self, rows: Sequence[Sequence[int]], first: int, weight: float, flag: int = 0
    ) -> None:
        """Count tokens that follow one another, each under up to four tokens before it.

        Args:
            rows: token sequences.
            first: index of the first token of each that is new.
            weight: 1 for accepted text.
            flag: `WINDOW` for n-grams of the lookahead window.
        """
        for row in rows:
            context = pack(row[:first])
            for index in range(first, len(row)):
                key = row[index] | flag
                for order in range(1, min(index, ORDER) + 1):
                    counts = self.counts[order].setdefault(context & MASKS[order], {})
                    _count(counts, key, weight)
                context = (context << TOKEN_BITS | row[index]) & MASKS[ORDER]
        _forget_oldest(self.counts)

    def recycle(self, text: Sequence[int], tree: TokenTree, rows: Successors) -> None:
        """Remember the model's successors after a text and after each node of a tree.

        Args:
            text: at least its last four tokens, if it has as many.
            tree: candidates after the text.
            rows: after the text, then after each node; at most `SAMPLED_SUCCESSORS` each.
        """
        contexts = [pack(text)]
        for parent, token in zip(tree.parents, tree.tokens, strict=True):
            contexts.append((contexts[parent + 1] << TOKEN_BITS | token) & MASKS[ORDER])
        pairs = [pair for pair in zip(contexts, rows, strict=False) if pair[1]]
        known = self.answers[1]
        self._learn_prior([row for context, row in pairs if context & TOKEN not in known])
        for order in range(1, min(len(text), ORDER) + 1):
            table, mask = self.answers[order], MASKS[order]
            for context, row in pairs:
                table[context & mask] = row
        _forget_oldest(self.answers)

    def _learn_prior(self, rows: Sequence[Row]) -> None:
        """Add the model's successors after tokens that are new, some rows at a time."""
        self._new_rows += rows
        if len(self._new_rows) < (PRIOR_ROWS if self.prior else 1):
            return
        kept = PRIOR_DECAY ** len(self._new_rows)
        prior = {token: share * kept for token, share in self.prior.items()}
        for row in self._new_rows:
            for token, share in row.items():
                prior[token] = prior.get(token, 0.0) + (1.0 - PRIOR_DECAY) * share
        self._new_rows.clear()
        ranked = sorted(prior.items(), key=itemgetter(1), reverse=True)
        self.prior = dict(ranked[:PRIOR_SUCCESSORS])

    def successors(self, text: Sequence[int]) -> Ranked:
        """The most probable successors of a text."""
        return self._look_up(pack(text), 0.0, None, 0.0)[:MAX_CHILDREN]

    def build_tree(
        self,
        text: Sequence[int],
        depth: int,
        curve: CostCurve,
        span: RepeatedSpan | None = None,
        exploration: float = EXPLORATION,
        dice: Dice | None = None,
        children: int = MAX_CHILDREN,
    ) -> TokenTree:
        """The tree of the most probable prefixes after a text.

        Nodes come in the order of their probability to be accepted.  The size is the one with the
        most expected tokens for the cost of the step.

        Args:
            text: ends with the current token; the last four count.
            depth: of the deepest node.
            curve: what a step costs by number of nodes, up to the most that it may have.
            span: a passage that the text may be repeating.
            exploration: worth of a node relative to its probability to be accepted.
            dice: with which the next tokens are drawn; None for greedy.
            children: of a node, at most; 1 for a chain.
        """
        cost, slope = curve.cost, curve.slope
        room = len(cost) - 1
        self._looked_up = {}
        if room < 1 or depth < 1:
            return TokenTree()
        # What the span goes on with, and the number of its tokens that lead to node `spanned`.
        passage: Sequence[int] = ()
        probability, done, spanned = 0.0, 0, 0
        if span is not None:
            passage = span.tokens[span.start : min(span.end, span.start + min(room, depth))]
            probability = span.probability
        # By node + 1, the current token first.
        tokens, parents, depths, kinds, values = [0], [ROOT], [0], [REPEATED], [1.0]
        contexts = {0: pack(text)}
        # Ascending by probability and turn: for a node the place of its best successor that is not
        # in the tree, or None where its successors are still to be looked up.
        waiting: list[tuple[float, int, int, int | None]] = [(1.0, 0, 0, None)]
        turn = size = best_size = 0
        expected, best = 1.0, 1.0 / cost[0]
        while waiting and size < room:
            value, since, node, place = waiting.pop()
            # Below this no number of further nodes pays.
            floor = best * slope[size] / exploration
            if value <= floor:
                break
            left = room - size
            if len(waiting) >= left and waiting[-left][0] > floor:
                # There is no room for anything worse than all that wait.
                floor = waiting[-left][0]
            if place is None:
                repeated = passage[done] if node == spanned and done < len(passage) else None
                value = values[node]
                # The root's are all wanted: `calibrate` tries them whether they pay or not.
                least = floor / value if node else 0.0
                # With some luck any token is drawn.
                reach = least if dice is None else 0.0
                found = self._look_up(contexts[node], reach, repeated, probability)
                if dice is not None:
                    found = _loaded(found, dice, len(text) + depths[node], least)
                self._looked_up[node] = found = found[:MAX_CHILDREN]
                if found:
                    turn -= 1
                    insort(waiting, (min(found[0][0], 1.0) * value, turn, node, 0))
                continue
            siblings = self._looked_up[node]
            _, token, kind = siblings[place]
            if (place := place + 1) < min(len(siblings), children):
                share = min(siblings[place][0], 1.0)
                insort(waiting, (share * values[node], since, node, place))
            size += 1
            if node == spanned and done < len(passage) and passage[done] == token:
                spanned, done = size, done + 1
            level = depths[node] + 1
            tokens.append(token)
            parents.append(node - 1)
            depths.append(level)
            kinds.append(kind)
            values.append(value)
            expected += exploration * value
            if expected >= best * cost[size]:
                best, best_size = expected / cost[size], size
            if level < depth and value * OPTIMISM > floor:
                contexts[size] = (contexts[node] << TOKEN_BITS | token) & MASKS[ORDER]
                turn -= 1
                insort(waiting, (value * OPTIMISM, turn, size, None))
        last = best_size + 1
        sources = [SOURCE_OF_KIND[kind] for kind in kinds[1:last]]
        return TokenTree(tokens[1:last], parents[1:last], depths[1:last], sources)

    def _look_up(
        self, context: int, floor: float, repeated: int | None, probability: float
    ) -> Ranked:
        """The most probable successors of a context that exceed `floor`.

        Args:
            context: packed.
            floor: shorter contexts are left out where they add at most this.
            repeated: the token that follows if the text repeats a span further.
            probability: that it does.
        """
        trust, left = self._trust, 1.0
        last = context & TOKEN
        if repeated is None and last not in self.answers[1] and last not in self.counts[1]:
            factor, most = trust[PRIOR], MAX_CHILDREN if floor else None
            return [
                (trusted, token, PRIOR)
                for token, share in islice(self.prior.items(), most)
                if (trusted := share * factor) > floor
            ]
        found: Row = {}
        kinds: dict[int, int] = {}
        if repeated is not None:
            found[repeated], kinds[repeated] = probability, REPEATED
            left -= probability
        levels, pair = self._longest_first, context & MASKS[2]
        # What is known of a longer context is known of its last pair, too.
        if pair not in self.answers[2] and pair not in self.counts[2]:
            levels = levels[-2:]
        for mask, answers, counts, order in levels:
            part, kind = context & mask, 3 * order + 3
            if (row := answers.get(part)) is not None:
                unit = left * MODEL_SHARES[order]
                left -= unit
                if left <= NEGLIGIBLE and not found:
                    # The common case: the model's own answer is nearly all there is.
                    factor = trust[kind]
                    return [
                        (trusted, token, kind)
                        for token, share in row.items()
                        if (trusted := unit * share * factor) > floor
                    ]
                for token, share in row.items():
                    found[token] = found.get(token, 0.0) + unit * share
                    kinds.setdefault(token, kind)
            if (row := counts.get(part)) is not None:
                total = sum(row.values())
                unit = left / (total + DISCOUNTS[order])
                left -= unit * total
                for key, weight in row.items():
                    token = key & TOKEN
                    found[token] = found.get(token, 0.0) + unit * weight
                    kinds.setdefault(token, 3 * order + 1 + (key >> TOKEN_BITS))
            if left <= NEGLIGIBLE or left <= floor:
                break
        ranked = [
            (trusted, token, kind)
            for token, kind in kinds.items()
            if (trusted := found[token] * trust[kind]) > floor
        ]
        ranked.sort(reverse=True)
        return ranked

    def calibrate(self, tokens: Sequence[int], accepted: Sequence[int]) -> None:
        """Compare what the last tree promised with what the text became, kind by kind.

        The successors of the root and of every accepted node are trials of their probabilities,
        whether they became nodes or not: so a kind that promised too much is trusted less, and
        wins trust back without being drafted.

        Args:
            tokens: what the last step committed.
            accepted: the accepted nodes of the last tree, in order.
        """
        promised, hits, before = self.promised, self.hits, self._trust.copy()
        for node, actual in zip((ROOT, *accepted), tokens, strict=False):
            for share, token, kind in self._looked_up.get(node + 1, ()):
                if kind != REPEATED:
                    promised[kind] = promised[kind] * CALIBRATION_DECAY + share / before[kind]
                    hits[kind] = hits[kind] * CALIBRATION_DECAY + (token == actual)
                    record = (hits[kind] + CALIBRATION_PRIOR) / (promised[kind] + CALIBRATION_PRIOR)
                    self._trust[kind] = min(record, MAX_TRUST)


def _loaded(found: Ranked, dice: Dice, position: int, floor: float) -> Ranked:
    """Successors whose probabilities to be drawn at a position exceed `floor`, best first."""
    chances = dice.chances([token for _, token, _ in found], [p for p, _, _ in found], position)
    pairs = zip(chances, found, strict=True)
    loaded = [(chance, token, kind) for chance, (_, token, kind) in pairs if chance > floor]
    loaded.sort(reverse=True)
    return loaded


def _count(counts: Row, key: int, weight: float) -> None:
    """Count one more token of a context, and everything before a little less."""
    for known in counts:
        counts[known] *= DECAY
    # It may have been seen from the other source last.
    before = counts[key] if key in counts else counts.pop(key ^ WINDOW, 0.0)
    if not before and len(counts) >= MAX_SUCCESSORS:
        del counts[min(counts, key=counts.__getitem__)]
    counts[key] = before + weight


def _forget_oldest(tables: Sequence[Table]) -> None:
    """Bound the tables; a sixteenth goes at once, since finding the oldest takes a pass."""
    for table in tables:
        if len(table) > CONTEXTS:
            excess = len(table) - CONTEXTS + CONTEXTS // 16
            for context in list(islice(table, excess)):
                del table[context]
