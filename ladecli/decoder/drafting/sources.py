"""The sources of drafts, which turn what a step showed into evidence for the n-gram model.

A new one is a class here, and a row of `SOURCES`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..tree import common_prefix
from .ngram_model import ORDER, NgramModel, RepeatedSpan, Row
from .suffix_automaton import SuffixAutomaton

if TYPE_CHECKING:
    from ..tree import TokenTree

BOUNDARY = -1
"""Separates texts that do not continue one another."""
OVERLAP = 32
"""Tokens before a fork that are repeated, so that passages across it are found."""
MAX_CORPUS = 1 << 16
"""Tokens kept when a text begins; of more, the older half goes."""
LENGTHS = (ORDER + 1, 8, 16, 32)
"""Repeated passages of at least these lengths are calibrated separately."""
PRIORS = (0.55, 0.7, 0.85, 0.95)
"""By class of length, the probability to go on before there is a record."""
PRIOR_TRIALS = 8.0
"""Trials at which a record counts as much as the prior."""
RECORD_DECAY = 0.98
"""The decay of a record when it is tried again."""


class Observation(NamedTuple):
    """The outcome of a step."""

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
        self._forget_oldest()
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
        self._append(text)

    def repeated_span(self) -> RepeatedSpan | None:
        """Return the continuation of the longest passage that the end of the text repeats."""
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

    def add(self, text: Iterable[int]) -> None:
        """Append texts that later ones may repeat; the next text is a new one."""
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
        """Count and index what the text has after the part that is known."""
        known = len(self._text)
        before = min(known, ORDER)
        # The first token of a text follows nothing.
        self.model.learn([text[known - before :]], max(before, 1))
        for token in text[known:]:
            self.corpus.extend(token)
            self._text.append(token)


class TrajectorySource(Source):
    """Counts the n-grams that the window closes (Fu et al., 2024), each token under those before
    it."""

    def learn(self, step: Observation) -> None:
        """Count the n-grams of a step."""
        self.model.learn(step.ngrams, 1, window=True)


class RecycledSource(Source):
    """Remembers the model's own successors under the contexts of a step's tokens.

    Luo et al. (2024; see `ngram_model`) remember them by single token.  Under contexts of up to
    four tokens they are nearly always still the model's own next time.
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
"""By name, in the order in which they learn from a step.  Newer counts outweigh older ones, so
accepted text comes after the n-grams of the window, which are worse evidence."""


def _length_class(length: int) -> int:
    return sum(length >= shortest for shortest in LENGTHS) - 1
