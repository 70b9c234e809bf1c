"""Plain decoding, one token per step: the oracle of all other strategies."""

from __future__ import annotations

from ..layout import Draft
from ..observation import Observation
from .base import State


class Autoregressive:
    """Proposes nothing."""

    name = "autoregressive"
    outputs = 1
    successors = 0

    def checksum(self) -> int:
        """There is nothing that drafts are made from."""
        return 0

    def begin(self, state: State) -> None:
        """Nothing to prepare."""

    def propose(self, state: State) -> Draft:
        """An empty draft."""
        return Draft()

    def observe(self, state: State, seen: Observation) -> None:
        """Nothing to learn."""
