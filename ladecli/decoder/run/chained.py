"""Steps of a model with a cache of its own, which verifies one continuation of a text at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..sampling import Sampler
from ..strategy import Draft, Room, State
from ..tree import TokenTree
from .executor import Executor, Fed

MOST_FED_AGAIN = 16
"""Committed tokens that a step with drafts feeds again at most, where its cache is put back if the
drafts are not accepted whole."""


class Chained(Executor):
    """Runs steps of a model with a cache of its own, which holds one continuation of the text.

    Where a chain of drafts is not accepted whole, the cache is put back to where it was before the
    step, and the accepted tokens are fed again with the next one.
    """

    def begin(self, state: State, fingerprint: Sequence[object]) -> None:
        """See `Executor`."""
        super().begin(state, fingerprint)
        if self.runner.model.drafts == "none":
            self._widest = 1

    def room(self, state: State) -> Room:
        """See `Executor`: only a chain can be verified."""
        begins = len(state.tokens) == state.prompt_length
        load = 1 if begins else len(state.tokens) - self.cache.length
        return replace(super().room(state), loads=(load,), branches=False)

    def start(self, state: State, draft: Draft, sampler: Sampler) -> Fed:
        """See `Executor`."""
        # A step without drafts is accepted whole, so that nothing of it is fed again.
        again = len(state.tokens) - 1 - self.cache.length > MOST_FED_AGAIN
        tree = TokenTree() if again else draft.tree
        return super().start(state, replace(draft, tree=tree, window=None, width=1), sampler)
