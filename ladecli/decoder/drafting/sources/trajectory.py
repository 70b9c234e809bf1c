"""The source `trajectory`: the n-grams that the lookahead window closes."""

from __future__ import annotations

from .source import Observation, Source


class TrajectorySource(Source):
    """Counts the window's n-grams (Fu et al., 2024), each token under those before it."""

    def learn(self, step: Observation) -> None:
        """Count the n-grams of a step."""
        self.model.learn(step.ngrams, 1, window=True)
