"""Texts whose keys and values are kept in host memory for prompts with the same beginning.

A short request between two turns of a long conversation would otherwise cost the next turn its
whole prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..faults import attempt
from ..kv_cache import KVCache
from ..tree import common_prefix
from .load import return_freed_memory

SHORTEST = 64
"""Fewer tokens are neither kept nor restored."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptText:
    """A text and its cached state."""

    tokens: Sequence[int]
    state: Sequence[Tensor]  # as `KVCache.save` returned it

    @property
    def size(self) -> int:
        """The bytes of the state."""
        return sum(tensor.nbytes for tensor in self.state)


class Prefixes:
    """The texts that a cache has held.

    Args:
        limit: the most bytes of all of them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._texts: list[KeptText] = []  # the one used last at the end

    def clear(self) -> None:
        """Drop all texts."""
        self._texts.clear()

    def switch(self, cache: KVCache, text: Sequence[int], prompt: Sequence[int]) -> int:
        """Restore the longest known beginning of a prompt in a cache.

        Args:
            cache: holds `text`, which is kept if the prompt has little in common with it.
            text: token ids.
            prompt: token ids.

        Returns:
            The number of tokens of the prompt in the cache, which may be followed by others.
        """
        shared = common_prefix(prompt, text)
        if len(text) - shared >= max(SHORTEST, shared):
            self._keep(cache, text)
        kept = max(self._texts, key=lambda one: common_prefix(prompt, one.tokens), default=None)
        if kept is None or (known := common_prefix(prompt, kept.tokens)) < shared + SHORTEST:
            return shared
        self._texts.remove(kept)
        self._texts.append(kept)
        cache.truncate(0)
        return attempt(cache.restore, kept.state, known) or 0

    def _keep(self, cache: KVCache, text: Sequence[int]) -> None:
        """Keep a text, if the longer ones leave room."""
        if any(common_prefix(one.tokens, text) == len(text) for one in self._texts):
            return
        size = sum(tensor[..., : cache.length, :].nbytes for tensor in cache.tensors)
        if size > self._limit:
            return  # without a copy
        others = [one for one in self._texts if common_prefix(one.tokens, text) < len(one.tokens)]
        state = attempt(cache.save)
        if not state:
            return
        kept = KeptText([*text], state)
        left = self._limit - kept.size - sum(one.size for one in others)
        dropped = []
        for one in others:
            if left < 0 and len(one.tokens) <= len(text):
                dropped.append(one)
                left += one.size
        if left >= 0:
            self._texts = [*(one for one in others if one not in dropped), kept]
            if dropped:
                others.clear()
                dropped.clear()
                return_freed_memory()  # else texts of all lengths leave gaps that none fills
