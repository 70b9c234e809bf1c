"""What drafts are made from, and what was learned about them: it outlives a generation.

A later generation of the same session starts with what earlier ones taught: the n-grams of
their texts, the successors that the model found probable, and how far each kind of evidence
can be trusted.  Exactness does not depend on any of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .checksum import checksum
from .errors import DraftStateError
from .ledger import Ledger
from .ngram_model import BITS, KINDS, ORDER, Counted, NgramModel
from .pool import NgramPool
from .sources import ContextSource, RecycledSource, TrajectorySource
from .sources.context import BOUNDARY, LENGTHS
from .sources.recycled import WINDOW_ORDER

KEPT_TOKENS = 1 << 16
"""Tokens of text that arrays hold; the oldest are left out."""
KEPT_CONTEXTS = 1 << 14
"""Contexts of one length and kind that arrays hold; those met first are left out."""

T = TypeVar("T")
Arrays = dict[str, NDArray[np.generic]]


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
                *map(len, model.counted),
                *map(len, model.recycled),
                *map(len, model.guessed),
                *model.promised,
                *model.hits,
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
        with self.changing():
            self.trajectory.catch_up()
        model, context = self.model, self.context
        arrays: Arrays = {
            "corpus": np.array(context.corpus.tokens[-KEPT_TOKENS:], dtype=np.int32),
            "copied": np.array([context.hits, context.trials]),
            "trust": np.array([model.promised, model.hits]),
        }
        for order in range(1, ORDER + 1):
            counted = _newest(model.counted[order])
            _pack(arrays, f"counted{order}", order, ((k, c.weights) for k, c in counted))
            sources = [source for _, c in counted for source in c.sources.values()]
            arrays[f"counted{order}.sources"] = np.array(sources, dtype=np.uint8)
            _pack(arrays, f"recycled{order}", order, _newest(model.recycled[order]))
        for order in range(1, WINDOW_ORDER + 1):
            _pack(arrays, f"guessed{order}", order, _newest(model.guessed[order]))
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
            return cls._read(_Checked(arrays, vocabulary))
        except (KeyError, ValueError, TypeError) as error:
            raise DraftStateError(f"not a draft state: {error}") from error

    @classmethod
    def _read(cls, arrays: _Checked) -> DraftState:
        drafts = cls()
        model, context = drafts.model, drafts.context
        context.load(arrays.tokens("corpus", least=BOUNDARY))
        context.hits, context.trials = arrays.floats("copied", (2, len(LENGTHS)))
        model.load_record(*arrays.floats("trust", (2, KINDS)))
        for order in range(1, ORDER + 1):
            sources = iter(arrays.small(f"counted{order}.sources", below=3))
            for key, weights in arrays.unpack(f"counted{order}", order):
                counted = model.counted[order][key] = Counted()
                counted.weights, counted.total = weights, sum(weights.values())
                counted.sources = dict(zip(weights, sources, strict=False))
                if len(counted.sources) < len(weights):
                    raise ValueError(f"counted{order} has too few sources")
            model.recycled[order].update(arrays.unpack(f"recycled{order}", order))
        for order in range(1, WINDOW_ORDER + 1):
            model.guessed[order].update(arrays.unpack(f"guessed{order}", order))
        tokens = iter(arrays.tokens("pool.tokens"))
        for size in arrays.small("pool.sizes", below=1 << 16):
            ngram = tuple(islice(tokens, size))
            if len(ngram) < 2:
                raise ValueError("the pool holds no n-grams")
            drafts.pool.add(ngram, KEPT_CONTEXTS)
        return drafts


def _newest(table: Mapping[int, T]) -> list[tuple[int, T]]:
    """The entries whose contexts were met last, in order."""
    return list(islice(table.items(), max(len(table) - KEPT_CONTEXTS, 0), None))


def _pack(
    arrays: Arrays, name: str, order: int, entries: Iterable[tuple[int, Mapping[int, float]]]
) -> None:
    """Turn a table from contexts to weighted tokens into four arrays."""
    entries = list(entries)
    shifts = range((order - 1) * BITS, -1, -BITS)
    mask = (1 << BITS) - 1
    keys = [[(key >> shift) & mask for shift in shifts] for key, _ in entries]
    arrays[f"{name}.contexts"] = np.array(keys, dtype=np.int32).reshape(len(entries), order)
    arrays[f"{name}.sizes"] = np.array([len(row) for _, row in entries], dtype=np.uint8)
    arrays[f"{name}.tokens"] = np.array([t for _, row in entries for t in row], dtype=np.int32)
    weights = [weight for _, row in entries for weight in row.values()]
    arrays[f"{name}.weights"] = np.array(weights, dtype=np.float32)


class _Checked:
    """Arrays that are looked at before they are believed."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]], vocabulary: int) -> None:
        self._arrays = arrays
        self._vocabulary = vocabulary

    def tokens(self, name: str, least: int = 0) -> list[int]:
        """A line of token ids."""
        return self._integers(name, least, self._vocabulary)

    def small(self, name: str, below: int) -> list[int]:
        """A line of small numbers."""
        return self._integers(name, 0, below)

    def floats(self, name: str, shape: tuple[int, int]) -> list[list[float]]:
        """A table of numbers from 0 on."""
        array = self._weights(name)
        if array.shape != shape:
            raise ValueError(f"{name} is no table of {shape[0]} x {shape[1]} numbers")
        rows: list[list[float]] = array.tolist()
        return rows

    def unpack(self, name: str, order: int) -> Iterator[tuple[int, dict[int, float]]]:
        """The entries of a packed table."""
        contexts = self._arrays[f"{name}.contexts"]
        sizes = self.small(f"{name}.sizes", below=1 << 8)
        if contexts.shape != (len(sizes), order) or contexts.dtype.kind not in "iu":
            raise ValueError(f"{name} has {len(sizes)} sizes and contexts {contexts.shape}")
        tokens = self.tokens(f"{name}.tokens")
        weights = self._weights(f"{name}.weights")
        if weights.shape != (len(tokens),) or len(tokens) != sum(sizes):
            raise ValueError(f"{name} has {len(tokens)} tokens for sizes of {sum(sizes)}")
        pairs = zip(tokens, weights.tolist(), strict=True)
        for context, size in zip(contexts.tolist(), sizes, strict=True):
            yield _key(context), dict(islice(pairs, size))

    def _weights(self, name: str) -> NDArray[np.float64]:
        array = self._arrays[name]
        if array.dtype.kind != "f":
            raise ValueError(f"{name} holds no numbers with a point")
        weights = array.astype(np.float64)
        if not np.all((weights >= 0.0) & np.isfinite(weights)):
            raise ValueError(f"{name} holds numbers that are no weights")
        return weights

    def _integers(self, name: str, least: int, below: int) -> list[int]:
        array = self._arrays[name]
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"{name} is no line of whole numbers")
        values: list[int] = array.tolist()
        if values and not (least <= min(values) and max(values) < below):
            raise ValueError(f"{name} holds a number outside {least} to {below - 1}")
        return values


def _key(context: Sequence[int]) -> int:
    key = 0
    for token in context:
        if not 0 <= token < 1 << BITS:
            raise ValueError(f"{token} is no token")
        key = (key << BITS) | token
    return key
