"""Calls of the kernel that turns queries and keys, as rotary position embedding has it.

On its way it normalises them, if that is wanted, and writes keys and values to a cache.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, float32

from . import fused
from .fused import Room, Weighing

_HEADS = 4
"""Heads that one program turns."""


class Turning(NamedTuple):
    """How numbers of a head are turned into each other.

    Attributes:
        neighbours: whether a pair are two neighbours, and not the same place in either half.
        shared: whether both of a pair have the angle of the first half that is theirs, and not each
            number its own.
        rounded: whether products are rounded before they are added.
    """

    neighbours: bool
    shared: bool
    rounded: bool


TURNINGS = (
    # Llama and most others.
    Turning(neighbours=False, shared=False, rounded=True),
    Turning(neighbours=False, shared=False, rounded=False),
    # GLM, and Ernie 4.5.
    Turning(neighbours=True, shared=True, rounded=True),
    Turning(neighbours=True, shared=True, rounded=False),
    # Cohere, the second.
    Turning(neighbours=True, shared=False, rounded=True),
    Turning(neighbours=True, shared=False, rounded=False),
)


def may_rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether `rotate` takes these: [1, heads, T, D] twice, of one type, then [1, T, R] twice, of
    the same or in float32; R may be less than D, and both are even.  T is the same in all."""
    tensors = (query, key, cos, sin)
    return (
        (query.ndim, key.ndim, cos.ndim, sin.ndim) == (4, 4, 3, 3)
        and len(query) == len(key) == len(cos) == len(sin) == 1
        and query.shape[2] == key.shape[2] == cos.shape[1] == sin.shape[1]
        and query.dtype == key.dtype
        and cos.dtype == sin.dtype
        and cos.dtype in (query.dtype, float32)
        and query.shape[-1] == key.shape[-1] >= cos.shape[-1] == sin.shape[-1]
        and query.shape[-1] % 2 == cos.shape[-1] % 2 == 0
        and all(tensor.stride(-1) == 1 for tensor in tensors)
        and not fused.off()
    )


def rotate(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    turning: Turning = TURNINGS[0],
    *,
    norms: tuple[Weighing, Weighing] | None = None,
    room: Room | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of queries and keys; `may_rotate` must be true.

    Args:
        query, key: [1, heads, T, D].
        cos, sin: [1, T, R]; what is behind the first R numbers of a head stays.  Where they are of
            another type than queries, nothing is rounded but the result.
        turning: what is turned into what.
        norms: of each head of queries, and of keys, before they are turned; alike in all but their
            weights, which are [D].  None for none.
        room: where turned keys are copied to as well, and `values_behind` of `key`, which must be
            there; None for nowhere.

    Returns:
        [1, heads, T, D] twice, laid out in memory as [T, heads, D].
    """
    _, queries, count, depth = query.shape
    keys = key.shape[1]
    outs = [each.new_empty((1, count, each.shape[1], depth)) for each in (query, key)]
    # Nobody looks at these where nothing is copied, and at weights where nothing is normalised.
    places = room or Room(key, key, key)
    own, other = norms or (Weighing(cos, 0.0, fused.FORMS[0]),) * 2
    programs = queries + (keys if room is None else 2 * keys)
    fused.launch(
        "rotate",
        (count, -(-programs // _HEADS)),
        query,
        key,
        cos,
        sin,
        own.weight,
        other.weight,
        *outs,
        *places,
        own.eps,
        *(query.stride(2), query.stride(1), key.stride(2)),
        # Of a single head torch may say any stride, and values lie a head behind it.
        depth if room is not None else key.stride(1),
        *(cos.stride(1), sin.stride(1)),
        *(*places.keys.stride()[1:3], *places.values.stride()[1:3]),
        QUERIES=queries,
        KEYS=keys,
        HALF=depth // 2,
        TURNED=cos.shape[-1] // 2,
        BLOCK=fused.power(depth // 2),
        HEADS=_HEADS,
        NEIGHBOURS=turning.neighbours,
        SHARED=turning.shared,
        ROUNDED=turning.rounded and cos.dtype == query.dtype,
        NORMED=norms is not None,
        OFFSET=own.form.offset,
        EARLY=own.form.early,
        WRITE=room is not None,
    )
    return outs[0].transpose(1, 2), outs[1].transpose(1, 2)
