"""What ranks say to one another in a step: whole numbers, equally many from each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Transport(Protocol):
    """Carries numbers between the ranks of a group, which all call it in the same order."""

    @property
    def rank(self) -> int:
        """This one's number, from 0 on."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Every rank's numbers, in the order of the ranks.

        Args:
            numbers: this rank's, each in [-2**31, 2**31), as many as every other rank gives.

        Raises:
            RankError: a rank is gone.
        """
