"""Ownership of the KV cache: one generation at a time, and the prefix that the next can reuse."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Sequence

from .errors import DecoderError
from .events import Event
from .kv_cache import KVCache


class CacheOwner:
    """One cache, which each generation takes over from the one before.

    Args:
        cache: holds keys of committed tokens only, whenever the lock is free.

    Attributes:
        lock: taken to change the cache.
    """

    def __init__(self, cache: KVCache) -> None:
        self.lock = threading.Lock()
        self._cache = cache
        self._text: list[int] = []
        self._newest = 0

    def exclusive(self, events: Generator[Event]) -> Generator[Event]:
        """Let one thread at a time into a generation."""
        try:
            while True:
                with self.lock:
                    event = next(events, None)
                if event is None:
                    return
                yield event
        finally:
            with self.lock:
                events.close()

    def begin(self, tokens: Sequence[int]) -> int:
        """Take the cache over, as far as it belongs to a text, of which one token at least is fed.

        Returns:
            The generation's number.
        """
        pairs = zip(tokens[:-1], self._text, strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._cache.truncate(common)
        # Known again when this generation ends; one that takes over before must not take these
        # keys for those of an earlier text.
        self._text = []
        self._newest += 1
        return self._newest

    def check(self, generation: int) -> None:
        """Stop a generation whose cache another one has taken over.

        Raises:
            DecoderError: there is a newer one.
        """
        if generation != self._newest:
            raise DecoderError("another generation has started on this decoder; this one is over")

    def end(self, generation: int, tokens: Sequence[int]) -> None:
        """A generation is over, wherever it was broken off.

        Args:
            generation: its number; a replaced one has nothing in the cache any more.
            tokens: committed ones, the last of which has no keys yet.
        """
        if generation == self._newest:
            self._cache.truncate(len(tokens) - 1)
            self._text = list(tokens[: self._cache.length])

    def forget(self) -> None:
        """Drop the text; a generation under way is over."""
        self._newest += 1
        self._text = []
        self._cache.truncate(0)
