"""Prefill: pending tokens are fed in chunks, up to the one that the next step takes along."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator

from .. import layout
from ..events import PromptRead
from ..faults import Backoff, attempt
from ..strategy import State
from .runner import Runner


class Prefiller:
    """Reads text into the cache of a runner.

    Args:
        runner: runs forwards.
        rope_boundary: see `ModelFacts`.
        chunk: tokens per forward, where memory suffices.
    """

    def __init__(self, runner: Runner, rope_boundary: int | None, chunk: int) -> None:
        self._chunk = chunk
        self._runner = runner
        self._cache = runner.cache
        self._boundary = rope_boundary
        self._long_keys = False

    def read(
        self, state: State, backoff: Backoff, before: Callable[[], None]
    ) -> Generator[PromptRead, None, bool]:
        """Feed what is pending in chunks.

        That is the prompt; and the whole text where it grows beyond the boundary at which rotary
        frequencies change, because the cached keys were turned by those of short texts.  Then
        all ranks lack the same tokens, and wait for one another before every chunk, so that any
        of them can end it.

        Args:
            state: the text.
            backoff: how many tokens memory suffices for.
            before: called before every chunk that all ranks lack.

        Returns:
            Whether memory sufficed.
        """
        total, most = len(state.tokens), self._chunk
        alike = self.invalidate_on_rope_change(total) or total == state.prompt_length
        # Where ranks meet: the starts of the chunks that each has while memory suffices.  One with
        # smaller chunks meets the others at these only; so does one that gives up, or they would
        # wait for it forever.
        starts = deque(range(self._cache.length, total - most, most) if alike else ())
        # A token that no other one sees makes the model use long frequencies for short positions.
        anchor = total - 1 if self._long_keys else None
        began = time.perf_counter()
        while total - self._cache.length > backoff.chunk:
            start = self._cache.length
            if starts and start == starts[0]:
                before()
                starts.popleft()
            end = min(start + backoff.chunk, starts[0] if starts else total)
            chunk = layout.build_chunk(state.tokens[start:end], start, anchor)
            if attempt(self._runner.run, chunk) is None:
                if not backoff.shrink(end - start):
                    for _ in starts:
                        before()
                    return False
                continue
            self._cache.keep(range(chunk.pending))
            yield PromptRead(self._cache.length, total, time.perf_counter() - began)
            began = time.perf_counter()
        return True

    def invalidate_on_rope_change(self, total: int) -> bool:
        """Forget keys whose rotary frequencies are not those of texts of `total` tokens.

        Returns:
            Whether they were forgotten.
        """
        is_long = self._boundary is not None and total > self._boundary
        changed = is_long != self._long_keys
        if changed:
            self._cache.truncate(0)
            self._long_keys = is_long
        return changed
