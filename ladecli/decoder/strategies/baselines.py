"""The strategies that lookahead is compared with: Jacobi decoding and prompt lookup."""

from __future__ import annotations

import random

from ..config import LookaheadConfig
from ..strategy import Draft, Room, State, StepResult, Strategy
from ..tree import TokenTree

LONGEST_MATCH = 3
LOOKUP_LENGTH = 10


class Jacobi(Strategy):
    """Guess a block of W tokens, let the model correct all of them at once, and repeat.

    Source: Santilli et al., "Accelerating Transformer Inference for Translation via Parallel
    Decoding", ACL 2023.  Lookahead decoding grew out of it.
    """

    def __init__(self, config: LookaheadConfig) -> None:
        self._length = config.window
        self._guess: list[int] = []
        self._rng = random.Random(0)

    def begin(self, state: State) -> None:
        """Guess tokens of the prompt."""
        self._guess = self._rng.choices(state.tokens, k=self._length)

    def propose(self, state: State, room: Room) -> Draft:
        """One chain, the guess as it is."""
        tree = TokenTree()
        tree.add(self._guess, "jacobi", limit=min(self._length, room.depth))
        return Draft(tree)

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """Take the model's corrections after the committed tokens, and fill up with old text."""
        corrected = [*result.best[len(result.tokens) :], *self._guess[len(draft.tree) :]]
        missing = self._length - len(corrected)
        self._guess = corrected + self._rng.choices(state.tokens, k=max(missing, 0))


class PromptLookup(Strategy):
    """Propose what followed the last few tokens where they occurred last.

    Source: Saxena, "Prompt Lookup Decoding", 2023.

    Args:
        config: `budget`, where given, limits the draft's length.
    """

    def __init__(self, config: LookaheadConfig) -> None:
        self._length = LOOKUP_LENGTH if config.budget is None else config.budget - 1
        # Where each run of up to LONGEST_MATCH tokens ended last, of the first `_indexed` tokens.
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def propose(self, state: State, room: Room) -> Draft:
        """One chain, the continuation of the longest suffix that occurred before."""
        tokens, tree = state.tokens, TokenTree()
        # Runs that end with the last token itself stay out: they would match themselves.
        for end in range(self._indexed + 1, len(tokens)):
            for length in range(1, min(LONGEST_MATCH, end) + 1):
                self._ends[tuple(tokens[end - length : end])] = end
        self._indexed = len(tokens) - 1
        for length in range(min(LONGEST_MATCH, len(tokens)), 0, -1):
            found = self._ends.get(tuple(tokens[-length:]))
            if found is not None:
                limit = min(self._length, room.depth)
                tree.add(tokens[found : found + limit], "context", limit)
                break
        return Draft(tree)
