"""The source `recycled`: the model's own successors after the text and after every candidate."""

from __future__ import annotations

from ..ngram_model import ORDER
from .source import Observation, Source


class RecycledSource(Source):
    """Remembers the model's successors under the contexts of a step's tokens.

    Luo et al. (2024; see `ngram_model`) remember them by single token.  Under contexts of up to
    four tokens they are nearly always still the model's own next time.
    """

    def learn(self, step: Observation) -> None:
        """Remember the successors, if the step has them."""
        if step.successors:
            before = len(step.text) - step.new
            last = step.text[max(before - ORDER, 0) : before]
            self.model.recycle(last, step.tree, step.successors)
