"""What was learned as arrays of numbers, and such arrays looked at before they are believed.

A table becomes four arrays: tokens of each context (one row each), how many successors it has, and
of all successors in a row their tokens and weights.  Where those were counted, a fifth has sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ngrams import SOURCES
from .ngrams.kernels import BITS, ONE, ORDER, SUCCESSORS

Arrays = dict[str, NDArray[np.generic]]

HEAVIEST = 1e9
"""The largest weight or record that can be real: each sums up what fades."""


def pack(name: str, order: int, entries: NDArray[Any]) -> Arrays:
    """The entries of one length of a table as arrays.

    Args:
        name: what their names begin with.
        order: length of their contexts.
        entries: see `Table.entries`.
    """
    high, low = entries["high"], entries["low"]
    tokens = np.stack([high >> BITS, high & ONE, low >> BITS, low & ONE], axis=1)
    kept = _kept(entries)
    arrays: Arrays = {
        f"{name}.contexts": tokens[:, ORDER - order :].astype(np.int32),
        f"{name}.sizes": entries["count"].astype(np.uint8),
        f"{name}.tokens": entries["tokens"][kept],
        f"{name}.weights": entries["weights"][kept].astype(np.float32),
    }
    if _has_sources(entries.dtype):
        arrays[f"{name}.sources"] = entries["sources"][kept].astype(np.uint8)
    return arrays


def _kept(entries: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of their places for successors are taken."""
    taken: NDArray[np.bool_] = np.arange(SUCCESSORS) < entries["count"][:, None]
    return taken


def _has_sources(record: np.dtype[Any]) -> bool:
    return "sources" in (record.names or ())


class Checked:
    """Arrays that are looked at before they are believed.

    All methods raise KeyError where an array is missing, and ValueError where it holds what
    cannot be.

    Args:
        arrays: by name.
        vocabulary: ids below this are tokens of the model.
    """

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]], vocabulary: int) -> None:
        self._arrays = arrays
        self._vocabulary = vocabulary

    def tokens(self, name: str, least: int = 0) -> NDArray[np.int64]:
        """A line of token ids."""
        return self._integers(name, least, self._vocabulary)

    def small(self, name: str, below: int) -> NDArray[np.int64]:
        """A line of small numbers."""
        return self._integers(name, 0, below)

    def floats(self, name: str, shape: tuple[int, int]) -> list[list[float]]:
        """A table of numbers from 0 on."""
        array = self._weights(name)
        if array.shape != shape:
            raise ValueError(f"{name} is no table of {shape[0]} x {shape[1]} numbers")
        rows: list[list[float]] = array.tolist()
        return rows

    def unpack(self, name: str, order: int, record: np.dtype[Any]) -> NDArray[Any]:
        """The entries that `pack` packed, of the given type; what it has beyond is 0."""
        contexts = self._arrays[f"{name}.contexts"]
        sizes = self.small(f"{name}.sizes", below=SUCCESSORS + 1)
        if contexts.shape != (len(sizes), order) or contexts.dtype.kind not in "iu":
            raise ValueError(f"{name} has {len(sizes)} sizes and contexts {contexts.shape}")
        if contexts.size and (contexts.min() < 0 or contexts.max() > ONE):
            raise ValueError(f"{name} has contexts of what is no token")
        tokens, weights = self.tokens(f"{name}.tokens"), self._weights(f"{name}.weights")
        if weights.shape != (len(tokens),) or len(tokens) != sizes.sum():
            raise ValueError(f"{name} has {len(tokens)} tokens for sizes of {sizes.sum()}")
        whole = np.zeros((len(sizes), ORDER), np.int64)
        whole[:, ORDER - order :] = contexts
        entries = np.zeros(len(sizes), record)
        entries["high"] = (whole[:, 0] << BITS) | whole[:, 1]
        entries["low"] = (whole[:, 2] << BITS) | whole[:, 3]
        entries["count"] = sizes
        kept = _kept(entries)
        entries["tokens"][kept], entries["weights"][kept] = tokens, weights
        if _has_sources(record):
            sources = self.small(f"{name}.sources", below=len(SOURCES))
            if len(sources) != len(tokens):
                raise ValueError(f"{name} has {len(sources)} sources for {len(tokens)} tokens")
            entries["sources"][kept] = sources
        return entries

    def _weights(self, name: str) -> NDArray[np.float64]:
        array = self._arrays[name]
        if array.dtype.kind != "f":
            raise ValueError(f"{name} holds no numbers with a point")
        weights = array.astype(np.float64)
        if not np.all((weights >= 0.0) & (weights <= HEAVIEST)):
            raise ValueError(f"{name} holds numbers that are no weights")
        return weights

    def _integers(self, name: str, least: int, below: int) -> NDArray[np.int64]:
        array = self._arrays[name]
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"{name} is no line of whole numbers")
        if len(array) and not (least <= int(array.min()) and int(array.max()) < below):
            raise ValueError(f"{name} holds a number outside {least} to {below - 1}")
        return array.astype(np.int64)
