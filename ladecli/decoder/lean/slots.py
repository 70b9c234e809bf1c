"""Slots of a cache, written and moved in one launch each.

The kernels read on the device where slots are, as steps of fixed shapes have it.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..memory import attempt
from . import fused
from .fused import Room
from .trial import numbers, passed

DEVICES = ("cuda",)
"""Types of devices for which there is something to gain."""


def work(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `write` and `move` do what they should, in a trial at the first call; where memory
    does not suffice for it they do not, and the next call tries again.

    Args:
        device: of the cache.
        dtype: of its numbers.
    """
    return (
        device.type in DEVICES and fused.available(device) and bool(attempt(_work, device, dtype))
    )


@lru_cache(maxsize=16)
def _work(device: torch.device, dtype: torch.dtype) -> bool:
    """The same where there are kernels.

    Raises:
        RuntimeError, MemoryError: out of memory.
        DeviceLostError: nothing can be computed any more.
    """

    def trial() -> bool:
        found, expected = (_trial(device, dtype, kernels) for kernels in (True, False))
        return all(map(torch.equal, found, expected))

    return passed(device, trial)


def _trial(device: torch.device, dtype: torch.dtype, kernels: bool) -> tuple[Tensor, Tensor]:
    """A small cache in which three of nine slots were moved, and two behind them written."""
    keys, values = numbers(torch.empty(0, dtype=dtype, device=device), 2, 2, 1, 3, 9, 8)
    key, value = numbers(keys, 2, 1, 2, 3, 8).transpose(2, 3)
    length = torch.full((1,), 5, dtype=torch.int32, device=device)
    sources = torch.tensor([3, 4, 6, 0], dtype=torch.int32, device=device)
    targets = torch.tensor([2, 3, 4, 0], dtype=torch.int32, device=device)
    room = Room(keys[1], values[1], length)
    if kernels:
        move(keys, values, sources, targets)
        write(key, value, room)
        return keys, values
    for tensor, new in ((keys, key), (values, value)):
        tensor.index_copy_(3, targets.long(), tensor.index_select(3, sources))
        tensor[1, :, :, 5:7] = new
    return keys, values


def may_move(keys: Tensor, values: Tensor) -> bool:
    """Whether `move` takes these: dense, of one shape and type."""
    return (
        keys.shape == values.shape
        and keys.dtype == values.dtype
        and keys.is_contiguous()
        and values.is_contiguous()
        and not fused.off()
    )


def move(keys: Tensor, values: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy slots over others, all at once; `may_move` must be true.

    Args:
        keys, values: [layers, 1, K, slots, D].
        sources, targets: int32 [n], where n is a power of two; those that are equal stay.
    """
    layers, _, heads, count, depth = keys.shape
    fused.launch(
        "move",
        (layers * heads,),
        keys,
        values,
        sources,
        targets,
        count * depth,
        DEPTH=depth,
        BLOCK=fused.power(depth),
        MOVED=len(sources),
    )


def may_write(key: Tensor, value: Tensor, room: Room) -> bool:
    """Whether `write` takes these: [1, K, T, D] both, and room for as many heads of that size."""
    return (
        key.ndim == 4
        and len(key) == 1
        and key.shape == value.shape
        and all(each.stride(-1) == 1 for each in (key, value))
        and _fits(room, key)
        and not fused.off()
    )


def write(key: Tensor, value: Tensor, room: Room) -> None:
    """Copy keys and values into their slots; `may_write` must be true."""
    _, heads, count, depth = key.shape
    fused.launch(
        "write",
        (count, heads),
        key,
        value,
        *room,
        *(key.stride(2), key.stride(1), value.stride(2), value.stride(1)),
        *(*room.keys.stride()[1:3], *room.values.stride()[1:3]),
        DEPTH=depth,
        BLOCK=fused.power(depth),
        num_warps=1,
    )


def values_behind(key: Tensor, room: Room) -> Tensor | None:
    """Where values are if they lie behind the keys, as in the output of one product for both.

    Args:
        key: [1, K, T, D].
        room: where both are to go.

    Returns:
        What lies there, of the shape of `key`; None if there is nothing, or if it cannot go there.
    """
    _, heads, count, depth = key.shape
    start = key.storage_offset() + heads * depth
    end = start + (count - 1) * key.stride(2) + heads * depth
    apart = count == 1 or key.stride(2) >= 2 * heads * depth
    dense = key.stride(3) == 1 and (heads == 1 or key.stride(1) == depth)
    room_behind = end * key.element_size() <= key.untyped_storage().nbytes()
    if not (apart and dense and room_behind and _fits(room, key)):
        return None
    return key.as_strided(key.shape, (0, depth, key.stride(2), 1), start)


def _fits(room: Room, key: Tensor) -> bool:
    """Whether keys like these, and values, can go where there is room."""
    return all(
        (each.shape[1], each.shape[3], each.dtype) == (key.shape[1], key.shape[3], key.dtype)
        and each.stride(-1) == 1
        and each.device == key.device
        for each in room[:2]
    )


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same numbers at the same addresses."""
    # Strides of what there is only one of say nothing.
    return (
        (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        and a.data_ptr() == b.data_ptr()
        and all(
            size == 1 or one == other
            for size, one, other in zip(a.shape, a.stride(), b.stride(), strict=True)
        )
    )
