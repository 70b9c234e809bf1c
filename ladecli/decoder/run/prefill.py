"""Prefill: pending tokens are fed in chunks, up to the one that the next step takes along."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Generator

from .. import layout
from ..errors import NoMemoryError
from ..events import Prefill
from ..faults import attempt
from ..model.families import ModelFacts
from ..strategy import State
from .ranks import Group
from .runner import Runner


class Backoff:
    """How many tokens one forward may feed, as far as one generation has found out.

    Every generation starts with a new one: to keep the limits would slow a whole session down
    for one bad moment.

    Args:
        chunk: pending tokens of one forward where memory suffices.
        width: tokens of a step, pending ones other than the current left out, likewise.

    Attributes:
        chunk: the most pending tokens, such as those of the prompt.
        width: the most tokens of a step, pending ones other than the current left out.
    """

    def __init__(self, chunk: int, width: int = sys.maxsize) -> None:
        self.chunk = chunk
        self.width = width

    def shrink(self, pending: int, width: int = 1) -> bool:
        """Halve the larger part of a forward that memory did not suffice for.

        Args:
            pending: its pending tokens, the current one included if it was a step.
            width: its other tokens and one more; 1 for a chunk of the prompt.

        Returns:
            Whether anything smaller is left to try.
        """
        if pending > width:
            self.chunk = pending // 2
        elif width > 1:
            self.width = width // 2
        return max(pending, width) > 1


class Prefiller:
    """Reads text into the cache of a runner, `chunk` tokens per forward."""

    def __init__(self, runner: Runner, facts: ModelFacts, chunk: int) -> None:
        self.chunk = chunk
        self._runner = runner
        self._cache = runner.cache
        self._boundary = facts.rope_boundary
        self._long_keys = False

    def read(self, state: State, backoff: Backoff, group: Group) -> Generator[Prefill, None, bool]:
        """Feed what is pending in chunks.

        That is the prompt; and the whole text where it grows beyond the boundary at which rotary
        frequencies change, because the cached keys were turned by those of short texts.  Then
        all ranks lack the same tokens, and synchronise before every chunk so that any of them
        can end it.

        Returns:
            Whether memory sufficed.
        """
        total, most = len(state.tokens), self.chunk
        alike = self.invalidate_on_rope_change(total) or total == state.prompt_length
        starts = deque(range(self._cache.length, total - most, most) if alike else ())
        # A token that no other one sees makes the model use long frequencies for short positions.
        anchor = total - 1 if self._long_keys else None
        began = time.perf_counter()
        while total - self._cache.length > backoff.chunk:
            start = self._cache.length
            if starts and start == starts[0]:
                group.sync()
                starts.popleft()
            end = min(start + backoff.chunk, starts[0] if starts else total)
            chunk = layout.build_chunk(state.tokens[start:end], start, anchor)
            if attempt(self._runner.run, chunk) is None:
                if not group.forwards_alone:
                    raise NoMemoryError
                if not backoff.shrink(end - start):
                    for _ in starts:
                        group.sync()
                    return False
                continue
            self._cache.keep(range(chunk.pending))
            yield Prefill(self._cache.length, total, time.perf_counter() - began)
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
