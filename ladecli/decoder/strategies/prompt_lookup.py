"""Prompt lookup: propose what followed the last few tokens where they occurred before.

Source: Saxena, "Prompt Lookup Decoding", 2023.
"""

from __future__ import annotations

from ..config import LookaheadConfig
from ..layout import Draft
from ..observation import State
from ..tree import TokenTree
from .base import Strategy

LONGEST_MATCH = 3
DRAFT_LENGTH = 10


class SuffixIndex:
    """Where each run of up to `longest` tokens ended last; constant time per token."""

    def __init__(self, longest: int = LONGEST_MATCH) -> None:
        self._longest = longest
        self._indexed = 0
        self._ends: dict[tuple[int, ...], int] = {}

    def find(self, tokens: list[int]) -> int | None:
        """The index after an earlier occurrence of the longest suffix that has one.

        Args:
            tokens: the text, which must extend that of the last call.
        """
        # Runs that end with the last token itself stay out: they would match themselves.
        for end in range(self._indexed + 1, len(tokens)):
            for length in range(1, min(self._longest, end) + 1):
                self._ends[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for length in range(min(self._longest, len(tokens)), 0, -1):
            found = self._ends.get(tuple(tokens[-length:]))
            if found is not None:
                return found
        return None


class PromptLookup(Strategy):
    """Drafts the continuation of the longest suffix that occurred before.

    Args:
        config: `budget`, where given, limits the draft's length.
    """

    name = "prompt-lookup"

    def __init__(self, config: LookaheadConfig) -> None:
        self._length = DRAFT_LENGTH if config.budget is None else config.budget - 1
        self._index = SuffixIndex()
        self.max_outputs = 1 + self._length

    def begin(self, state: State) -> None:
        """Start with an empty index, which `propose` fills."""
        self._index = SuffixIndex()

    def propose(self, state: State) -> Draft:
        """One chain: what followed the last tokens before."""
        tree = TokenTree()
        if (end := self._index.find(state.tokens)) is not None:
            limit = min(self._length, state.draft_depth)
            tree.add(state.tokens[end : end + limit], "context", limit)
        return Draft(tree)
