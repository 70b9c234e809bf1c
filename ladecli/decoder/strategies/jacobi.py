"""Jacobi decoding: guess a block of tokens, let the model correct all of them at once.

Source: Santilli et al., "Accelerating Transformer Inference for Translation via Parallel
Decoding", ACL 2023.  The baseline that lookahead decoding grew out of.
"""

from __future__ import annotations

import random

from ..checksum import checksum
from ..config import LookaheadConfig
from ..layout import Draft
from ..observation import Observation
from ..tree import TokenTree
from .base import State


class Jacobi:
    """One chain of W guesses behind the current token, iterated in parallel.

    Args:
        config: `window` is the length of the chain.
    """

    name = "jacobi"
    successors = 0

    def __init__(self, config: LookaheadConfig) -> None:
        self._length = config.window
        self.outputs = 1 + config.window
        self._guess: list[int] = []
        self._rng = random.Random(0)

    def checksum(self) -> int:
        """Of the guess."""
        return checksum(self._guess)

    def begin(self, state: State) -> None:
        """Guess tokens of the prompt."""
        self._guess = self._rng.choices(state.tokens, k=self._length)

    def propose(self, state: State) -> Draft:
        """The chain as it stands."""
        tree = TokenTree()
        tree.add(self._guess, "jacobi", limit=min(self._length, state.draft_depth))
        return Draft(tree)

    def observe(self, state: State, seen: Observation) -> None:
        """Take the model's corrections behind what was committed; fill up with the last one."""
        committed = len(seen.verdict.tokens)
        corrected = list(seen.best[committed:]) + self._guess[len(seen.draft.tree) :]
        missing = self._length - len(corrected)
        self._guess = corrected + self._rng.choices(state.tokens, k=max(missing, 0))
