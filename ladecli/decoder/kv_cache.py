"""Keys and values of the committed text by slot: one tensor over all layers of a device.

A step writes after the committed tokens; `keep` gathers the accepted ones to the front of what
was written and forgets the rest.  Slots from `length` on hold nothing that is read, so a step
that is broken off at any point leaves the cache valid.
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
"""Pages of this process alone; Windows has no other."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of what one layer writes per token."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    device: torch.device


class Target(NamedTuple):
    """The place where a kernel writes one layer's step itself.

    These are all slots of the layer, [heads, slots, size]; the first slot to write, on the host or
    as int32 [1] on the device; and the end of what is attended to then.
    """

    keys: Tensor
    values: Tensor
    start: int | Tensor
    end: int


class StepCache(Protocol):
    """The cache as a step sees it: its keys and values go there."""

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's step, [heads, T, size] each; return all slots to attend to."""

    def target(self, index: int, count: int) -> Target:
        """Return where a step of `count` tokens goes, for a kernel that writes it there itself."""


class KVCache:
    """A preallocated cache that grows with the text.

    Keys and values of one size share a tensor [rows, heads, slots, size], two rows for each layer;
    where their sizes differ (latent attention), each have one of their own.  Tensors are made in
    inference mode.

    Args:
        shapes: of all layers, in order.
        max_slots: slots that any text and step need at most.
        first_slots: allocated at once, as far as `max_slots` allows.

    Attributes:
        length: committed slots; slot i holds the token at position i.
        slots: allocated ones.
        tensors: one per shape of a row; none before `reserve`.
        turned: the length of the text whose rotary frequencies turned the keys, if it is beyond
            the boundary of the model's; later keys have those of their own length.  Else 0.
        allocation: changes whenever tensors are allocated anew, and with them their addresses.
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
        # By heads, size, type and device: layers, with 0 for their keys or 1 for their values.
        self._rows: dict[tuple[int, int, torch.dtype, torch.device], list[tuple[int, int]]] = {}
        for layer, shape in enumerate(shapes):
            for part, size in enumerate((shape.key_size, shape.value_size)):
                kind = shape.heads, size, shape.dtype, shape.device
                self._rows.setdefault(kind, []).append((layer, part))
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """All slots of one layer: keys and values, [heads, slots, size] each."""
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
        """Return where a step of `count` tokens goes, for a kernel that writes it there itself."""
        return Target(*self._layers[index], self.length, self.length + count)

    def reserve(self, slots: int) -> None:
        """Make room for `slots` slots in all, keeping what is committed.

        Where memory runs out, nothing has changed.
        """
        if slots > self.slots:
            self._reserve(slots)

    @torch.no_grad()
    def _reserve(self, slots: int) -> None:
        least, limit = _whole(slots), _whole(self._max_slots)
        # At least double, so that growing costs no more than one copy in all.
        wanted = max(2 * self.slots, least, self._first_slots)
        # Old and new tensors exist together while growing: the last step is a large one.
        wanted = max(wanted if wanted <= NEARLY_ALL * limit else limit, least)
        grown = attempt(self._grown, wanted) if wanted > least else None
        if grown is None:
            wanted, grown = least, self._grown(least)
        parts: dict[tuple[int, int], Tensor] = {}
        for tensor, rows in zip(grown, self._rows.values(), strict=True):
            parts.update(zip(rows, tensor, strict=True))
        layers = {layer: (parts[layer, 0], parts[layer, 1]) for layer, _ in parts}
        self.allocation += 1
        # At once: Ctrl-C can land between any two lines.
        self.tensors, self.slots, self._layers = grown, wanted, layers

    def _grown(self, slots: int) -> list[Tensor]:
        made: list[Tensor] = []
        for number, ((heads, size, dtype, device), rows) in enumerate(self._rows.items()):
            # Zeros: a masked NaN would still poison a sum.
            new = _zeros((len(rows), heads, slots, size), dtype, device)
            if self.tensors:
                new[..., : self.length, :] = self.tensors[number][..., : self.length, :]
            made.append(new)
        return made

    def keep(self, kept: Sequence[int]) -> int:
        """Commit the tokens of the last step at some indices, ascending.

        Returns:
            The new length; less than asked for where a model's own cache is put back.
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
        """Bring slots to those from `first` on: one gather over all layers of a kind."""
        for tensor in self.tensors:
            sources = to_device(slots, tensor.device)
            tensor[..., first : first + len(slots), :] = tensor.index_select(2, sources)

    @torch.inference_mode()
    def wipe(self, count: int) -> None:
        """Make zeros of the next `count` slots, which a step has written to: a masked NaN spreads
        where steps read slots that are not committed."""
        for tensor in self.tensors:
            tensor[..., self.length : self.length + count, :].zero_()

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.length = min(self.length, length)

    def release(self) -> None:
        """Forget everything and give the memory back."""
        self.length = self.slots = 0
        self.allocation += 1
        self.tensors = []
        self._layers.clear()


def to_device(numbers: Sequence[Any] | NDArray[Any], device: torch.device) -> Tensor:
    """Return a tensor of numbers of the host.

    What is launched later finds it there; the host does not wait for what was launched before,
    as it does in `torch.tensor` with a device.
    """
    tensor = torch.as_tensor(numbers)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    # On Apple's GPUs it would read memory that may be gone by then.
    return tensor.to(device, non_blocking=device.type != "mps")


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU in pages of their own, which take no memory before they are written to, and
    go back to the system with the tensor."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    try:
        pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, **_PRIVATE)
    except (OSError, OverflowError) as error:
        raise MemoryError(*error.args) from error
    storage = torch.asarray(pages, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)


def _whole(slots: int) -> int:
    return -(-slots // GROWTH) * GROWTH
