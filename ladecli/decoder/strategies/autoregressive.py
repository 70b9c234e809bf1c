"""Plain decoding, one token per step: the oracle of all other strategies."""

from __future__ import annotations

from ..layout import Draft
from .base import Observation, State


class Autoregressive:
    """Proposes nothing."""

    name = "autoregressive"
    ranks = 0

    def begin(self, state: State) -> None:
        """Nothing to prepare."""

    def propose(self, state: State) -> Draft:
        """An empty draft."""
        return Draft()

    def observe(self, state: State, seen: Observation) -> None:
        """Nothing to learn."""
