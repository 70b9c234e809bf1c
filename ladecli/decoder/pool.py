"""The n-gram pool: what the window found, kept under its first token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class NgramPool:
    """N-grams under their first token, at most `guesses` for each: the oldest goes first.

    An n-gram that is found again becomes the newest.  Where two sources find the same
    n-gram, it keeps the source that found it first.
    """

    def __init__(self, guesses: int) -> None:
        self._guesses = guesses
        # A dict keeps the order of insertion: the first continuation is the oldest.
        self._under: dict[int, dict[tuple[int, ...], str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._under.values()))

    def add(self, ngram: Sequence[int], source: str) -> None:
        """Add or renew one n-gram: its first token is the key, the rest the continuation."""
        if self._guesses == 0:
            return
        continuations = self._under.setdefault(ngram[0], {})
        continuation = tuple(ngram[1:])
        found_by = continuations.pop(continuation, source)
        if len(continuations) >= self._guesses:
            del continuations[next(iter(continuations))]
        continuations[continuation] = found_by

    def candidates(self, token: int) -> Iterator[tuple[tuple[int, ...], str]]:
        """The continuations of `token` with their sources, the newest first."""
        return reversed(self._under.get(token, {}).items())
