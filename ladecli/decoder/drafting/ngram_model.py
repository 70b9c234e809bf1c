"""One small online language model that all draft sources feed: its tables, and its predictions.

Evidence is of two kinds: tokens that followed a context (in the text, in the n-grams of the
lookahead window), counted with decay; and the model's own most probable successors, which steps
compute anyway ("recycled": Luo et al., "Turning Trash into Treasure: Token Recycling", 2024).
A backoff model interpolates them: the longest known context takes its share of the probability
and leaves the rest to shorter ones (Witten and Bell, 1991).  A token without any evidence has the
prior: what the model expected after other tokens when they were new.

A context is the last one to four tokens packed into an integer of 20 bits a token, with a table
for each length.  A row holds the successors of one context: count or probability by token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ..tree import TokenTree

Row: TypeAlias = "dict[int, float]"
Table: TypeAlias = "dict[int, Row]"
Ranked: TypeAlias = "list[tuple[float, int, int]]"
"""Probability, token and kind of evidence of some successors, best first."""
Repeated: TypeAlias = "tuple[int, float] | None"
"""The token with which a repeated span goes on, and its probability; None without a span."""

ORDER = 4
"""Tokens of the longest context."""
TOKEN_BITS = 20
"""Vocabularies have up to a million ids."""
TOKEN = (1 << TOKEN_BITS) - 1
WINDOW = 1 << TOKEN_BITS
"""Added to counted tokens that the window's n-grams showed last."""
WINDOW_WEIGHT = 0.25
"""The weight of a token of these, relative to one of accepted text."""
MASKS = tuple((1 << TOKEN_BITS * order) - 1 for order in range(ORDER + 1))
"""By length of context."""
CONTEXTS = 1 << 16
"""Contexts in a table; the oldest go first."""
MAX_SUCCESSORS = 6
"""Of a context; further ones cost time and are hardly ever right."""
MAX_CHILDREN = 8
"""The most children of a tree node."""
SAMPLED_SUCCESSORS = 12
"""Remembered when tokens are drawn, where a rare one may come next."""
PRIOR_SUCCESSORS = 64
"""Tokens in the prior."""
PRIOR_ROWS = 12
"""Rows that the prior learns at once, since ranking takes time."""
PRIOR_DECAY = 0.95
"""The decay of the prior when it learns another row."""
DECAY = 0.7
"""The decay of a context's counts when a new token is counted."""
NEGLIGIBLE = 0.2
"""Shorter contexts are not looked up once no more than this much probability is left."""
DISCOUNTS = (0.0, 8.0, 4.0, 2.0, 1.0)
"""By length of context: the total of counts that gets half of the probability left."""
MODEL_SHARES = (0.0, 0.65, 0.7, 0.8, 0.95)
"""By length of context: what the model's own successors get of the probability left."""

REPEATED = 0
"""The kind of a token that continues a repeated span: the span's source calibrates it."""
EVIDENCE = ("context", "trajectory", "recycled")
"""Kinds of evidence after a context, calibrated separately for each length: tokens counted in text,
tokens counted in n-grams of the window, the model's successors.  Kind 1 + 3 * length + index."""
PRIOR = 3
"""The kind of the prior: the model's successors after a context of no token."""
KINDS = 1 + 3 * (ORDER + 1)
SOURCE_OF_KIND = ("context", *EVIDENCE * (ORDER + 1))
"""By kind, the source that a draft token is said to be of."""
CALIBRATION_DECAY = 0.98
"""The decay of a kind's record when it is tried again."""
CALIBRATION_PRIOR = 2.0
"""Expected hits at which a record counts as much as no correction."""
MAX_CALIBRATION = 3.0
"""The most by which a record raises probabilities."""


class RepeatedSpan(NamedTuple):
    """An earlier passage that the end of the text repeats."""

    tokens: Sequence[int]
    """The sequence that holds the passage."""
    start: int
    """Index in `tokens` of what follows if the text repeats it further."""
    end: int
    """Index after its last usable token."""
    probability: float
    """That the next token is repeated too."""


def pack(tokens: Sequence[int]) -> int:
    """Return the context after some tokens: the last `ORDER` of them, in an integer."""
    context = 0
    for token in tokens[-ORDER:]:
        context = context << TOKEN_BITS | token
    return context


class NgramModel:
    """Learns which tokens follow which, and says what may follow a context.

    Attributes:
        counts: by length of context, decayed counts of the tokens that followed.
        model_successors: by length of context, the model's successors after a text or a candidate.
        prior: decayed mean of the model's successors after tokens that were new, best first.
        expected_hits, hits: by kind of evidence, the sum of its probabilities that were compared
            with the text, and how often the text agreed; both decayed.
    """

    def __init__(self) -> None:
        self.counts: list[Table] = [{} for _ in MASKS]
        self.model_successors: list[Table] = [{} for _ in MASKS]
        self.prior: Row = {}
        self._new_rows: list[Row] = []  # that the prior is still to learn
        self.expected_hits, self.hits = [0.0] * KINDS, [0.0] * KINDS
        # By kind of evidence, the factor by which its probabilities are corrected.
        self._calibration = [1.0] * KINDS
        self._longest_first = [
            (MASKS[n], self.model_successors[n], self.counts[n], n) for n in range(ORDER, 0, -1)
        ]

    def learn(self, texts: Sequence[Sequence[int]], first: int, *, window: bool = False) -> None:
        """Count tokens that follow one another, each under up to four tokens before it.

        Args:
            texts: accepted ones, or n-grams.
            first: index of the first token of each that is new.
            window: whether they are n-grams of the lookahead window.
        """
        weight, flag = (WINDOW_WEIGHT, WINDOW) if window else (1.0, 0)
        for text in texts:
            context = pack(text[:first])
            for index in range(first, len(text)):
                key = text[index] | flag
                for order in range(1, min(index, ORDER) + 1):
                    counts = self.counts[order].setdefault(context & MASKS[order], {})
                    # Everything before counts a little less.
                    for known in counts:
                        counts[known] *= DECAY
                    # The token may have been seen from the other source last.
                    before = counts[key] if key in counts else counts.pop(key ^ WINDOW, 0.0)
                    if not before and len(counts) >= MAX_SUCCESSORS:
                        del counts[min(counts, key=counts.__getitem__)]
                    counts[key] = before + weight
                context = (context << TOKEN_BITS | text[index]) & MASKS[ORDER]
        _forget_oldest(self.counts)

    def recycle(self, text: Sequence[int], tree: TokenTree, rows: Sequence[Row]) -> None:
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
        known = self.model_successors[1]
        self._learn_prior([row for context, row in pairs if context & TOKEN not in known])
        for order in range(1, min(len(text), ORDER) + 1):
            table, mask = self.model_successors[order], MASKS[order]
            for context, row in pairs:
                table[context & mask] = row
        _forget_oldest(self.model_successors)

    def _learn_prior(self, rows: Sequence[Row]) -> None:
        """Add the model's successors after tokens that are new, some rows at a time."""
        self._new_rows += rows
        if len(self._new_rows) < (PRIOR_ROWS if self.prior else 1):
            return
        kept = PRIOR_DECAY ** len(self._new_rows)
        prior = {token: probability * kept for token, probability in self.prior.items()}
        for row in self._new_rows:
            for token, probability in row.items():
                prior[token] = prior.get(token, 0.0) + (1.0 - PRIOR_DECAY) * probability
        self._new_rows.clear()
        ranked = sorted(prior.items(), key=itemgetter(1), reverse=True)
        self.prior = dict(ranked[:PRIOR_SUCCESSORS])

    def look_up(self, context: int, floor: float = 0.0, repeated: Repeated = None) -> Ranked:
        """Return the successors of a packed context whose probabilities exceed `floor`.

        Args:
            context: see `pack`.
            floor: shorter contexts are not looked up if they can add at most this.
            repeated: takes its probability first.
        """
        calibration, left, last = self._calibration, 1.0, context & TOKEN
        if repeated is None and last not in self.model_successors[1] and last not in self.counts[1]:
            # Nothing is known of the token: it is new.
            prior = self.prior.items() if not floor else islice(self.prior.items(), MAX_CHILDREN)
            return _exceeding(floor, prior, 1.0, self._calibration[PRIOR], PRIOR)
        found: Row = {}
        kinds: dict[int, int] = {}
        if repeated is not None:
            token, probability = repeated
            found[token], kinds[token], left = probability, REPEATED, 1.0 - probability
        levels, pair = self._longest_first, context & MASKS[2]
        # Whatever was seen after a longer context was seen after its last pair, too.
        if pair not in self.model_successors[2] and pair not in self.counts[2]:
            levels = levels[-2:]
        for mask, model_successors, counts, order in levels:
            # First comes what the model itself expected after this context,
            if (row := model_successors.get(context & mask)) is not None:
                kind, unit = 3 * order + 3, left * MODEL_SHARES[order]
                left -= unit
                if left <= NEGLIGIBLE and not found:  # the common case: this is nearly all
                    return _exceeding(floor, row.items(), unit, calibration[kind], kind)
                for token, probability in row.items():
                    found[token] = found.get(token, 0.0) + unit * probability
                    kinds.setdefault(token, kind)
            # ... then what followed it; shorter contexts share the probability that is left.
            if (row := counts.get(context & mask)) is not None:
                total = sum(row.values())
                unit = left / (total + DISCOUNTS[order])
                left -= unit * total
                for key, count in row.items():
                    token = key & TOKEN
                    found[token] = found.get(token, 0.0) + unit * count
                    kinds.setdefault(token, 3 * order + 1 + (key >> TOKEN_BITS))
            if left <= NEGLIGIBLE or left <= floor:
                break
        ranked = [
            (calibrated, token, kind)
            for token, kind in kinds.items()
            if (calibrated := found[token] * calibration[kind]) > floor
        ]
        ranked.sort(reverse=True)
        return ranked

    def calibrate(
        self, looked_up: Mapping[int, Ranked], tokens: Sequence[int], accepted: Sequence[int]
    ) -> None:
        """Compare a tree's probabilities with the tokens that the text got, kind by kind.

        The successors of the current token and of every accepted node are trials of their
        probabilities, whether they became nodes or not.  So a kind whose probabilities were
        corrected downwards can recover without being drafted.

        Args:
            looked_up: the successors that the tree was grown from; see `TreeSearch`.
            tokens: what the last step committed.
            accepted: the accepted nodes of the tree, in order.
        """
        expected, hits, before = self.expected_hits, self.hits, self._calibration.copy()
        for node, actual in zip((-1, *accepted), tokens, strict=False):  # -1: the current token
            for probability, token, kind in looked_up.get(node + 1, ()):
                if kind != REPEATED:
                    raw = probability / before[kind]
                    expected[kind] = expected[kind] * CALIBRATION_DECAY + raw
                    hits[kind] = hits[kind] * CALIBRATION_DECAY + (token == actual)
                    record = (hits[kind] + CALIBRATION_PRIOR) / (expected[kind] + CALIBRATION_PRIOR)
                    self._calibration[kind] = min(record, MAX_CALIBRATION)


def _exceeding(
    floor: float, row: Iterable[tuple[int, float]], unit: float, calibration: float, kind: int
) -> Ranked:
    """Return the tokens of a row whose calibrated parts of `unit` exceed `floor`, in its order."""
    return [
        (calibrated, token, kind)
        for token, probability in row
        if (calibrated := unit * probability * calibration) > floor
    ]


def _forget_oldest(tables: Sequence[Table]) -> None:
    """Bound the tables; a sixteenth goes at once, since finding the oldest takes a pass."""
    for table in tables:
        if len(table) > CONTEXTS:
            excess = len(table) - CONTEXTS + CONTEXTS // 16
            for context in list(islice(table, excess)):
                del table[context]
