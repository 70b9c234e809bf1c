"""Recycled: what the model found probable wherever a step computed logits anyway.

Source: Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language
Models with Token Recycling", 2024, who remember successors of single tokens.  Under contexts
of up to four tokens they are nearly always still the model's own next time.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ngrams import NgramModel
from ..ngrams.kernels import ORDER
from ..observation import Observation

SUCCESSORS = 4
"""Successors remembered of a token."""


class RecycledSource:
    """Remembers the successors of every token of a step, in the tree and in the window.

    Args:
        model: takes the evidence.
    """

    def __init__(self, model: NgramModel) -> None:
        self._model = model

    def begin(self, prompt: Sequence[int]) -> None:
        """No step has computed anything yet."""

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Remember the successors under the contexts that the step's tokens stood in."""
        tree, window, said = seen.draft.tree, seen.draft.window, seen.ranked
        if not len(said):
            return
        nodes, before = 1 + len(tree), seen.before
        text = seen.text[max(before - ORDER, 0) : before]
        self._model.recycle(text, tree, said.part(slice(nodes)))
        if window is not None:
            # Cell (0, 0) is the current token, whose successors are known already.
            first = window.last_row[0] < 0
            pairs, guesses = window.last_tokens[first:], said.part(slice(nodes + first, None))
            self._model.guess(pairs, guesses)
