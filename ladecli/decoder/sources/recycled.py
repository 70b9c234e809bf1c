"""Recycled: what the model found probable wherever a step computed logits anyway.

Source: Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language
Models with Token Recycling", 2024, who remember successors of single tokens.  Under contexts
of up to four tokens they are nearly always still the model's own next time.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ngram_model import BITS, MASKS, ORDER, NgramModel
from ..observation import Observation

SUCCESSORS = 4
"""Successors remembered of a token."""
WINDOW_ORDER = 2
"""A window cell stands on guesses: no longer context of its successors is remembered."""


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
        if not seen.ranked:
            return
        model, tree, window = self._model, seen.draft.tree, seen.draft.window
        before = seen.before
        contexts = [model.context_of(seen.text[max(before - ORDER, 0) : before])]
        for parent, token in zip(tree.parents, tree.tokens, strict=True):
            contexts.append(((contexts[parent + 1] << BITS) | token) & MASKS[ORDER])
        count = len(contexts)
        model.recycle(model.recycled, contexts, min(before, ORDER), seen.ranked[:count])
        if window is not None:
            # Cell (0, 0) is the current token, whose successors are known already.
            skipped = window.last_row[0] < 0
            pairs = [(first << BITS) | second for first, second in window.last_tokens[skipped:]]
            rows = seen.ranked[count + skipped :]
            model.recycle(model.guessed, pairs, WINDOW_ORDER, rows)
