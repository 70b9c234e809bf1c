"""The sources of drafts: each turns what a step showed into evidence for the n-gram model.

A new one is a class and a row of `SOURCES`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..tree import TokenTree, common_prefix
from .ngram_model import ORDER, WINDOW, NgramModel, RepeatedSpan, Row

BOUNDARY = -1
"""Separates texts that do not continue one another."""
OVERLAP = 32
"""Tokens before a fork that are repeated, so that passages across it are found."""
MAX_CORPUS = 1 << 16
"""Tokens kept when a generation starts; of more, the older half goes."""
LENGTHS = (ORDER + 1, 8, 16, 32)
"""Repeated passages of at least these lengths are calibrated separately."""
PRIORS = (0.55, 0.7, 0.85, 0.95)
"""By class of length, the probability to go on before there is a record."""
PRIOR_TRIALS = 8.0
"""Trials at which a record counts as much as the prior."""
RECORD_DECAY = 0.98
"""What a record keeps when it is tried again."""
NGRAM_WEIGHT = 0.25
"""Of an n-gram of the window, relative to accepted text."""


class Observation(NamedTuple):
    """What a step showed."""

    text: Sequence[int]
    """Prompt and committed tokens, those of this step included."""
    new: int
    """Tokens that the step committed."""
    tree: TokenTree
    """The candidates that were verified, after the text without the new tokens."""
    successors: Sequence[Row]
    """The model's most probable tokens with their probabilities, after the text without the new
    tokens and then after each candidate; empty where the step did not ask for them."""
    ngrams: Sequence[Sequence[int]]
    """Those that the lookahead window closed."""


class Source:
    """Turns what a step showed into evidence for the n-gram model.

    Attributes:
        model: learns the evidence.
    """

    def __init__(self, model: NgramModel) -> None:
        self.model = model

    def begin(self, prompt: Sequence[int]) -> None:
        """A generation starts."""

    def learn(self, step: Observation) -> None:
        """A step is over."""


class TrajectorySource(Source):
    """Counts the window's n-grams (Fu et al., 2024), each token under those before it."""

    def learn(self, step: Observation) -> None:
        """Count the n-grams of a step."""
        self.model.learn(step.ngrams, 1, NGRAM_WEIGHT, WINDOW)


class SuffixAutomaton:
    """Knows every substring of a growing text, and where it ended first.

    Source: Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985.  Each
    state stands for the substrings that end at the same places.  Memory is linear: a text of n
    tokens has at most 2n states.

    Attributes:
        tokens: the text so far; append to it with `extend` only.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        # By state: where each next token leads, the state of its longest suffix that ends at
        # more places, the length of its longest substring, and the first index where it ends.
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]
        self._last = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, token: int) -> None:
        """Append one token; amortised constant time."""
        following, link, length = self._next, self._link, self._length
        new = len(following)
        following.append({})
        link.append(0)
        length.append(length[self._last] + 1)
        self._end.append(len(self.tokens))
        self.tokens.append(token)
        state = self._last
        while state >= 0 and token not in following[state]:
            following[state][token] = new
            state = link[state]
        if state >= 0:
            target = following[state][token]
            if length[state] + 1 < length[target]:
                target = self._split(state, token, target)
            link[new] = target
        self._last = new

    def _split(self, state: int, token: int, target: int) -> int:
        """Give the shorter substrings of `target`, which now end here too, their own state."""
        following, link = self._next, self._link
        clone = len(following)
        following.append(following[target].copy())
        link.append(link[target])
        self._length.append(self._length[state] + 1)
        self._end.append(self._end[target])
        while state >= 0 and following[state].get(token) == target:
            following[state][token] = clone
            state = link[state]
        link[target] = clone
        return clone

    def longest_match(self) -> tuple[int, int]:
        """The longest suffix of the text that also ended somewhere before its end, in constant
        time.

        Returns:
            Its length, 0 if there is none, and the index in `tokens` after its first occurrence.
        """
        if self._last == 0:
            return 0, 0
        state = self._link[self._last]
        return self._length[state], self._end[state] + 1


class ContextSource(Source):
    """Counts the text, and finds the longest passage that its end repeats.

    Papers: Saxena, "Prompt Lookup Decoding", 2023; Hu et al., "SAM Decoding", 2024.

    Attributes:
        corpus: all texts so far, with `BOUNDARY` between them.
        hits, trials: by class of length, how often a repeated passage went on.
    """

    def __init__(self, model: NgramModel) -> None:
        super().__init__(model)
        self.corpus = SuffixAutomaton()
        self.hits, self.trials = [0.0] * len(LENGTHS), [0.0] * len(LENGTHS)
        # The current text, which ends the corpus, and the indices of all boundaries.
        self._text: list[int] = []
        self._boundaries: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """Learn what the prompt adds to the last text."""
        if len(self.corpus) > MAX_CORPUS:
            self.load(self.corpus.tokens[-MAX_CORPUS // 2 :])
        common = common_prefix(prompt, self._text)
        if common < len(self._text):
            for token in (BOUNDARY, *prompt[max(common - OVERLAP, 0) : common]):
                self._extend(token)
            del self._text[common:]
        self._append(prompt)

    def learn(self, step: Observation) -> None:
        """Learn the accepted tokens, and whether the text kept repeating itself."""
        text, new = step.text, step.new
        if (span := self.repeated_span()) is not None:
            length, _ = self.corpus.longest_match()
            expected = span.tokens[span.start : min(span.end, span.start + new)]
            for token, repeated in zip(text[-new:], expected, strict=False):
                group = _length_class(length)
                self.hits[group] = self.hits[group] * RECORD_DECAY + (token == repeated)
                self.trials[group] = self.trials[group] * RECORD_DECAY + 1.0
                if token != repeated:
                    break
                length += 1
        known = len(self._text)
        if text[max(known - OVERLAP, 0) : known] == self._text[-OVERLAP:]:
            self._append(text)
        else:
            # Another generation began in between, with another text.
            self.begin(text)

    def repeated_span(self) -> RepeatedSpan | None:
        """The continuation of the longest passage that the end of the text repeats."""
        length, start = self.corpus.longest_match()
        if length < LENGTHS[0]:
            return None
        # Nothing after a boundary follows what is before it.
        index = bisect_left(self._boundaries, start)
        end = self._boundaries[index] if index < len(self._boundaries) else len(self.corpus)
        group = _length_class(length)
        hits = self.hits[group] + PRIOR_TRIALS * PRIORS[group]
        probability = hits / (self.trials[group] + PRIOR_TRIALS)
        return RepeatedSpan(self.corpus.tokens, start, end, probability)

    def load(self, corpus: Iterable[int]) -> None:
        """Replace the corpus by earlier texts."""
        self.corpus, self._boundaries, self._text = SuffixAutomaton(), [], []
        self.add(corpus)

    def add(self, text: Iterable[int]) -> None:
        """Append texts that later ones may repeat; the next text is a new one."""
        if self._text:
            self._extend(BOUNDARY)
        for token in text:
            self._extend(token)
        if self.corpus.tokens[-1:] != [BOUNDARY]:
            self._extend(BOUNDARY)
        self._text = []

    def _extend(self, token: int) -> None:
        if token == BOUNDARY:
            self._boundaries.append(len(self.corpus))
        self.corpus.extend(token)

    def _append(self, text: Sequence[int]) -> None:
        """Count and index what the text has after the part that is known."""
        known = len(self._text)
        before = min(known, ORDER)
        # The first token of a text follows nothing.
        self.model.learn([text[known - before :]], max(before, 1), 1.0)
        for token in text[known:]:
            self.corpus.extend(token)
            self._text.append(token)


class RecycledSource(Source):
    """Remembers the model's successors under the contexts of a step's tokens.

    Luo et al. (2024; see `ngram_model`) remember them by single token.  Under contexts of up to
    four tokens they are nearly always still the model's own next time.
    """

    def learn(self, step: Observation) -> None:
        """Remember the successors, if the step has them."""
        if step.successors:
            before = len(step.text) - step.new
            last = step.text[max(before - ORDER, 0) : before]
            self.model.recycle(last, step.tree, step.successors)


def _length_class(length: int) -> int:
    return sum(length >= shortest for shortest in LENGTHS) - 1


SOURCES: dict[str, type[Source]] = {
    "trajectory": TrajectorySource,
    "context": ContextSource,
    "recycled": RecycledSource,
}
"""In the order in which they learn from a step.  Newer counts outweigh older ones, so accepted text
comes after the n-grams of the window, which are worse evidence."""
