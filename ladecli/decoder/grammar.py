"""The interface of grammars, which the decoder knows as the tokens that may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenSet(bytes):
    """A set of tokens: bit i % 8 of byte i // 8 says whether token i is in it."""

    def __contains__(self, token: int) -> bool:  # type: ignore[override]
        return bool(self[token >> 3] >> (token & 7) & 1)


class Grammar(Protocol):
    """Says which tokens may follow a text.

    A path is what stands after the text that was committed, such as the path to a tree node.
    """

    def forced(self, path: Sequence[int]) -> int | None:
        """Return the only token that may follow a path; None if there are several."""

    def allowed(self, path: Sequence[int]) -> TokenSet | None:
        """Return the tokens that may follow a path; None if any may."""
