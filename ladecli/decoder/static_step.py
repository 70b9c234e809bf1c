"""A step of fixed shapes, whose every number lies in one buffer on the device.

What a captured step computes is fixed for good: addresses, shapes, and all that Python decided
on the way.  So tokens, positions, visibility and even the length of the text are read from a
buffer, which the host fills anew for every step and sends in one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from .attention.step import WORD, Parts, StepAttention
from .kv_cache import KVCache, Moves
from .layout import StepLayout

MOVED = 16
"""Slots that a step can move to the front on its way; more are moved before it."""


class StepInputs:
    """The inputs of a step of `width` tokens, on the host and on the device.

    One buffer of 32-bit words holds, in this order: a uniform number for each token (two words),
    the length of the text, sources and targets of what is to be moved, tokens, positions, and the
    rows of visibility as bits.

    Args:
        width: T, tokens of the step.
        device: of the model.

    Attributes:
        width: as above.
        uniforms: float64 [T].
        length: int32 [1], cached tokens before the step.
        sources, targets: int32 [MOVED], slots; those that need not move are their own targets.
        tokens, positions: int32 [T].
        bits: int32 [T, ceil(T / 32)], as `StepAttention.bits` has it.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self._words = -(-width // WORD)
        sizes = [2 * width, 1, MOVED, MOVED, width, width, width * self._words]
        # Pinned, so that the copy needs no detour on the host.
        pinned = device.type == "cuda"
        self._host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pinned)
        # Made in inference mode, like everything that is computed from it.
        with torch.inference_mode():
            self._device = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
            parts = torch.split(self._device, sizes)
            self.uniforms = parts[0].view(torch.float64)
            self.length, self.sources, self.targets = parts[1:4]
            self.tokens, self.positions = parts[4:6]
            self.bits = parts[6].view(width, self._words)
        held = np.split(self._host.numpy(), np.cumsum(sizes)[:-1])
        self._uniforms = held[0].view(np.float64)
        self._length, self._sources, self._targets, self._tokens, self._positions = held[1:6]
        self._bits = held[6].reshape(width, self._words)
        # What padding says: every token sees itself.
        self._alone = np.zeros((width, self._words), dtype=np.uint32)
        for row in range(width):
            self._alone[row, row // WORD] = 1 << (row % WORD)
        self._alone = self._alone.view(np.int32)

    def fill(
        self, step: StepLayout, length: int, moves: Moves | None, uniforms: Sequence[float]
    ) -> None:
        """Write a step to the host's buffer, padded to the width.

        Args:
            step: at most `width` tokens.
            length: cached tokens before it.
            moves: at most `MOVED`.
            uniforms: one for each of the step's outputs, or none.
        """
        count = len(step.tokens)
        self._uniforms[: len(uniforms)] = uniforms
        self._length[0] = length
        # Slot 0 to slot 0: nothing changes, and every step moves as many.
        self._sources[:] = self._targets[:] = 0
        if moves is not None:
            number = len(moves.slots)
            self._sources[:number] = moves.slots
            self._targets[:number] = range(moves.start, moves.start + number)
        self._tokens[:count] = step.tokens
        self._positions[:count] = step.positions
        self._tokens[count:] = step.tokens[-1]
        # A position that the step has in any case: models may look at the largest.
        self._positions[count:] = step.positions[0]
        self._bits[:] = self._alone
        self._bits[:count, : step.bits.shape[1]] = step.bits

    def send(self) -> None:
        """Copy it to the device, in one go; on a GPU without waiting."""
        self._device.copy_(self._host, non_blocking=True)


class StaticCache:
    """A cache as a step of fixed shapes sees it: slots are where the device says.

    It answers to what transformers' models ask of their caches.

    Args:
        cache: all of its layers on one device, and written before.
        inputs: say how long the text is.
        reach: slots that are handed to attention: at least those of text and step.
    """

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self, cache: KVCache, inputs: StepInputs, reach: int) -> None:
        tensors = cache.tensors
        if tensors is None:
            raise RuntimeError("a cache of fixed shape must be there before it is used")
        self._keys, self._values = tensors
        self._reach = reach
        self._inputs = inputs
        steps = torch.arange(inputs.width, device=inputs.length.device)
        self._slots = inputs.length.long() + steps
        self.own: tuple[Tensor, Tensor] | None = None

    def move(self) -> None:
        """Move what the last step left to be moved, over all layers."""
        sources, targets = self._inputs.sources.long(), self._inputs.targets.long()
        for tensor in (self._keys, self._values):
            tensor.index_copy_(3, targets, tensor.index_select(3, sources))

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's step behind the text; return all slots within reach.

        Args:
            key, value: [1, K, T, D].

        Returns:
            [1, K, reach, D] each.
        """
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.index_copy_(2, self._slots, key)
        values.index_copy_(2, self._slots, value)
        self.own = key, value
        return keys[:, :, : self._reach], values[:, :, : self._reach]

    # Nobody here knows the length of the text.  Positions and masks are ours, so that no model
    # has to ask for it; one that does would be found out by the trial of its first capture.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots within reach."""
        return self._reach

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Slots within reach."""
        return self._reach

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Length and offset of the keys that a step sees."""
        return self._reach, 0


class StaticStep(StepAttention):
    """Visibility of a step of fixed shapes; S is the reach of the cache.

    Args:
        backend: computes the attention.
        inputs: of the step.
        cache: where its layers write.
        reach: slots that the cache hands out.
    """

    def __init__(
        self, backend: Callable[..., Tensor], inputs: StepInputs, cache: StaticCache, reach: int
    ) -> None:
        shifts = torch.arange(inputs.width, device=inputs.bits.device)
        words = inputs.bits.index_select(1, shifts // WORD)
        self._seen = ((words >> (shifts % WORD)) & 1).bool()
        # No position is beyond the last slot, so a window that wide hides nothing.
        super().__init__(backend, self._seen, inputs.positions.long(), 0, reach - 1)
        self._inputs = inputs
        self._cache = cache
        self._reach = reach

    @property
    def prefix(self) -> None:
        """Only the device knows."""
        return None

    @property
    def length(self) -> Tensor:
        """Cached tokens, int32 [1] on the device."""
        return self._inputs.length

    @property
    def bits(self) -> Tensor:
        """As the host sent them."""
        return self._inputs.bits

    def split(self, key: Tensor, value: Tensor) -> Parts:
        """All slots, of which the first `length` count; and what the layer has just written."""
        if self._cache.own is None:
            raise RuntimeError("attention before the layer has written its keys")
        return Parts(key, value, *self._cache.own)

    def _make(self, sliding_window: int | None) -> Tensor:
        """Bool [T, reach]: slots of the text, and those of the step as far as it sees itself."""
        count = len(self.positions)
        slots = torch.arange(self._reach, device=self.positions.device)
        own = slots - self.length
        cached = own < 0
        index = own.clamp(0, count - 1)
        of_step = (own >= 0) & (own < count)
        mask: Tensor = cached | (self._seen.index_select(1, index) & of_step)
        if sliding_window is not None:
            keys = torch.where(cached, slots, self.positions.index_select(0, index))
            mask &= keys > self.positions[:, None] - sliding_window
        return mask
