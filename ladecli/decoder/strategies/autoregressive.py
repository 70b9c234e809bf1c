"""Plain decoding, one token per step: the oracle of all other strategies."""

from __future__ import annotations

from ..layout import Draft
from ..observation import Observation, State


class Autoregressive:
    """Proposes nothing."""

    name = "autoregressive"
    max_outputs = 1
    max_successors = 0

    def fingerprint(self) -> int:
        """There are no drafts."""
        return 0

    def begin(self, state: State) -> None:
        """Nothing to prepare."""

    def propose(self, state: State) -> Draft:
        """An empty draft."""
        return Draft()

    def observe(self, state: State, observation: Observation) -> None:
        """Nothing to learn."""
