"""The n-gram model once more, with dictionaries: what the compiled one must agree with."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from ladecli.decoder.ngrams import LESSON, SOURCES, Guide
from ladecli.decoder.ngrams import kernels as k
from ladecli.decoder.step_cost import CostCurve
from ladecli.decoder.tree import ROOT

Row = dict[int, float]
Ranked = list[tuple[float, int, int]]
Grown = tuple[list[int], list[int], list[int]]
"""Tokens, parents and kinds of evidence of a tree's nodes."""


def context_of(tokens: Sequence[int]) -> int:
    """The last four tokens as one number; fewer have zeros before them."""
    context = 0
    for token in tokens[-k.ORDER :]:
        context = (context << k.BITS) | token
    return context


def shortened(context: int, order: int) -> int:
    return context & ((1 << (k.BITS * order)) - 1)


class Counted:
    def __init__(self) -> None:
        self.total = 0.0
        self.weights: Row = {}
        self.sources: dict[int, int] = {}

    def add(self, token: int, weight: float, source: int) -> None:
        for known in self.weights:
            self.weights[known] *= k.DECAY
        self.total = self.total * k.DECAY + weight
        if token in self.weights:
            self.weights[token] += weight
        else:
            if len(self.weights) >= k.SUCCESSORS:
                rarest = min(self.weights, key=self.weights.__getitem__)
                self.total -= self.weights.pop(rarest)
            self.weights[token] = weight
        self.sources[token] = source


class PlainModel:
    """Remembers everything."""

    def __init__(self) -> None:
        self.counted: list[dict[int, Counted]] = [{} for _ in range(k.ORDER + 1)]
        self.answers: list[dict[int, Row]] = [{} for _ in range(k.ORDER + 1)]
        self.guesses: list[dict[int, Row]] = [{} for _ in range(k.ORDER + 1)]
        self.promised, self.hits = [0.0] * k.KINDS, [0.0] * k.KINDS
        self.margin = 0.0
        self._grown: list[Ranked] = []

    def learn(self, rows: Sequence[Sequence[int]], first: int, weight: float, source: str) -> None:
        for row in rows:
            for i in range(first, len(row)):
                for order in range(1, min(i, k.ORDER) + 1):
                    table = self.counted[order]
                    counted = table.setdefault(context_of(row[i - order : i]), Counted())
                    counted.add(row[i], weight, SOURCES.index(source))

    def recycle(
        self, text: Sequence[int], tokens: Sequence[int], parents: Sequence[int], said: list[Row]
    ) -> None:
        paths = [list(text[-k.ORDER :])]
        for parent, token in zip(parents, tokens, strict=True):
            paths.append([*paths[parent + 1], token])
        for path, row in zip(paths, said, strict=True):
            for order in range(1, min(len(text), k.ORDER) + 1 if row else 1):
                self.answers[order][context_of(path[-order:])] = row

    def guess(self, pairs: Sequence[tuple[int, int]], said: list[Row]) -> None:
        for pair, row in zip(pairs, said, strict=True):
            if row:
                self.guesses[1][pair[1]] = row
                self.guesses[2][context_of(pair)] = row

    def trust(self, kind: int) -> float:
        return min((self.hits[kind] + k.PRIOR) / (self.promised[kind] + k.PRIOR), k.TRUST)

    def successors(self, context: int, floor: float, copied: int | None, copying: float) -> Ranked:
        left, found, kinds = 1.0, dict[int, float](), dict[int, int]()
        if copied is not None:
            found[copied], kinds[copied] = copying, k.COPIED
            left -= copying
        pair = shortened(context, 2)
        known = pair in self.counted[2] or pair in self.answers[2]
        for order in range(k.ORDER if known else 2, 0, -1):
            key = shortened(context, order)
            row, source = self.answers[order].get(key), k.ASKED
            if row is None:
                row, source = self.guesses[order].get(key), k.GUESSED
            if row is not None:
                first = not found
                unit = left * k.ANSWERED[order]
                left -= unit
                for token, share in row.items():
                    found[token] = found.get(token, 0.0) + unit * share
                    kinds.setdefault(token, 1 + 3 * order + source)
                if first and left <= k.ENOUGH:
                    break
            counted = self.counted[order].get(key)
            if counted is not None:
                unit = left / (counted.total + k.DOUBT[order])
                for token, weight in counted.weights.items():
                    found[token] = found.get(token, 0.0) + unit * weight
                    kinds.setdefault(token, 1 + 3 * order + counted.sources[token])
                left -= unit * counted.total
            if left <= k.ENOUGH or left <= floor:
                break
        ranked = [(found[token] * self.trust(kind), token, kind) for token, kind in kinds.items()]
        return sorted((one for one in ranked if one[0] > floor), reverse=True)[: k.CHILDREN]

    def judge(self, tokens: Sequence[int], nodes: Sequence[int]) -> None:
        trust = [self.trust(kind) for kind in range(k.KINDS)]
        for node, actual in zip((ROOT, *nodes), tokens, strict=False):
            if node + 1 >= len(self._grown):
                break
            for share, token, kind in self._grown[node + 1]:
                if kind != k.COPIED:
                    self.promised[kind] = self.promised[kind] * k.MEMORY + share / trust[kind]
                    self.hits[kind] = self.hits[kind] * k.MEMORY + (token == actual)

    def tree(
        self,
        text: Sequence[int],
        depth: int,
        curve: CostCurve,
        guide: Guide | None = None,
        lesson: float = LESSON,
    ) -> Grown:
        room = curve.nodes
        self._grown, self.margin = [[] for _ in range(room + 1)], 0.0
        if room < 1 or depth < 1:
            return [], [], []
        start, end, copying = (guide.start, guide.end, guide.share) if guide else (0, 0, 0.0)
        tokens, parents, kinds, values, depths = [-1], [0], [k.COPIED], [1.0], [0]
        contexts, places = {0: context_of(text)}, {0: start}
        expected, best, best_size = 1.0, 1.0 / curve.cost[0], 0
        # Value, order of arrival, row of the parent, token (-1: look for children), kind.
        waiting: list[tuple[float, int, int, int, int]] = [(1.0, 0, 0, -1, 0)]
        size = turn = 0
        while waiting and size < room:
            value, _, row, token, kind = waiting.pop()
            floor = best * curve.slope[size] / lesson
            if value <= floor:
                break
            if len(waiting) >= room - size:
                floor = max(floor, waiting[size - room][0])
            if token >= 0:
                size += 1
                for column, cell in (
                    *((tokens, token), (parents, row), (kinds, kind)),
                    (depths, depths[row] + 1),
                ):
                    column.append(cell)
                values.append(value)
                expected += lesson * value
                if expected >= best * curve.cost[size]:
                    best, best_size = expected / curve.cost[size], size
                if depths[size] < depth and value * k.HOPE > floor:
                    turn -= 1
                    insort(waiting, (value * k.HOPE, turn, size, -1, 0))
                continue
            if row:
                above = parents[row]
                contexts[row] = shortened((contexts[above] << k.BITS) | tokens[row], k.ORDER)
                place = places[above]
                follows = guide and place < end and guide.tokens[place] == tokens[row]
                places[row] = place + 1 if follows else end
            place = places[row]
            copied = guide.tokens[place] if guide and place < end else None
            least = floor / values[row] if row else 0.0
            self._grown[row] = self.successors(contexts[row], least, copied, copying)
            for share, child, kind in self._grown[row]:
                turn -= 1
                insort(waiting, (min(share, 1.0) * values[row], turn, row, child, kind))
        self.margin = values[size] if best_size == room else 0.0
        last = best_size + 1
        return tokens[1:last], [above - 1 for above in parents[1:last]], kinds[1:last]
