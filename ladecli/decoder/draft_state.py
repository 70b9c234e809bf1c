"""What drafts are made from, and what was learned about them: it outlives a generation.

A later generation of the same session starts with what earlier ones taught: the n-grams of
their texts, the successors that the model found probable, and how far each kind of evidence
can be trusted.  Exactness does not depend on any of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from .checksum import checksum
from .draft_arrays import Arrays, Checked, pack
from .errors import DraftStateError
from .ledger import Ledger
from .ngrams import NgramModel
from .ngrams.kernels import ASKED, COUNTED, GUESSED, KINDS, ORDER, RANKED, WINDOW_ORDER
from .pool import NgramPool
from .sources import ContextSource, RecycledSource, TrajectorySource
from .sources.context import BOUNDARY, LENGTHS

KEPT_TOKENS = 1 << 16
"""Tokens of text that arrays hold; the oldest are left out."""
KEPT_CONTEXTS = 1 << 14
"""Contexts of one length and kind that arrays hold; those met first are left out."""

# Answers come last: where both are known under one context, they count.
_SAID = {"guessed": (GUESSED, WINDOW_ORDER), "recycled": (ASKED, ORDER)}
"""What the model said: names of arrays, the source that entries have, and their longest context."""


class DraftState:
    """Everything that drafters remember.

    What is known is used whatever source it came from; a generation's `sources` decide what
    it adds.

    Attributes:
        model: the online n-gram model.
        context, trajectory, recycled: the sources that feed it.
        pool: the n-grams of the paper's algorithm, which uses nothing else.
        ledger: what drafts cost and what they brought.
        spoiled: a change was broken off half-way, by Ctrl-C say: start a new state.
    """

    def __init__(self) -> None:
        self.model = NgramModel()
        self.context = ContextSource(self.model)
        self.trajectory = TrajectorySource(self.model)
        self.recycled = RecycledSource(self.model)
        self.pool = NgramPool()
        self.ledger = Ledger()
        self.spoiled = False

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change the state in here, so that a change that is broken off is noticed."""
        try:
            yield
        except BaseException:
            self.spoiled = True
            raise

    def checksum(self) -> int:
        """A number of 32 bits that differs, in all likelihood, where two states do.

        It looks at sizes and at what changes with every step, not at all that was learned.
        """
        model, context = self.model, self.context
        return checksum(
            (
                *model.counted.sizes,
                *model.ranked.sizes,
                *model.promised.tolist(),
                *model.hits.tolist(),
                *context.hits,
                *context.trials,
                len(context.corpus),
                *context.corpus.tokens[-ORDER:],
                len(self.pool),
                self.ledger.balance,
            )
        )

    def to_arrays(self) -> Arrays:
        """The newest part of it, as arrays of numbers by name."""
        model, context = self.model, self.context
        arrays: Arrays = {
            "corpus": np.array(context.corpus.tokens[-KEPT_TOKENS:], dtype=np.int32),
            "copied": np.array([context.hits, context.trials]),
            "trust": np.array([model.promised, model.hits]),
        }
        for order in range(1, ORDER + 1):
            arrays |= pack(f"counted{order}", order, model.counted.entries(order)[-KEPT_CONTEXTS:])
            ranked = model.ranked.entries(order)
            for name, source in _said(order):
                some = ranked[ranked["source"] == source][-KEPT_CONTEXTS:]
                arrays |= pack(f"{name}{order}", order, some)
        ngrams = list(islice(reversed(list(self.pool)), KEPT_CONTEXTS))[::-1]
        arrays["pool.sizes"] = np.array([len(ngram) for ngram in ngrams], dtype=np.int32)
        arrays["pool.tokens"] = np.array([t for ngram in ngrams for t in ngram], dtype=np.int32)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]], vocabulary: int) -> DraftState:
        """What `to_arrays` gave.

        Args:
            arrays: by name.
            vocabulary: ids below this are tokens of the model.

        Raises:
            DraftStateError: an array is missing, of the wrong form, or holds what cannot be.
        """
        try:
            return cls._read(Checked(arrays, vocabulary))
        except (KeyError, ValueError, TypeError) as error:
            raise DraftStateError(f"not a draft state: {error}") from error

    @classmethod
    def _read(cls, arrays: Checked) -> DraftState:
        drafts = cls()
        model, context = drafts.model, drafts.context
        context.load(arrays.tokens("corpus", least=BOUNDARY).tolist())
        context.hits, context.trials = arrays.floats("copied", (2, len(LENGTHS)))
        model.load_record(*arrays.floats("trust", (2, KINDS)))
        for order in range(1, ORDER + 1):
            counted = arrays.unpack(f"counted{order}", order, COUNTED)
            counted["total"] = counted["weights"].sum(axis=1)
            model.counted.load(order, counted)
            said = []
            for name, source in _said(order):
                said.append(arrays.unpack(f"{name}{order}", order, RANKED))
                said[-1]["source"] = source
            model.ranked.load(order, np.concatenate(said))
        tokens = iter(arrays.tokens("pool.tokens").tolist())
        for size in arrays.small("pool.sizes", below=1 << 16).tolist():
            ngram = tuple(islice(tokens, size))
            if len(ngram) < 2:
                raise ValueError("the pool holds no n-grams")
            drafts.pool.add(ngram, KEPT_CONTEXTS)
        return drafts


def _said(order: int) -> list[tuple[str, int]]:
    """Names and sources of what the model said behind contexts of a length."""
    return [(name, source) for name, (source, longest) in _SAID.items() if order <= longest]
