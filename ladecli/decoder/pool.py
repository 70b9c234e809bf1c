"""The n-gram pool: what the window found, under its first token (Fu et al., 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class NgramPool:
    """N-grams under their first token: the oldest goes first, a repeated one is renewed."""

    def __init__(self) -> None:
        # A dict keeps the order of insertion: the first continuation is the oldest.
        self._continuations: dict[int, dict[tuple[int, ...], None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._continuations.values()))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """All n-grams, under each first token the oldest first."""
        for token, continuations in self._continuations.items():
            for continuation in continuations:
                yield token, *continuation

    def add(self, ngram: Sequence[int], guesses: int) -> None:
        """Add or renew one n-gram: its first token is the key, the rest the continuation.

        Args:
            ngram: at least two tokens.
            guesses: G, the most n-grams under one token.
        """
        if guesses == 0:
            return
        continuations = self._continuations.setdefault(ngram[0], {})
        continuation = tuple(ngram[1:])
        continuations.pop(continuation, None)
        while len(continuations) >= guesses:
            del continuations[next(iter(continuations))]
        continuations[continuation] = None

    def candidates(self, token: int) -> Iterator[tuple[int, ...]]:
        """The continuations of `token`, the newest first."""
        return reversed(self._continuations.get(token, {}))
