"""Jacobi decoding: guess a block of tokens, let the model correct all of them at once.

Source: Santilli et al., "Accelerating Transformer Inference for Translation via Parallel
Decoding", ACL 2023.  The baseline that lookahead decoding grew out of.
"""

from __future__ import annotations

import random

from ..config import LookaheadConfig
from ..layout import Draft
from ..observation import Observation, State
from ..tree import TokenTree
from .base import Strategy


class Jacobi(Strategy):
    """One chain of W guesses after the current token, iterated in parallel.

    Args:
        config: `window` is the length of the chain.
    """

    name = "jacobi"

    def __init__(self, config: LookaheadConfig) -> None:
        self._length = config.window
        self.max_outputs = 1 + config.window
        self._guess: list[int] = []
        self._rng = random.Random(0)

    def begin(self, state: State) -> None:
        """Guess tokens of the prompt."""
        self._guess = self._rng.choices(state.tokens, k=self._length)

    def propose(self, state: State) -> Draft:
        """The chain as it is."""
        tree = TokenTree()
        tree.add(self._guess, "jacobi", limit=min(self._length, state.draft_depth))
        return Draft(tree)

    def observe(self, state: State, observation: Observation) -> None:
        """Take the model's corrections after the committed tokens, and fill up with old text."""
        committed = len(observation.verdict.tokens)
        kept = self._guess[len(observation.draft.tree) :]
        corrected = [*observation.best[committed:], *kept]
        missing = self._length - len(corrected)
        self._guess = corrected + self._rng.choices(state.tokens, k=max(missing, 0))
