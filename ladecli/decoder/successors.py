"""What a model finds probable after each of several tokens, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOTHING = -1
"""Stands for no token: rows may be shorter than others, or empty."""


@dataclass(frozen=True, slots=True)
class Successors:
    """The most probable tokens after each of n outputs, the best first.

    Both arrays are contiguous and may be written to: compiled functions would be compiled once more
    for others.

    Attributes:
        tokens: int32 [n, k]; `NOTHING` behind the last one of a shorter row.
        probabilities: float32 [n, k].
    """

    tokens: NDArray[np.int32]
    probabilities: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, outputs: slice) -> Successors:
        """Those after some of the outputs."""
        return Successors(self.tokens[outputs], self.probabilities[outputs])

    def rows(self) -> list[dict[int, float]]:
        """By output, probabilities by token, the best first."""
        return [
            {token: share for token, share in zip(*row, strict=True) if token != NOTHING}
            for row in zip(self.tokens.tolist(), self.probabilities.tolist(), strict=True)
        ]

    @classmethod
    def of(cls, rows: Sequence[dict[int, float]]) -> Successors:
        """The arrays that hold these rows."""
        longest = max(map(len, rows), default=0)
        tokens = np.full((len(rows), longest), NOTHING, dtype=np.int32)
        probabilities = np.zeros((len(rows), longest), dtype=np.float32)
        for index, row in enumerate(rows):
            tokens[index, : len(row)] = list(row)
            probabilities[index, : len(row)] = list(row.values())
        return cls(tokens, probabilities)


NONE = Successors(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))
"""Where nobody asked."""
