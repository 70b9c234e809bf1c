"""Reading: tokens whose keys are not in the cache are fed in chunks, up to the next step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator

from . import layout
from .events import Prefill
from .kv_cache import KVCache
from .layout import StepLayout
from .memory import Allowance, try_forward
from .parallel.group import Group
from .runner import Runner
from .strategies import State
from .support import ModelFacts


class Reader:
    """Reads text into the cache.

    Args:
        runner: feeds the model.
        cache: where its keys go.
        facts: of the model.
        chunk: tokens per forward.

    Attributes:
        chunk: the same.
    """

    def __init__(self, runner: Runner, cache: KVCache, facts: ModelFacts, chunk: int) -> None:
        self.chunk = chunk
        self._runner = runner
        self._cache = cache
        self._facts = facts
        self._long_keys = False

    def read(
        self, state: State, allowance: Allowance, group: Group
    ) -> Generator[Prefill, None, bool]:
        """Feed what is pending in chunks, up to the one that the next step takes along.

        That is the prompt; and the whole text where it grows beyond the boundary at which
        rotary frequencies change, because the cached keys were turned by those of short texts.
        Then all ranks lack the same, and meet before every chunk, so that any of them can end it.

        Returns:
            Whether memory sufficed.
        """
        total, most = len(state.tokens), self.chunk
        alike = self.forget_turned_keys(total) or total == state.prompt_length
        meetings = deque(range(self._cache.length, total - most, most) if alike else ())
        # A token that nobody sees makes the model use long frequencies for short positions.
        anchor = total - 1 if self._long_keys else None
        began = time.perf_counter()
        while total - self._cache.length > allowance.chunk:
            start = self._cache.length
            if meetings and start == meetings[0]:
                group.read()
                meetings.popleft()
            end = min(start + allowance.chunk, meetings[0] if meetings else total)
            chunk = layout.build_chunk(state.tokens[start:end], start, anchor)
            if try_forward(group.forwards_alone, self._feed, chunk) is None:
                if not allowance.shrink(end - start):
                    for _ in meetings:
                        group.read()
                    return False
                continue
            yield Prefill(self._cache.length, total, time.perf_counter() - began)
            began = time.perf_counter()
        return True

    def forget_turned_keys(self, total: int) -> bool:
        """Forget keys that were turned by frequencies for texts of another length.

        Args:
            total: tokens of the text.
        """
        boundary = self._facts.rope_boundary
        is_long = boundary is not None and total > boundary
        turned = is_long != self._long_keys
        if turned:
            self._cache.truncate(0)
            self._long_keys = is_long
        return turned

    def _feed(self, chunk: StepLayout) -> int:
        """Put a chunk into the cache; returns how many tokens it has."""
        self._runner.forward(chunk)
        self._cache.keep(range(chunk.pending))
        return chunk.pending
