"""The strategies that lookahead is compared with: Jacobi decoding and prompt lookup."""

from __future__ import annotations

import random

from ..config import LookaheadConfig
from ..strategy import Draft, Room, State, StepResult, Strategy
from ..tree import TokenTree

LONGEST_MATCH = 3
"""Prompt lookup compares at most this many tokens at the end of the text."""
LOOKUP_LENGTH = 10
"""The most tokens that prompt lookup proposes, if there is no budget."""


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
        """Start with random tokens of the prompt."""
        self._guess = self._rng.choices(state.tokens, k=self._length)

    def propose(self, state: State, room: Room) -> Draft:
        """Return the guess as a chain."""
        tree = TokenTree()
        tree.add(self._guess, "jacobi", limit=min(self._length, room.depth))
        return Draft(tree)

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """Keep the model's corrections after the committed tokens, and append random tokens of the
        text."""
        corrected = [*result.best[len(result.tokens) :], *self._guess[len(draft.tree) :]]
        missing = self._length - len(corrected)
        self._guess = corrected + self._rng.choices(state.tokens, k=max(missing, 0))


class PromptLookup(Strategy):
    """Propose the continuation of the last earlier occurrence of the last few tokens.

    Source: Saxena, "Prompt Lookup Decoding", 2023.

    Args:
        config: its `budget`, if not None, limits the length of the draft.
    """

    def __init__(self, config: LookaheadConfig) -> None:
        self._length = LOOKUP_LENGTH if config.budget is None else config.budget - 1
        # The last end of each run of up to LONGEST_MATCH tokens in the first `_indexed` tokens.
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def propose(self, state: State, room: Room) -> Draft:
        """Return what followed the longest suffix that occurred before, as a chain."""
        tokens, tree = state.tokens, TokenTree()
        # Leave out the runs that end with the last token: they would match themselves.
        for end in range(self._indexed + 1, len(tokens)):
            for length in range(1, min(LONGEST_MATCH, end) + 1):
                self._ends[tuple(tokens[end - length : end])] = end
        self._indexed = len(tokens) - 1
        for length in range(min(LONGEST_MATCH, len(tokens)), 0, -1):
            end = self._ends.get(tuple(tokens[-length:]), 0)
            if end:
                limit = min(self._length, room.depth)
                tree.add(tokens[end : end + limit], "context", limit)
                break
        return Draft(tree)
