"""Trajectory: the n-grams that the lookahead window closes (Fu et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from ..ngram_model import ORDER, NgramModel
from ..observation import Observation

WEIGHT = 0.25
"""Of an n-gram's evidence, relative to accepted text."""


class TrajectorySource:
    """Counts the window's n-grams.

    Args:
        model: takes the evidence.
    """

    def __init__(self, model: NgramModel) -> None:
        self._model = model

    def begin(self, prompt: Sequence[int]) -> None:
        """The window has closed nothing yet."""

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Learn the n-grams of this step, each token under those before it."""
        model = self._model
        for ngram in ngrams:
            context = ngram[0]
            for length, token in enumerate(ngram[1:], start=1):
                model.learn(context, min(length, ORDER), token, WEIGHT, "trajectory")
                context = model.after(context, token)
