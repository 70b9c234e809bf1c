"""Context: what followed the same tokens before, in the prompt and in the accepted text.

Contexts of up to four tokens are counted.  Where the text repeats a longer passage, the suffix
automaton finds the longest one, and a guide leads along its continuation (Saxena, "Prompt
Lookup Decoding", 2023; Hu et al., "SAM Decoding", 2024).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import takewhile

from ..ngrams import Guide, NgramModel
from ..ngrams.kernels import ORDER
from ..observation import Observation
from ..suffix_automaton import SuffixAutomaton

BOUNDARY = -1
"""Stands between texts that do not continue one another."""
OVERLAP = 32
"""Tokens before a fork that are repeated, so that passages across it are found."""
CORPUS = 1 << 17
"""Tokens of text remembered at the start of a generation; of more, the older half goes."""
LENGTHS = (ORDER + 1, 8, 16, 32)
"""Repeated passages of at least these lengths have records of their own."""
FAITH = (0.55, 0.7, 0.85, 0.95)
"""How often a passage of such a length goes on, before there is a record."""
TRIALS = 8.0
"""Trials at which a record counts as much as the faith."""
FADING = 0.98
"""What is left of a record after a trial."""


class ContextSource:
    """Counts the text and looks for repeated passages.

    Args:
        model: takes the evidence.

    Attributes:
        corpus: all texts that were seen, with boundaries between them.
        hits, trials: by class of length, how often a repeated passage went on.
    """

    def __init__(self, model: NgramModel) -> None:
        self._model = model
        self.corpus = SuffixAutomaton()
        self.hits = [0.0] * len(LENGTHS)
        self.trials = [0.0] * len(LENGTHS)
        self._text: list[int] = []
        self._forks: list[int] = []

    def load(self, corpus: Iterable[int]) -> None:
        """Know earlier texts with the boundaries between them; the text to come is a new one."""
        tokens = list(corpus)
        if tokens and tokens[-1] != BOUNDARY:
            tokens.append(BOUNDARY)
        for token in tokens:
            if token == BOUNDARY:
                self._forks.append(len(self.corpus))
            self.corpus.extend(token)

    def begin(self, prompt: Sequence[int]) -> None:
        """Learn what the prompt has beyond the text that was seen last."""
        if len(self.corpus) > CORPUS:
            kept = self.corpus.tokens[-CORPUS // 2 :]
            self.corpus, self._forks, self._text = SuffixAutomaton(), [], []
            self.load(kept)
        pairs = zip(prompt, self._text, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if common < len(self._text):
            self._forks.append(len(self.corpus))
            self.corpus.extend(BOUNDARY)
            for token in prompt[max(common - OVERLAP, 0) : common]:
                self.corpus.extend(token)
            del self._text[common:]
        self._learn(prompt)

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Learn the accepted tokens, and whether the text kept repeating itself."""
        guide = self.guide()
        if guide is not None:
            length, _ = self.corpus.longest_match()
            end = min(guide.end, guide.start + len(seen.verdict.tokens))
            passage = guide.tokens[guide.start : end]
            for token, expected in zip(seen.text[seen.before :], passage, strict=False):
                group = _group(length)
                self.hits[group] = self.hits[group] * FADING + (token == expected)
                self.trials[group] = self.trials[group] * FADING + 1.0
                if token != expected:
                    break
                length += 1
        known = len(self._text)
        if seen.text[max(known - OVERLAP, 0) : known] == self._text[-OVERLAP:]:
            self._learn(seen.text)
        else:
            # Another generation began in between, with another text.
            self.begin(seen.text)

    def guide(self) -> Guide | None:
        """The continuation of the longest passage that the end of the text repeats."""
        length, start = self.corpus.longest_match()
        if length < LENGTHS[0]:
            return None
        # What stands behind a boundary does not follow what stands before it.
        fork = bisect_left(self._forks, start)
        end = self._forks[fork] if fork < len(self._forks) else len(self.corpus)
        group = _group(length)
        share = (self.hits[group] + TRIALS * FAITH[group]) / (self.trials[group] + TRIALS)
        return Guide(self.corpus.tokens, start, end, share)

    def _learn(self, text: Sequence[int]) -> None:
        known = len(self._text)
        before = min(known, ORDER)
        # The first token of all follows nothing.
        self._model.learn([text[known - before :]], max(before, 1), 1.0, "context")
        for token in text[known:]:
            self.corpus.extend(token)
            self._text.append(token)


def _group(length: int) -> int:
    return sum(length >= least for least in LENGTHS) - 1
