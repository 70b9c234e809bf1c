"""The sources of drafts, which turn the outcome of a step into evidence for the n-gram model.

To add a source, write a class and add a row to `SOURCES`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..tree import TokenTree, common_prefix
from .constants import CONSTANTS
from .copy_pointer import CopyPointer, RepeatedSpan
from .ngram_model import ORDER, NgramModel, Row
from .suffix_automaton import SuffixAutomaton

BOUNDARY = -1
"""A token between texts in the corpus."""


class Observation(NamedTuple):
    """The outcome of a step."""

    text: Sequence[int]
    """Prompt and committed tokens, those of this step included."""
    new: int
    """The number of tokens that the step committed."""
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
        """Learn from the prompt, when a generation starts."""

    def learn(self, step: Observation) -> None:
        """Learn from a step, when it is over."""


class ContextSource(Source):
    """Counts n-grams, and finds the longest earlier passage that the end of the text repeats.

    Papers: Saxena, "Prompt Lookup Decoding", 2023; Hu et al., "SAM Decoding", 2024.

    Attributes:
        corpus: the texts so far, with `BOUNDARY` between them; the oldest are dropped.
        pointer: the passage of the corpus that the text copies.
    """

    def __init__(self, model: NgramModel) -> None:
        super().__init__(model)
        self.corpus = SuffixAutomaton()
        self.pointer = CopyPointer()
        # The current text, with which the corpus ends, and the indices of all boundaries.
        self._text: list[int] = []
        self._boundaries: list[int] = []
        # The index in the corpus of a text that the next answer may begin like.
        self._expected: int | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        """Learn the prompt without the start that it has in common with the last text."""
        self._forget_oldest()
        common = common_prefix(prompt, self._text)
        if common < len(self._text):
            for token in (BOUNDARY, *prompt[max(common - CONSTANTS.overlap, 0) : common]):
                self._extend(token)
            del self._text[common:]
        self._count(prompt)
        for token in prompt[len(self._text) :]:
            self._append(token)
        self.pointer.lose()
        if self._expected is None:
            self._find_passage()
        else:
            self.pointer.expect(self._expected, self._end_of(self._expected))
            self._expected = None

    def learn(self, step: Observation) -> None:
        """Learn the committed tokens, and whether they continue the copied passage."""
        self._count(step.text)
        for token in step.text[len(self._text) :]:
            self.pointer.follow(token, self.corpus.tokens)
            self._append(token)
            # The passage may have been drafted from n-grams, and have ended before the last token.
            self._find_passage()

    def repeated_spans(self) -> list[RepeatedSpan]:
        """Return the continuations of passages that the end of the text repeats, the most probable
        one first."""
        tokens, pointer = self.corpus.tokens, self.pointer
        spans = pointer.spans(tokens)
        if pointer.uncertain:
            # The text may also continue another passage than the one that is being edited.
            length, place = self.corpus.longest_match()
            if length >= CONSTANTS.least_repeat:
                spans.append(pointer.span(tokens, place, self._end_of(place), length))
        return spans

    def _find_passage(self) -> None:
        """Follow the longest passage that the end of the text repeats, unless the pointer follows
        a more probable one."""
        length, place = self.corpus.longest_match()
        if length >= CONSTANTS.least_repeat and self.pointer.gives_way(length):
            self.pointer.start(place, self._end_of(place), length)

    def _end_of(self, place: int) -> int:
        """Return the index in the corpus just after the text that contains a place."""
        index = bisect_left(self._boundaries, place)
        return self._boundaries[index] if index < len(self._boundaries) else len(self.corpus)

    def add(self, text: Iterable[int], *, expected: bool = False) -> None:
        """Add to the corpus texts that later ones may repeat.

        Args:
            text: the texts, with `BOUNDARY` between them.
            expected: whether the next answer may begin like it; the last such call counts.
        """
        self._forget_oldest()
        if self._text:
            self._extend(BOUNDARY)
        if expected:
            self._expected = len(self.corpus)
        for token in text:
            self._extend(token)
        if self.corpus.tokens[-1:] != [BOUNDARY]:
            self._extend(BOUNDARY)
        self._text = []

    def _forget_oldest(self) -> None:
        if len(self.corpus) > CONSTANTS.max_corpus:
            newest = self.corpus.tokens[-CONSTANTS.max_corpus // 2 :]
            self.corpus, self._boundaries, self._text = SuffixAutomaton(), [], []
            self.pointer.lose()
            self._expected = None
            self.add(newest)

    def _extend(self, token: int) -> None:
        if token == BOUNDARY:
            self._boundaries.append(len(self.corpus))
        self.corpus.extend(token)

    def _count(self, text: Sequence[int]) -> None:
        """Count the n-grams of the part of the text that is new."""
        known = len(self._text)
        before = min(known, ORDER)
        # The first token of a text has no context to be counted under.
        self.model.learn([text[known - before :]], max(before, 1))

    def _append(self, token: int) -> None:
        self.corpus.extend(token)
        self._text.append(token)


class TrajectorySource(Source):
    """Counts the n-grams that the window completes (Fu et al., 2024)."""

    def learn(self, step: Observation) -> None:
        """Count the n-grams of a step."""
        self.model.learn(step.ngrams, 1, window=True)


class RecycledSource(Source):
    """Remembers the model's most probable successors after each token of a step.

    Luo et al. (2024; see `ngram_model`) store them under one token.  Here they are stored under
    contexts of up to four tokens, after which the model nearly always chooses among the same
    successors again.
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
