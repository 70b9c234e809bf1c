"""Trajectory: the n-grams that the lookahead window closes (Fu et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from ..ngrams import NgramModel
from ..observation import Observation

WEIGHT = 0.25
"""Of an n-gram's evidence, relative to accepted text."""


class TrajectorySource:
    """Counts the window's n-grams, each token under those before it.

    Args:
        model: takes the evidence.
    """

    def __init__(self, model: NgramModel) -> None:
        self._model = model

    def begin(self, prompt: Sequence[int]) -> None:
        """The window has closed nothing yet."""

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Count the n-grams of this step."""
        self._model.learn(ngrams, 1, WEIGHT, "trajectory")
