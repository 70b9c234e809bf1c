"""Recycled: what the model found probable wherever a step computed logits anyway.

Source: Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language
Models with Token Recycling", 2024, who remember successors of single tokens.  Under contexts
of up to four tokens they are nearly always still the model's own next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..layout import Draft
from ..ngram_model import BITS, MASKS, ORDER, NgramModel
from ..observation import Observation

SUCCESSORS = 4
"""Successors remembered of a token."""
WINDOW_ORDER = 2
"""A window cell stands on guesses: no longer context of its successors is remembered."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the successors that a step will show belong.

    Attributes:
        draft: what the step tries.
        before: tokens of the text before it.
        nodes: keys of the current token and of the tree's nodes; see `NgramModel.keys`.
        cells: keys of the window's last row.
        first: the output of the first of these cells.
    """

    draft: Draft
    before: int
    nodes: list[list[int]]
    cells: list[list[int]]
    first: int


class RecycledSource:
    """Remembers the successors of every token of a step, in the tree and in the window.

    The next draft needs them at once, but where they belong is found out ahead.

    Args:
        model: takes the evidence.
    """

    def __init__(self, model: NgramModel) -> None:
        self._model = model
        self._places: _Places | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        """No step has computed anything yet."""

    def settle(self, draft: Draft, text: Sequence[int]) -> None:
        """Find out where the successors that this draft asks for belong."""
        if draft.successors:
            self._places = self._find(draft, text)

    def learn(self, seen: Observation, ngrams: Sequence[Sequence[int]]) -> None:
        """Remember the successors under the contexts that the step's tokens stood in."""
        if not seen.ranked:
            return
        model, places = self._model, self._places
        self._places = None
        # Ranks may have had no room for all of a draft.
        if places is None or places.draft is not seen.draft or places.before != seen.before:
            places = self._find(seen.draft, seen.text[: seen.before])
        model.recycle(model.recycled, places.nodes, seen.ranked[: 1 + len(seen.draft.tree)])
        if places.cells:
            model.recycle(model.guessed, places.cells, seen.ranked[places.first :])

    def _find(self, draft: Draft, text: Sequence[int]) -> _Places:
        """The places of a draft behind a text."""
        model, tree, window = self._model, draft.tree, draft.window
        contexts = [model.context_of(text)]
        for parent, token in zip(tree.parents, tree.tokens, strict=True):
            contexts.append(((contexts[parent + 1] << BITS) | token) & MASKS[ORDER])
        nodes = model.keys(contexts, min(len(text), ORDER))
        if window is None:
            return _Places(draft, len(text), nodes, [], 0)
        # Cell (0, 0) is the current token, whose successors are known already.
        skipped = window.last_row[0] < 0
        pairs = [(first << BITS) | second for first, second in window.last_tokens[skipped:]]
        cells = model.keys(pairs, WINDOW_ORDER)
        return _Places(draft, len(text), nodes, cells, len(contexts) + skipped)
