"""A step of fixed shapes, whose every number lies in one buffer on the device.

What a captured step computes is fixed for good: addresses, shapes, and all that Python decided
on the way.  So tokens, positions, visibility and even the length of the text are read from a
buffer, which the host fills anew for every step and sends in one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

import torch
from torch import Tensor

from . import bits
from .attention.step import WORD, Parts, StepAttention
from .kv_cache import KVCache, Moves
from .layout import StepLayout
from .lean import fused, slots
from .lean.fused import Room
from .readout.penalty import JOINED

MOVED = 16
"""Slots that a step can move to the front on its way; more are moved before it."""


class StepInputs:
    """The inputs of a step of `width` tokens, on the host and on the device.

    One buffer of 32-bit words holds, in this order: a uniform number for each token (two words),
    the length of the text, sources and targets of what is to be moved, what joined the text,
    tokens, positions, and the rows of visibility as bits.

    Args:
        width: T, tokens of the step.
        device: of the model.

    Attributes:
        width: as above.
        uniforms: float64 [T].
        length: int32 [1], cached tokens before the step.
        sources, targets: int32 [MOVED], slots; those that need not move are their own targets.
        joined: int32 [JOINED], tokens of the text that a repetition penalty may not know yet.
        tokens, positions: int32 [T].
        bits: int32 [T, ceil(T / 32)], as `StepAttention.bits` has it.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self._words = -(-width // WORD)
        sizes = [2 * width, 1, MOVED, MOVED, JOINED, width, width, width * self._words]
        # Pinned, so that the copy needs no detour on the host.
        pinned = device.type == "cuda"
        self._host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pinned)
        # Made in inference mode, like everything that is computed from it.
        with torch.inference_mode():
            self._device = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
            parts = torch.split(self._device, sizes)
            self.uniforms = parts[0].view(torch.float64)
            self.length, self.sources, self.targets, self.joined = parts[1:5]
            self.tokens, self.positions = parts[5:7]
            self.bits = parts[7].view(width, self._words)
        # The same buffer as Python has it: written in one call, because a GPU waits for that.
        self._written = self._host.numpy().data.cast("B")
        seen = 4 * width * self._words
        self._form = Struct(f"={width}d1i{MOVED}i{MOVED}i{JOINED}i{width}i{width}i{seen}s")
        # What padding says: slot 0 moves to slot 0, and a token sees itself.
        self._still = (0,) * MOVED
        self._undrawn = (0.0,) * width
        self._alone = bits.packed([1 << row for row in range(width)], self._words)

    def fill(
        self,
        step: StepLayout,
        length: int,
        moves: Moves | None,
        uniforms: Sequence[float],
        joined: Sequence[int] = (),
    ) -> None:
        """Write a step to the host's buffer, padded to the width.

        Args:
            step: at most `width` tokens.
            length: cached tokens before it.
            moves: at most `MOVED`.
            uniforms: those of the step's first tokens; see `Wanted`.
            joined: at most `JOINED`.
        """
        tokens, positions = step.tokens, step.positions
        padding = self.width - len(tokens)
        sources, targets = self._still, self._still
        if moves is not None:
            # Every step moves as many slots: the rest of them is slot 0, to where it is.
            number = len(moves.slots)
            sources = *moves.slots, *self._still[number:]
            targets = *range(moves.start, moves.start + number), *self._still[number:]
        self._form.pack_into(
            self._written,
            0,
            *uniforms,
            *self._undrawn[len(uniforms) :],
            length,
            *sources,
            *targets,
            *joined,
            # The first token is one of the text in any case.
            *tokens[:1] * (JOINED - len(joined)),
            *tokens,
            *tokens[-1:] * padding,
            *positions,
            # A position that the step has in any case: models may look at the largest.
            *positions[:1] * padding,
            bits.packed(step.rows, self._words) + self._alone[4 * len(tokens) * self._words :],
        )

    def send(self) -> None:
        """Copy it to the device, in one go; on a GPU without waiting."""
        self._device.copy_(self._host, non_blocking=True)

    def visible(self) -> Tensor:
        """Which token (row) sees which token of the step (column), bool [T, T]."""
        shifts = torch.arange(self.width, device=self.bits.device)
        words = self.bits.index_select(1, shifts // WORD)
        return ((words >> (shifts % WORD)) & 1).bool()

    def paths(self) -> Tensor:
        """The tokens that each token sees, int64 [T, T]: itself wherever it sees none."""
        return torch.where(self.visible(), self.tokens, self.tokens[:, None]).long()


class StaticCache:
    """A cache as a step of fixed shapes sees it: slots are where the device says.

    It answers to what transformers' models ask of their caches.

    Args:
        cache: all of its layers on one device, and written before.
        inputs: say how long the text is.
        reach: slots that are handed to attention: at least those of text and step.

    Attributes:
        own: keys and values of the last layer that was written, [1, K, T, D] each.
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
        self._slots: Tensor | None = None
        # Where kernels are doubted they are not even tried.
        off = fused.off()
        self._kernels = not off and slots.work(self._keys.device, self._keys.dtype)
        self._wrote: tuple[int, Tensor, Tensor] | None = None
        self.own: tuple[Tensor, Tensor] | None = None

    def move(self) -> None:
        """Move what the last step left to be moved, over all layers."""
        sources, targets = self._inputs.sources, self._inputs.targets
        if self._kernels and slots.may_move(self._keys, self._values):
            slots.move(self._keys, self._values, sources, targets)
            return
        targets = targets.long()
        for tensor in (self._keys, self._values):
            tensor.index_copy_(3, targets, tensor.index_select(3, sources))

    def room(self, layer_idx: int) -> Room:
        """Where one layer's step goes, for those who write it there themselves."""
        return Room(self._keys[layer_idx], self._values[layer_idx], self._inputs.length)

    def wrote(self, layer_idx: int, key: Tensor, value: Tensor) -> None:
        """What may be this layer's step is in its slots already.

        Args:
            key, value: [1, K, T, D].
        """
        self._wrote = layer_idx, key, value

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's step behind the text; return all slots within reach.

        Args:
            key, value: [1, K, T, D].

        Returns:
            [1, K, reach, D] each.

        Raises:
            RuntimeError: the step is in the slots of another layer, which are spoiled.
        """
        if self._wrote is not None and self._wrote[0] != layer_idx:
            raise RuntimeError("a layer's keys went to another layer's slots")
        room = self.room(layer_idx)
        if not self._is_there(key, value):
            self._write(key, value, room)
        self.own = key, value
        return room.keys[:, :, : self._reach], room.values[:, :, : self._reach]

    def _is_there(self, key: Tensor, value: Tensor) -> bool:
        wrote, self._wrote = self._wrote, None
        return wrote is not None and wrote[1] is key and slots.same(wrote[2], value)

    def _write(self, key: Tensor, value: Tensor, room: Room) -> None:
        if self._kernels and slots.may_write(key, value, room):
            slots.write(key, value, room)
            return
        if self._slots is None:
            steps = torch.arange(self._inputs.width, device=room.length.device)
            self._slots = room.length.long() + steps
        room.keys.index_copy_(2, self._slots, key)
        room.values.index_copy_(2, self._slots, value)

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
        # No position is beyond the last slot, so a window that wide hides nothing.
        super().__init__(backend, None, inputs.positions.long(), 0, reach - 1)
        self._inputs = inputs
        self._cache = cache
        self._reach = reach

    @property
    def visible(self) -> Tensor:
        """See `StepAttention`; made when a backend asks, which one that reads `bits` never does."""
        if self._visible is None:
            self._visible = self._inputs.visible()
        return self._visible

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
        mask: Tensor = cached | (self.visible.index_select(1, index) & of_step)
        if sliding_window is not None:
            keys = torch.where(cached, slots, self.positions.index_select(0, index))
            mask &= keys > self.positions[:, None] - sliding_window
        return mask
