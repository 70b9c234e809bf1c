"""The n-gram model: a small language model that all draft sources feed as the text grows.

It holds two kinds of evidence: decayed counts of the tokens that followed a context, in the text or
in the n-grams of the lookahead window; and the most probable tokens after a context as the large
model itself had them, which steps compute anyway ("recycled": Luo et al., "Turning Trash into
Treasure: Token Recycling", 2024).  Predictions back off from long contexts to short ones: the
longest known context takes its share of the probability and leaves the rest to shorter ones (Witten
and Bell, 1991).  After a token that was never seen, the prior is used: what the large model expects
after new tokens on average.

A context is the last one to four tokens, packed into an integer with 20 bits for each, and there is
a table for each length.  A row of a table holds the successors of one context: a count or a
probability by token.  In this file, "the model's successors" are those of the large model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import TypeAlias

from ..tree import TokenTree
from .constants import CONSTANTS

Row: TypeAlias = dict[int, float]
Table: TypeAlias = dict[int, Row]
Ranked: TypeAlias = list[tuple[float, int, int]]
"""Probability, token and kind of evidence of some successors, best first."""
Repeated: TypeAlias = Sequence[tuple[int, float]]
"""The next tokens of repeated spans, with their probabilities."""

ORDER = 4
"""The number of tokens in the longest context."""
TOKEN_BITS = 20
"""The bits of a token id; vocabularies have up to a million ids."""
TOKEN = (1 << TOKEN_BITS) - 1
WINDOW = 1 << TOKEN_BITS
"""A flag on counted tokens that were last seen in the window's n-grams, not in the text."""
MASKS = tuple((1 << TOKEN_BITS * order) - 1 for order in range(ORDER + 1))
"""By length, the bits of a context that short."""

# Each prediction has a kind of evidence.  How often predictions of a kind come true is recorded,
# and corrects the probabilities of later ones.
REPEATED = 0
"""The kind of a token that continues a repeated span, which `ContextSource` calibrates."""
EVIDENCE = ("context", "trajectory", "recycled")
"""The evidence that a context of some length can have: tokens counted in the text, tokens counted
in the window's n-grams, the model's successors.  Its kind is 1 + 3 * length + index in this."""
PRIOR = 3
"""The kind of the prior: the model's successors after a context of length 0."""
KINDS = 1 + 3 * (ORDER + 1)
FORCED = KINDS
"""The kind of the only token that a grammar allows."""
SOURCE_OF_KIND = ("context", *EVIDENCE * (ORDER + 1), "forced")
"""By kind, the source that is shown for a draft token."""


def pack(tokens: Sequence[int]) -> int:
    """Return the context that some tokens end with: the last `ORDER` of them in an integer."""
    context = 0
    for token in tokens[-ORDER:]:
        context = context << TOKEN_BITS | token
    return context


class NgramModel:
    """Learns which tokens follow which, and predicts what follows a context.

    Attributes:
        counts: by length of context, a table of counts.
        model_successors: by length of context, a table of the model's successors.
        prior: the decayed mean of the model's successors after new tokens, best first.
        expected_hits, hits: by kind of evidence, the sum of the probabilities that were compared
            with the text, and how often the text agreed; both decayed.
    """

    def __init__(self) -> None:
        self.counts: list[Table] = [{} for _ in MASKS]
        self.model_successors: list[Table] = [{} for _ in MASKS]
        self.prior: Row = {}
        self._new_rows: list[Row] = []  # rows that the prior has not learned yet
        self.expected_hits, self.hits = [0.0] * KINDS, [0.0] * KINDS
        # By kind of evidence, the factor by which its probabilities are corrected.
        self._calibration = [1.0] * KINDS
        self._longest_first = [
            (MASKS[n], self.model_successors[n], self.counts[n], n) for n in range(ORDER, 0, -1)
        ]

    def learn(self, texts: Sequence[Sequence[int]], first: int, *, window: bool = False) -> None:
        """Count tokens that follow one another, each under up to four tokens before it.

        Args:
            texts: accepted texts, or n-grams.
            first: the index in each text of the first token to count.
            window: whether the texts are n-grams of the lookahead window.
        """
        weight, flag = (CONSTANTS.window_weight, WINDOW) if window else (1.0, 0)
        for text in texts:
            context = pack(text[:first])
            for index in range(first, len(text)):
                key = text[index] | flag
                for order in range(1, min(index, ORDER) + 1):
                    counts = self.counts[order].setdefault(context & MASKS[order], {})
                    for known in counts:
                        counts[known] *= CONSTANTS.count_decay
                    # The token may have the other flag, if it was last seen elsewhere.
                    before = counts[key] if key in counts else counts.pop(key ^ WINDOW, 0.0)
                    if not before and len(counts) >= CONSTANTS.max_successors:
                        del counts[min(counts, key=counts.__getitem__)]
                    counts[key] = before + weight
                context = (context << TOKEN_BITS | text[index]) & MASKS[ORDER]
        _forget_oldest(self.counts)

    def recycle(self, text: Sequence[int], tree: TokenTree, rows: Sequence[Row]) -> None:
        """Remember the model's successors after a text and after each node of a tree.

        Args:
            text: the text, or its last four tokens.
            tree: candidates after the text.
            rows: the successors after the text, then after each node.
        """
        contexts = [pack(text)]
        for parent, token in zip(tree.parents, tree.tokens, strict=True):
            contexts.append((contexts[parent + 1] << TOKEN_BITS | token) & MASKS[ORDER])
        pairs = [pair for pair in zip(contexts, rows, strict=False) if pair[1]]
        known = self.model_successors[1]
        self._learn_prior([row for context, row in pairs if context & TOKEN not in known])
        for order in range(1, min(len(text), ORDER) + 1):
            table, mask = self.model_successors[order], MASKS[order]
            for context, row in pairs:
                table[context & mask] = row
        _forget_oldest(self.model_successors)

    def _learn_prior(self, rows: Sequence[Row]) -> None:
        """Add rows to the prior, `prior_rows` or more at a time."""
        self._new_rows += rows
        if len(self._new_rows) < (CONSTANTS.prior_rows if self.prior else 1):
            return
        kept = CONSTANTS.prior_decay ** len(self._new_rows)
        prior = {token: probability * kept for token, probability in self.prior.items()}
        for row in self._new_rows:
            for token, probability in row.items():
                prior[token] = prior.get(token, 0.0) + (1.0 - CONSTANTS.prior_decay) * probability
        self._new_rows.clear()
        ranked = sorted(prior.items(), key=itemgetter(1), reverse=True)
        self.prior = dict(ranked[: CONSTANTS.prior_successors])

    def look_up(self, context: int, floor: float = 0.0, repeated: Repeated = ()) -> Ranked:
        """Return the successors of a packed context whose probabilities exceed `floor`.

        Args:
            context: a context from `pack`.
            floor: the least probability; shorter contexts that cannot exceed it are not looked up.
            repeated: tokens that take their probabilities before all others, one after the other.
        """
        calibration, left, last = self._calibration, 1.0, context & TOKEN
        if not repeated and last not in self.model_successors[1] and last not in self.counts[1]:
            # The last token is new.
            most = CONSTANTS.max_children if floor else None
            prior = islice(self.prior.items(), most)
            return _exceeding(floor, prior, 1.0, self._calibration[PRIOR], PRIOR)
        probabilities: Row = {}
        kinds: dict[int, int] = {}
        for token, probability in repeated:
            probabilities[token] = probabilities.get(token, 0.0) + left * probability
            kinds[token] = REPEATED
            left *= 1.0 - probability
        levels, pair = self._longest_first, context & MASKS[2]
        # If the last two tokens are no known context, then no longer one is known, either.
        if pair not in self.model_successors[2] and pair not in self.counts[2]:
            levels = levels[-2:]
        for mask, model_successors, counts, order in levels:
            # The model's successors take their share first.
            if (row := model_successors.get(context & mask)) is not None:
                kind, unit = 3 * order + 3, left * CONSTANTS.model_shares[order]
                left -= unit
                if left <= CONSTANTS.negligible and not probabilities:  # the common case, made fast
                    return _exceeding(floor, row.items(), unit, calibration[kind], kind)
                for token, probability in row.items():
                    probabilities[token] = probabilities.get(token, 0.0) + unit * probability
                    kinds.setdefault(token, kind)
            # Counted tokens come next; shorter contexts share what is left.
            if (row := counts.get(context & mask)) is not None:
                total = sum(row.values())
                unit = left / (total + CONSTANTS.discounts[order])
                left -= unit * total
                for key, count in row.items():
                    token = key & TOKEN
                    probabilities[token] = probabilities.get(token, 0.0) + unit * count
                    kinds.setdefault(token, 3 * order + 1 + (key >> TOKEN_BITS))
            if left <= CONSTANTS.negligible or left <= floor:
                break
        ranked = [
            (calibrated, token, kind)
            for token, kind in kinds.items()
            if (calibrated := probabilities[token] * calibration[kind]) > floor
        ]
        ranked.sort(reverse=True)
        return ranked

    def calibrate(
        self, looked_up: Mapping[int, Ranked], tokens: Sequence[int], accepted: Sequence[int]
    ) -> None:
        """Compare predictions with the tokens that a step committed, and correct later ones.

        All successors that were looked up after the current token and after accepted nodes are
        compared, whether they became nodes or not.  So a kind whose probabilities were corrected
        downwards can recover without being drafted.

        Args:
            looked_up: the successors that the tree was grown from; see `TreeSearch`.
            tokens: the tokens that the step committed.
            accepted: the accepted nodes of the tree, in order.
        """
        expected, hits, before = self.expected_hits, self.hits, self._calibration.copy()
        decay, assumed = CONSTANTS.calibration_decay, CONSTANTS.calibration_prior
        for node, actual in zip((-1, *accepted), tokens, strict=False):  # -1: the current token
            for probability, token, kind in looked_up.get(node + 1, ()):
                if REPEATED < kind < FORCED:
                    raw = probability / before[kind]
                    expected[kind] = expected[kind] * decay + raw
                    hits[kind] = hits[kind] * decay + (token == actual)
                    record = (hits[kind] + assumed) / (expected[kind] + assumed)
                    self._calibration[kind] = min(record, CONSTANTS.max_calibration)


def _exceeding(
    floor: float, row: Iterable[tuple[int, float]], unit: float, calibration: float, kind: int
) -> Ranked:
    """Return the successors in a row whose calibrated shares of `unit` exceed `floor`."""
    return [
        (calibrated, token, kind)
        for token, probability in row
        if (calibrated := unit * probability * calibration) > floor
    ]


def _forget_oldest(tables: Sequence[Table]) -> None:
    """Drop the oldest contexts of large tables, a sixteenth at once, since that takes a pass."""
    for table in tables:
        if len(table) > CONSTANTS.max_contexts:
            excess = len(table) - CONSTANTS.max_contexts + CONSTANTS.max_contexts // 16
            for context in list(islice(table, excess)):
                del table[context]
