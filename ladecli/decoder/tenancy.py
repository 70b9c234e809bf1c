"""Whose the cache is, and which text is in it: one generation's at a time, the newest one's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Sequence

from .errors import DecoderError
from .events import Event
from .kv_cache import KVCache


class Tenancy:
    """One cache, which each generation takes over from the one before.

    Args:
        cache: holds keys of committed tokens only, whenever nobody has the lock.

    Attributes:
        lock: whoever has it may change the cache.
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
        """A generation takes the cache over, as far as it belongs to its text.

        Args:
            tokens: of which at least one is fed.

        Returns:
            The generation's number.
        """
        pairs = zip(tokens[:-1], self._text, strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._cache.truncate(common)
        # Known again when this generation ends.  If another one takes over before that, it
        # must not take this one's keys for those of an earlier text.
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
        """A generation is over, wherever it was broken off: what counts is the committed text.

        Args:
            generation: one that another one has replaced has nothing in the cache any more.
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
