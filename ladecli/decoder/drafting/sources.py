"""The sources of drafts, which turn the outcome of a step into evidence for the n-gram model.

A new source is a class here, and a row of `SOURCES`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..tree import TokenTree, common_prefix
from .ngram_model import ORDER, NgramModel, RepeatedSpan, Row
from .suffix_automaton import SuffixAutomaton

BOUNDARY = -1
"""A token between texts in the corpus."""
OVERLAP = 32
"""If a text differs from the last one after a common start, this many tokens of the start are added
to the corpus again, so that passages across the difference are found."""
MAX_CORPUS = 1 << 16
"""If the corpus has more tokens than this when a text begins, the newest half as many are kept."""
LENGTHS = (ORDER + 1, 8, 16, 32)
"""The classes of repeated passages: those of at least these many tokens."""
PRIORS = (0.55, 0.7, 0.85, 0.95)
"""By class, the assumed probability that a passage goes on, before it was tried."""
PRIOR_TRIALS = 8.0
"""The number of trials that counts as much as this assumption."""
RECORD_DECAY = 0.98
"""The decay of a class's record with each trial."""


class Observation(NamedTuple):
    """The outcome of a step."""

    text: Sequence[int]
    """Prompt and committed tokens, those of this step included."""
    new: int
    """How many tokens the step committed."""
    tree: TokenTree
    """The candidates that were verified; they follow the text without the new tokens."""
    successors: Sequence[Row]
    """The model's most probable tokens with their probabilities: after the text without the new
    tokens, then after each candidate.  Empty if the step did not ask for them."""
    ngrams: Sequence[Sequence[int]]
    """The n-grams that the lookahead window completed."""


class Source:
    """Turns the outcome of a step into evidence for the n-gram model.

    Attributes:
        model: learns the evidence.
    """

    def __init__(self, model: NgramModel) -> None:
        self.model = model

    def begin(self, prompt: Sequence[int]) -> None:
        """A generation starts."""

    def learn(self, step: Observation) -> None:
        """A step is over."""


class ContextSource(Source):
    """Counts n-grams of the text, and finds the longest passage that its end repeats.

    Papers: Saxena, "Prompt Lookup Decoding", 2023; Hu et al., "SAM Decoding", 2024.

    Attributes:
        corpus: all texts so far, with `BOUNDARY` between them.
        hits, trials: by class in `LENGTHS`, how often the text went on like a repeated passage,
            and how often the two were compared; both decayed.
    """

    def __init__(self, model: NgramModel) -> None:
        super().__init__(model)
        self.corpus = SuffixAutomaton()
        self.hits, self.trials = [0.0] * len(LENGTHS), [0.0] * len(LENGTHS)
        # The current text, with which the corpus ends, and the indices of all boundaries.
        self._text: list[int] = []
        self._boundaries: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """Learn the part of the prompt that the last text does not start with."""
        self._forget_oldest()
        common = common_prefix(prompt, self._text)
        if common < len(self._text):
            for token in (BOUNDARY, *prompt[max(common - OVERLAP, 0) : common]):
                self._extend(token)
            del self._text[common:]
        self._append(prompt)

    def learn(self, step: Observation) -> None:
        """Learn the committed tokens, and whether the text went on like the passage it repeats."""
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
        self._append(text)

    def repeated_span(self) -> RepeatedSpan | None:
        """Return the continuation of the longest passage that the end of the text repeats."""
        length, start = self.corpus.longest_match()
        if length < LENGTHS[0]:
            return None
        # A passage ends with its text.
        index = bisect_left(self._boundaries, start)
        end = self._boundaries[index] if index < len(self._boundaries) else len(self.corpus)
        group = _length_class(length)
        hits = self.hits[group] + PRIOR_TRIALS * PRIORS[group]
        probability = hits / (self.trials[group] + PRIOR_TRIALS)
        return RepeatedSpan(self.corpus.tokens, start, end, probability)

    def add(self, text: Iterable[int]) -> None:
        """Append texts that later ones may repeat."""
        self._forget_oldest()
        if self._text:
            self._extend(BOUNDARY)
        for token in text:
            self._extend(token)
        if self.corpus.tokens[-1:] != [BOUNDARY]:
            self._extend(BOUNDARY)
        self._text = []

    def _forget_oldest(self) -> None:
        if len(self.corpus) > MAX_CORPUS:
            newest = self.corpus.tokens[-MAX_CORPUS // 2 :]
            self.corpus, self._boundaries, self._text = SuffixAutomaton(), [], []
            self.add(newest)

    def _extend(self, token: int) -> None:
        if token == BOUNDARY:
            self._boundaries.append(len(self.corpus))
        self.corpus.extend(token)

    def _append(self, text: Sequence[int]) -> None:
        """Count and index the part of the text that is new."""
        known = len(self._text)
        before = min(known, ORDER)
        # The first token of a text has no context to be counted under.
        self.model.learn([text[known - before :]], max(before, 1))
        for token in text[known:]:
            self.corpus.extend(token)
            self._text.append(token)


class TrajectorySource(Source):
    """Counts the n-grams that the window completes (Fu et al., 2024)."""

    def learn(self, step: Observation) -> None:
        """Count the n-grams of a step."""
        self.model.learn(step.ngrams, 1, window=True)


class RecycledSource(Source):
    """Remembers the model's most probable successors after each token of a step.

    Luo et al. (2024; see `ngram_model`) remember them by single token.  Under contexts of up to
    four tokens, the model nearly always chooses among the same successors again.
    """

    def learn(self, step: Observation) -> None:
        """Remember the successors, if the step has them."""
        if step.successors:
            before = len(step.text) - step.new
            last = step.text[max(before - ORDER, 0) : before]
            self.model.recycle(last, step.tree, step.successors)


SOURCES: dict[str, type[Source]] = {
    "trajectory": TrajectorySource,
    "context": ContextSource,
    "recycled": RecycledSource,
}
"""The sources by name, in the order in which they learn from a step.  Newer counts outweigh older
ones, so the accepted text comes after the n-grams of the window, which are worse evidence."""


def _length_class(length: int) -> int:
    return sum(length >= shortest for shortest in LENGTHS) - 1
