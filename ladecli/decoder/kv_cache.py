"""The keys and values of the committed text: one slot for each token.

A step writes to the slots after the committed ones; `keep` moves the accepted tokens to the first
of these slots and forgets the rest.  Nothing reads slots from `length` on, so a step that is
interrupted at any point leaves the cache valid.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from .config import GROWTH, NEARLY_ALL
from .faults import attempt

_PRIVATE: dict[str, Any] = {"flags": mmap.MAP_PRIVATE} if sys.platform != "win32" else {}
"""Do not share memory with child processes; Windows never does."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of what one layer writes per token."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    device: torch.device


class Target(NamedTuple):
    """The slots of a layer, for a kernel that writes the step's keys and values itself."""

    keys: Tensor  # [heads, slots, size], all slots, as `values`
    values: Tensor
    start: int | Tensor  # the first slot to write; as int32 [1] if only the device knows it
    end: int  # the end of the slots to attend to


class StepCache(Protocol):
    """The cache as a step sees it."""

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's step, [heads, T, size] each; return all slots to attend to."""

    def target(self, index: int, count: int) -> Target:
        """Return the slots of a layer, for a kernel that writes a step of `count` tokens itself."""


class KVCache:
    """A preallocated cache that grows with the text.

    Keys and values of the same shape share a tensor [rows, heads, slots, size].  A row is the keys
    or the values of one layer; in most models all rows have one shape.

    Args:
        shapes: the shapes of all layers, in order.
        max_slots: the most slots that any text and step need.
        first_slots: the slots that the first allocation has, if `max_slots` allows.

    Attributes:
        length: the number of committed slots; slot i holds the token at position i.
        slots: the number of allocated slots.
        tensors: one for each shape of a row; none before `reserve`.
        turned: 0, or the length of a text beyond the model's rotary boundary by whose rotary
            frequencies the keys were turned when it was read; later keys have those of their own
            length.
        allocation: a number that changes when tensors are allocated anew, at other addresses.
    """

    def __init__(
        self, shapes: Sequence[LayerShape], max_slots: int = sys.maxsize, first_slots: int = 0
    ) -> None:
        self.length = 0
        self.turned = 0
        self.allocation = 0
        self._max_slots = max_slots
        self._first_slots = first_slots
        self.slots = 0
        self.tensors: list[Tensor] = []
        # The rows of each tensor by its heads, size, type and device: a layer, and 0 for its keys
        # or 1 for its values.
        self._rows: dict[tuple[int, int, torch.dtype, torch.device], list[tuple[int, int]]] = {}
        for layer, shape in enumerate(shapes):
            for part, size in enumerate((shape.key_size, shape.value_size)):
                key = shape.heads, size, shape.dtype, shape.device
                self._rows.setdefault(key, []).append((layer, part))
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of one layer, [heads, slots, size] each."""
        return self._layers[index]

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's step, [heads, T, size] each, after the committed slots.

        Returns:
            The layer's committed and new keys and values, [heads, length + T, size] each.
        """
        all_keys, all_values = self._layers[index]
        start, end = self.length, self.length + keys.shape[1]
        all_keys[:, start:end] = keys
        all_values[:, start:end] = values
        return all_keys[:, :end], all_values[:, :end]

    def target(self, index: int, count: int) -> Target:
        """See `StepCache`."""
        return Target(*self._layers[index], self.length, self.length + count)

    def reserve(self, slots: int) -> None:
        """Make room for `slots` slots in all and keep what is committed.

        If memory runs out, nothing has changed.
        """
        if slots <= self.slots:
            return
        least, limit = _rounded_up(slots), _rounded_up(self._max_slots)
        # At least double, so that all growing together costs no more than one copy.
        count = max(2 * self.slots, least, self._first_slots)
        # The last growth is a large one: see `NEARLY_ALL`.
        count = max(count if count <= NEARLY_ALL * limit else limit, least)
        if count == least or attempt(self._allocate, count) is None:
            self._allocate(least)

    @torch.no_grad()
    def _allocate(self, slots: int) -> int:
        """Replace the tensors by larger ones with the committed keys and values; return `slots`."""
        tensors: list[Tensor] = []
        parts: dict[tuple[int, int], Tensor] = {}
        for index, ((heads, size, dtype, device), rows) in enumerate(self._rows.items()):
            # Zeros, because attention multiplies even what is masked, and 0 times NaN is NaN.
            tensor = _zeros((len(rows), heads, slots, size), dtype, device)
            if self.tensors:
                tensor[..., : self.length, :] = self.tensors[index][..., : self.length, :]
            tensors.append(tensor)
            parts.update(zip(rows, tensor, strict=True))
        layers = {layer: (parts[layer, 0], parts[layer, 1]) for layer, _ in parts}
        self.allocation += 1
        # In one line, since Ctrl-C may come between any two.
        self.tensors, self.slots, self._layers = tensors, slots, layers
        return slots

    def keep(self, kept: Sequence[int]) -> int:
        """Commit the tokens of the last step at some indices, ascending.

        Returns:
            The new length; `transformers_cache` may keep less than it is asked for.
        """
        start, in_place = self.length, 0
        while in_place < len(kept) and kept[in_place] == in_place:
            in_place += 1
        if moved := [start + index for index in kept[in_place:]]:
            self._move(moved, start + in_place)
        self.length = start + len(kept)
        return self.length

    @torch.inference_mode()
    def _move(self, slots: Sequence[int], first: int) -> None:
        """Copy some slots to those from `first` on, by one gather for each tensor."""
        for tensor in self.tensors:
            sources = to_device(slots, tensor.device)
            tensor[..., first : first + len(slots), :] = tensor.index_select(2, sources)

    @torch.inference_mode()
    def wipe(self, count: int) -> None:
        """Overwrite the next `count` slots with zeros: a step may have left NaNs there, which would
        spread from masked slots, too."""
        for tensor in self.tensors:
            tensor[..., self.length : self.length + count, :].zero_()

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.length = min(self.length, length)

    @torch.inference_mode()
    def save(self) -> list[Tensor]:
        """Return copies of what is committed, in host memory, for `restore`."""
        return [tensor[..., : self.length, :].to("cpu", copy=True) for tensor in self.tensors]

    @torch.inference_mode()
    def restore(self, saved: Sequence[Tensor], length: int) -> int:
        """Commit the first `length` tokens of a text that was saved, or fewer; return how many."""
        self.reserve(length)
        for tensor, copy in zip(self.tensors, saved, strict=True):
            tensor[..., :length, :] = copy[..., :length, :]
        self.length = length
        return length

    def release(self) -> None:
        """Forget everything and free the memory."""
        self.length = self.slots = 0
        self.allocation += 1
        self.tensors = []
        self._layers.clear()


def to_device(numbers: Sequence[Any] | NDArray[Any], device: torch.device) -> Tensor:
    """Copy numbers to a device, without waiting for what was launched there before, as
    `torch.tensor` would."""
    tensor = torch.as_tensor(numbers)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    # On Apple's GPUs such a copy may read memory that was freed meanwhile.
    return tensor.to(device, non_blocking=device.type != "mps")


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros; on a CPU in pages of their own, which take no memory before they are written
    to, and go back to the system with the tensor."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    try:
        pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, **_PRIVATE)
    except (OSError, OverflowError) as error:
        raise MemoryError(*error.args) from error
    storage = torch.asarray(pages, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)


def _rounded_up(slots: int) -> int:
    return -(-slots // GROWTH) * GROWTH
