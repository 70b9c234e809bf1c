"""Calls of the Triton kernels, and where they may be called.

They are for GPUs.  What must hold of their inputs is asked at every call, so whoever calls them
keeps another way at hand.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

_WIDEST = 16384
"""Numbers in a row that one program holds."""


class Form(NamedTuple):
    """How a normalisation treats its weight.

    Attributes:
        offset: added to it.
        early: whether the normalised input is rounded before it is multiplied by it.
    """

    offset: float
    early: bool


FORMS = (Form(0.0, True), Form(0.0, False), Form(1.0, False), Form(1.0, True))


def available(device: torch.device) -> bool:
    """Whether there are kernels for tensors on `device`."""
    kernels = _kernels()
    return kernels is not None and (device.type == "cuda" or bool(kernels.INTERPRETED))


def may_rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether `rotate` takes these: [1, heads, T, D] twice, then [1, T, D] twice, of one type."""
    tensors = (query, key, cos, sin)
    return (
        (query.ndim, key.ndim, cos.ndim, sin.ndim) == (4, 4, 3, 3)
        and len(query) == len(key) == len(cos) == len(sin) == 1
        and len({tensor.dtype for tensor in tensors}) == 1
        and len({tensor.shape[-1] for tensor in tensors}) == 1
        and query.shape[-1] % 2 == 0
        and all(tensor.stride(-1) == 1 for tensor in tensors)
        and not _elsewhere()
    )


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of queries and keys, where halves of a head are turned into each
    other.  `may_rotate` must be true.

    Returns:
        [1, heads, T, D] twice, laid out in memory as [T, heads, D].
    """
    _, queries, count, depth = query.shape
    keys, heads = key.shape[1], 4
    outs = [each.new_empty((1, count, each.shape[1], depth)) for each in (query, key)]
    kernels = _kernels()
    assert kernels is not None
    # Triton launches on the current device, which need not be that of this layer.
    with torch.cuda.device(query.get_device()):
        kernels.rotate[count, -(-(queries + keys) // heads)](
            query,
            key,
            cos,
            sin,
            *outs,
            *(query.stride(2), query.stride(1), key.stride(2), key.stride(1)),
            *(cos.stride(1), sin.stride(1)),
            QUERIES=queries,
            KEYS=keys,
            HALF=depth // 2,
            BLOCK=_power(depth // 2),
            HEADS=heads,
        )
    return outs[0].transpose(1, 2), outs[1].transpose(1, 2)


def may_gate(both: Tensor) -> bool:
    """Whether `silu_and_multiply` takes this: anything dense."""
    return both.is_contiguous() and not _elsewhere()


def silu_and_multiply(both: Tensor) -> Tensor:
    """`silu(gate) * up`; `may_gate` must be true.

    Args:
        both: gate and up, one behind the other, [..., 2 * width].

    Returns:
        [..., width].
    """
    width = both.shape[-1] // 2
    out = both.new_empty((*both.shape[:-1], width))
    block = min(1024, _power(width))
    kernels = _kernels()
    assert kernels is not None
    with torch.cuda.device(both.get_device()):
        kernels.silu_and_multiply[out.numel() // width, -(-width // block)](
            both, out, 2 * width, WIDTH=width, BLOCK=block
        )
    return out


def may_normalise(x: Tensor) -> bool:
    """Whether `normalise` takes this: rows of one text, [1, T, width] or [1, a, b, width]."""
    return (
        x.ndim in (3, 4)
        and len(x) == 1
        and x.stride(-1) == 1
        and x.shape[-1] <= _WIDEST
        and not _elsewhere()
    )


def normalise(x: Tensor, weight: Tensor, eps: float, form: Form) -> Tensor:
    """`x / rms(x) * (offset + weight)` over the last dimension; `may_normalise` must be true."""
    out = torch.empty_like(x, memory_format=torch.preserve_format)
    source, target = (each if each.ndim == 4 else each[:, :, None] for each in (x, out))
    _, outer, inner, width = source.shape
    kernels = _kernels()
    assert kernels is not None
    with torch.cuda.device(x.get_device()):
        kernels.normalise[outer * inner,](
            x,
            weight,
            out,
            inner,
            *source.stride()[1:3],
            *target.stride()[1:3],
            eps,
            WIDTH=width,
            BLOCK=_power(width),
            OFFSET=form.offset,
            EARLY=form.early,
            num_warps=min(16, max(1, _power(width) // 256)),
        )
    return out


def _elsewhere() -> bool:
    """Whether operations are only being recorded: a trace knows no kernels of ours."""
    return torch.compiler.is_compiling()


def _power(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _kernels() -> ModuleType | None:
    try:
        from . import kernels
    except ImportError:
        return None
    return kernels
