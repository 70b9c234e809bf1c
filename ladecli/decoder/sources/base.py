"""What a draft source must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..observation import Observation


class Source(Protocol):
    """Feeds evidence to the n-gram model that it was made with."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A generation starts."""

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """A step is over, and the window closed `ngrams` in it."""
