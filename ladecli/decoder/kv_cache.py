"""Keys and values of the committed text, by slot, in one tensor over all layers.

A step writes behind the committed tokens; `keep` moves the accepted ones to the front of
what was written with one gather, and forgets the rest.  Slots behind `length` hold nothing
that anybody reads, so a step that is broken off at any point leaves the cache valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .config import GROWTH, PARTLY
from .memory import attempt


class KVCache:
    """A preallocated cache that answers to what transformers' models ask of theirs.

    Its tensors are made and changed in inference mode only.

    Args:
        layers: how many layers write to it.
        most: slots that are enough for any text; None if nobody knows.

    Attributes:
        length: committed slots; slot i holds the token at position i.
        keys, values: [layers, 1, K, slots, D], allocated at the first write.
    """

    # Models ask a cache whether it can be compiled or is sliding; this one is neither.
    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self, layers: int, most: int | None = None) -> None:
        self.length = 0
        self._most = most
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._layers = layers
        self._slots = 0
        self._written = 0

    @torch.inference_mode()
    def reserve(self, slots: int) -> None:
        """Make room for `slots` slots in all, keeping what is committed.

        Where memory runs out, nothing has changed.
        """
        least = -(-slots // GROWTH) * GROWTH
        if self.keys is None or self.values is None:
            # Not more than this: what was wanted before may have been too much for memory.
            self._slots = least
            return
        if slots <= self._slots:
            return
        # At least double, so that growing step by step costs no more than a copy in all.
        wanted, grown = 2 * self._slots, None
        if self._most is not None:
            most = -(-self._most // GROWTH) * GROWTH
            wanted = max(wanted if max(wanted, least) <= PARTLY * most else most, least)
        if wanted > least:
            grown = attempt(self._grow, self.keys, self.values, wanted)
        if grown is None:
            wanted, grown = least, self._grow(self.keys, self.values, least)
        self.keys, self.values = grown
        self._slots = wanted

    def _grow(self, keys: Tensor, values: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        # Both or none: memory may run out in between.
        return self._grown(keys, slots), self._grown(values, slots)

    def _grown(self, old: Tensor, slots: int) -> Tensor:
        shape = (*old.shape[:3], slots, old.shape[4])
        new = torch.zeros(shape, dtype=old.dtype, device=old.device)
        new[:, :, :, : self.length] = old[:, :, :, : self.length]
        return new

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's step behind the committed slots.

        Args:
            key, value: [1, K, T, D].

        Returns:
            The layer's committed and new keys and values, [1, K, length + T, D].
        """
        if self.keys is None or self.values is None:
            self._allocate(key, value)
            return self.update(key, value, layer_idx)
        end = self.length + key.shape[2]
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        self._written = end
        return keys[:, :, :end], values[:, :, :end]

    def _allocate(self, key: Tensor, value: Tensor) -> None:
        self.reserve(self.length + key.shape[2])
        # Zeros, not garbage: a masked NaN would still poison a sum.
        self.keys, self.values = (
            torch.zeros(
                (self._layers, 1, x.shape[1], self._slots, x.shape[3]),
                dtype=x.dtype,
                device=x.device,
            )
            for x in (key, value)
        )

    @torch.inference_mode()
    def keep(self, kept: Sequence[int]) -> None:
        """Commit the tokens of the last step at the indices `kept`, in that order.

        Args:
            kept: ascending indices into the step's T tokens.
        """
        start = self.length
        if self.keys is not None and self.values is not None and kept:
            in_place = next((i for i, index in enumerate(kept) if i != index), len(kept))
            if in_place < len(kept):
                moved = torch.tensor(kept[in_place:], device=self.keys.device) + start
                first, last = start + in_place, start + len(kept)
                self.keys[:, :, :, first:last] = self.keys.index_select(3, moved)
                self.values[:, :, :, first:last] = self.values.index_select(3, moved)
        self.length = start + len(kept)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.length = min(self.length, length)

    def release(self) -> None:
        """Forget everything, and give the memory back."""
        self.length = self._slots = self._written = 0
        self.keys = self.values = None

    # What transformers asks besides.  Masks and positions are ours, so only the length of
    # the committed text has a meaning here.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed tokens."""
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Committed tokens."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Length and offset of the keys that a step of `query_length` tokens sees."""
        return self.length + query_length, 0
