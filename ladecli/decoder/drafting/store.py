"""What drafts are made from, kept from one generation to the next, and its form on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import DraftStateError
from ..tree import TokenTree
from ..window import NgramPool
from .bigrams import Bigrams
from .budget import SpeculationBudget
from .ngram_model import ORDER, SAMPLED_SUCCESSORS, NgramModel, pack
from .sources import SOURCES
from .sources.context import BOUNDARY, ContextSource

SAVED_TEXT = 1 << 14
"""Tokens of text that are saved, the newest ones."""
SAVED_ROWS = 1 << 12
"""Tokens of it after which the model's successors are saved too."""
SAVED_NGRAMS = 1 << 10
"""N-grams of the paper's pool that are saved."""


class DraftStore:
    """Everything that drafts are made from; exactness does not depend on any of it.

    All evidence is used, whatever source it came from; the `sources` of a generation decide what
    the generation adds.

    Attributes:
        model: the online n-gram model.
        sources: all that can feed it, by name.
        context: the one that keeps the texts.
        pool: the n-grams of the paper's algorithm, which uses nothing else.
        budget: what drafts may lose.
        bigrams: what the model expects after single tokens, for generations that use its own
            successors.
        broken: an update is under way or was interrupted (by Ctrl-C): start a new store.
    """

    def __init__(self) -> None:
        self.model = NgramModel()
        self.sources = {name: source(self.model) for name, source in SOURCES.items()}
        context = self.sources["context"]
        assert isinstance(context, ContextSource)
        self.context = context
        self.pool = NgramPool()
        self.budget = SpeculationBudget()
        self.bigrams: Bigrams | None = None
        self.broken = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """While it learns: where Ctrl-C lands in between, it stays broken."""
        self.broken = True
        yield
        self.broken = False

    def learn_text(self, tokens: Sequence[int]) -> None:
        """Learn a text that answers may repeat; the model need not have read it."""
        with self.changing():
            self.context.add(tokens)
            self.model.learn([tokens], 1)

    def to_dict(self) -> dict[str, Any]:
        """The newest part of it as lists of numbers, for JSON: at most about 75,000 of them,
        125,000 where tokens are drawn.

        What accepted text taught is derived from the text again; of the model's successors, those
        after accepted text are saved.
        """
        text = self.context.corpus.tokens[-SAVED_TEXT:]
        rows = []
        for end in range(max(len(text) - SAVED_ROWS, ORDER), len(text) + 1):
            last = text[end - ORDER : end]
            row = None if BOUNDARY in last else self.model.model_successors[ORDER].get(pack(last))
            if row is not None:
                rows.append([end, [*row], [round(value, 4) for value in row.values()]])
        ngrams = [list(ngram) for ngram in self.pool]
        return {"text": text, "rows": rows, "ngrams": ngrams[-SAVED_NGRAMS:]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], vocabulary: int) -> DraftStore:
        """A store of what `to_dict` returned.

        Args:
            data: as JSON gives it back.
            vocabulary: token ids are below this.

        Raises:
            DraftStateError: something is missing, of the wrong form, or out of range.
        """
        store = cls()
        try:
            store._load(data, vocabulary)
        except (KeyError, TypeError, ValueError) as error:
            raise DraftStateError(f"these are no saved drafts: {error!r}") from error
        return store

    def _load(self, data: Mapping[str, Any], vocabulary: int) -> None:
        text = _tokens(data["text"], BOUNDARY, vocabulary)
        self.context.load(text)
        start = 0
        for index, token in enumerate((*text, BOUNDARY)):
            if token == BOUNDARY:
                self.model.learn([text[start:index]], 1)
                start = index + 1
        for end, tokens, probabilities in data["rows"]:
            last = text[end - ORDER : end]
            if not ORDER <= end <= len(text) or BOUNDARY in last:
                raise ValueError(f"no text before index {end}")
            usable = all(0.0 <= probability <= 1.0 for probability in probabilities)
            if len(tokens) > SAMPLED_SUCCESSORS or not usable:
                raise ValueError(
                    f"no probabilities of {SAMPLED_SUCCESSORS} tokens: {probabilities}"
                )
            row = dict(zip(_tokens(tokens, 0, vocabulary), map(float, probabilities), strict=True))
            self.model.recycle(last, TokenTree(), [row])
        for ngram in data["ngrams"]:
            if len(ngram) < 2:
                raise ValueError("an n-gram of less than two tokens")
            self.pool.add(_tokens(ngram, 0, vocabulary), SAVED_NGRAMS)


def _tokens(values: list[Any], first: int, below: int) -> list[int]:
    """Checked token ids."""
    for value in values:
        if type(value) is not int or not first <= value < below:
            raise ValueError(f"{value!r} is no token id from {first} to {below - 1}")
    return values
