"""Trajectory: the n-grams that the lookahead window closes (Fu et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from ..layout import Draft
from ..ngram_model import ORDER, NgramModel
from ..observation import Observation

WEIGHT = 0.25
"""Of an n-gram's evidence, relative to accepted text."""


class TrajectorySource:
    """Counts the window's n-grams, one step late: the next draft does not wait for them.

    That moved tokens per step by no more than single texts do (benchmarks/README.md).

    Args:
        model: takes the evidence.
    """

    def __init__(self, model: NgramModel) -> None:
        self._model = model
        self._waiting: Sequence[Sequence[int]] = ()

    def begin(self, prompt: Sequence[int]) -> None:
        """The window has closed nothing yet; what an earlier one closed is learned."""
        self.catch_up()

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Keep the n-grams of this step until there is time."""
        self.catch_up()
        self._waiting = ngrams

    def settle(self, draft: Draft, text: Sequence[int]) -> None:
        """There is time."""
        self.catch_up()

    def catch_up(self) -> None:
        """Learn the n-grams that wait, each token under those before it."""
        model, ngrams = self._model, self._waiting
        self._waiting = ()
        for ngram in ngrams:
            context = ngram[0]
            for length, token in enumerate(ngram[1:], start=1):
                model.learn(context, min(length, ORDER), token, WEIGHT, "trajectory")
                context = model.after(context, token)
