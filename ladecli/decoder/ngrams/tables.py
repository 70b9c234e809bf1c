"""A table of what is known of contexts: arrays that grow, and forget what was met first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .kernels import ORDER

CONTEXTS = 1 << 16
"""Contexts remembered of one length and kind.  Those met first go first: to keep the order of
use would cost more than to learn a frequent one anew."""
START = 1 << 8
"""Contexts of one length that a new table has room for."""


class Table:
    """Entries under contexts of one to `ORDER` tokens.

    Args:
        record: what an entry is, `kernels.COUNTED` or `kernels.RANKED`.

    Attributes:
        arrays: entries, index and sizes, as `kernels` takes them; others when it has grown.
    """

    def __init__(self, record: np.dtype[Any]) -> None:
        self.arrays = _arrays(record, START)
        # Entries of each length that can still be made without looking, at least.
        self._room = min(START, CONTEXTS)

    def __len__(self) -> int:
        return int(self.arrays[2].sum())

    @property
    def sizes(self) -> list[int]:
        """Entries by length of context, from 0 on."""
        sizes: list[int] = self.arrays[2].tolist()
        return sizes

    def entries(self, order: int) -> NDArray[Any]:
        """The entries of one length, those met first first."""
        records, _, sizes = self.arrays
        return records[order, : sizes[order]]

    def load(self, order: int, records: NDArray[Any]) -> None:
        """Take up the entries of one length, which a new table does not have yet.

        Args:
            order: their length.
            records: as `entries` gives them, of which the last `CONTEXTS` are taken up; of those
                under one context, the last one counts.
        """
        records = records[-CONTEXTS:]
        self._grow(len(records))
        entries, _, sizes = self.arrays
        entries[order, : len(records)] = records
        sizes[order] = len(records)
        _index(self.arrays, order)
        self._room = 0

    def reserve(self, count: int) -> None:
        """Make room for so many new entries of each length, at most `CONTEXTS`."""
        self._room -= count
        if self._room < 0:
            self._make_room(count)

    def _make_room(self, count: int) -> None:
        for order, size in enumerate(self.sizes):
            if size + count > CONTEXTS:
                # A sixteenth at once, so that it is seldom done.
                kernels.forget(self.arrays, order, min(max(CONTEXTS // 16, count), size))
        most = max(self.sizes)
        self._grow(most + count)
        self._room = min(self.arrays[0].shape[1], CONTEXTS) - most - count

    def _grow(self, capacity: int) -> None:
        """Have a capacity of at least so many entries of each length."""
        records, _, sizes = self.arrays
        before, most = records.shape[1], int(sizes.max())
        if capacity <= before:
            return
        # Twice as much each time, so that it is seldom done.
        self.arrays = _arrays(records.dtype, before << math.ceil(math.log2(capacity / before)))
        self.arrays[0][:, :most] = records[:, :most]
        self.arrays[2][:] = sizes
        for order in range(1, ORDER + 1):
            _index(self.arrays, order)


def _arrays(record: np.dtype[Any], capacity: int) -> tuple[NDArray[Any], ...]:
    return (
        np.zeros((ORDER + 1, capacity), record),
        # Half of it stays empty, so that what is looked for is found soon.
        np.full((ORDER + 1, 2 * capacity), -1, np.int32),
        np.zeros(ORDER + 1, np.int64),
    )


def _index(arrays: tuple[NDArray[Any], ...], order: int) -> None:
    """Enter what there is into the index."""
    kernels.forget(arrays, order, 0)
