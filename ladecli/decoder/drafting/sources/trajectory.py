"""The source `trajectory`: the n-grams that the lookahead window closes."""

from __future__ import annotations

from ..ngram_model import WINDOW
from .source import Observation, Source

WEIGHT = 0.25
"""Of an n-gram, relative to accepted text."""


class TrajectorySource(Source):
    """Counts the window's n-grams (Fu et al., 2024), each token under those before it."""

    def learn(self, step: Observation) -> None:
        """Count the n-grams of a step."""
        self.model.learn(step.ngrams, 1, WEIGHT, WINDOW)
