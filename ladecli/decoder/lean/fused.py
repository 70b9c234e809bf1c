"""Calls of the Triton kernels, and where they may be called.

They are for GPUs.  What must hold of their inputs is asked at every call, so whoever calls them
keeps another way at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

_WIDEST = 16384
"""Numbers in a row that one program holds."""
_FUSION = False
"""Products are rounded before they are added, as torch's operations do."""


class Form(NamedTuple):
    """How a normalisation treats its weight.

    Attributes:
        offset: added to it.
        early: whether the normalised input is rounded before it is multiplied by it.
    """

    offset: float
    early: bool


class Room(NamedTuple):
    """Where a step's keys and values go: token t of it to slot `length` + t.

    Attributes:
        keys, values: [1, K, slots, D].
        length: int32 [1], on the same device.
    """

    keys: Tensor
    values: Tensor
    length: Tensor


class Weighing(NamedTuple):
    """A normalisation.

    Attributes:
        weight: [width].
        eps: added to the mean square.
        form: how they are used.
    """

    weight: Tensor
    eps: float
    form: Form


FORMS = (Form(0.0, True), Form(0.0, False), Form(1.0, False), Form(1.0, True))


def available(device: torch.device) -> bool:
    """Whether there are kernels for tensors on `device`."""
    kernels = loaded()
    return kernels is not None and (device.type == "cuda" or bool(kernels.INTERPRETED))


def may_take_angles(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> bool:
    """Whether `angles` takes these: [1, T] whole numbers and float32 [D / 2], dense."""
    return (
        (positions.ndim, frequencies.ndim) == (2, 1)
        and len(positions) == 1
        and positions.dtype in (torch.int32, torch.int64)
        and frequencies.dtype == torch.float32
        and positions.is_contiguous()
        and frequencies.is_contiguous()
        and positions.device == frequencies.device
        and dtype.is_floating_point
        and not off()
    )


def angles(
    positions: Tensor, frequencies: Tensor, scaling: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of `positions * frequencies`, times `scaling`; `may_take_angles` must be
    true.

    Returns:
        [1, T, D] twice, where the second half of each row is as its first.
    """
    half = len(frequencies)
    shape = (*positions.shape, 2 * half)
    outs = [torch.empty(shape, dtype=dtype, device=positions.device) for _ in range(2)]
    launch(
        "angles",
        (positions.shape[1],),
        positions,
        frequencies,
        *outs,
        scaling,
        HALF=half,
        BLOCK=power(half),
        num_warps=2,
    )
    return outs[0], outs[1]


def may_gate(both: Tensor) -> bool:
    """Whether `gate` takes this: anything dense."""
    return both.is_contiguous() and not off()


def gate(both: Tensor, *, gelu: bool = False) -> Tensor:
    """`act(gate) * up`; `may_gate` must be true.

    Args:
        both: gate and up, one behind the other, [..., 2 * width].
        gelu: whether the activation is GELU, by its approximation with a tangent, and not SiLU.

    Returns:
        [..., width].
    """
    width = both.shape[-1] // 2
    out = both.new_empty((*both.shape[:-1], width))
    block = min(1024, power(width))
    grid = out.numel() // width, -(-width // block)
    launch("gate", grid, both, out, 2 * width, WIDTH=width, BLOCK=block, GELU=gelu)
    return out


def may_normalise(x: Tensor) -> bool:
    """Whether `normalise` takes this: rows of one text, [1, T, width] or [1, a, b, width]."""
    return (
        x.ndim in (3, 4)
        and len(x) == 1
        and x.stride(-1) == 1
        and x.shape[-1] <= _WIDEST
        and not off()
    )


def normalise(x: Tensor, weight: Tensor, eps: float, form: Form) -> Tensor:
    """`x / rms(x) * (offset + weight)` over the last dimension; `may_normalise` must be true."""
    out = torch.empty_like(x, memory_format=torch.preserve_format)
    source, target = (each if each.ndim == 4 else each[:, :, None] for each in (x, out))
    _, outer, inner, width = source.shape
    launch(
        "normalise",
        (outer * inner,),
        x,
        weight,
        out,
        inner,
        *source.stride()[1:3],
        *target.stride()[1:3],
        eps,
        WIDTH=width,
        BLOCK=power(width),
        OFFSET=form.offset,
        EARLY=form.early,
        num_warps=_warps(width),
    )
    return out


def may_add(x: Tensor, said: Tensor) -> bool:
    """Whether `add` takes these: dense rows of one text, [1, T, width] both, of one type."""
    return (
        x.ndim == 3
        and len(x) == 1
        and x.shape == said.shape
        and x.dtype == said.dtype
        and x.is_contiguous()
        and said.is_contiguous()
        and x.shape[-1] <= _WIDEST
        # Distributed tensors may still be on their way.
        and type(x) is type(said) is Tensor
        and not off()
    )


def add(
    x: Tensor,
    said: Tensor,
    behind: Weighing | None,
    ahead: Weighing | None,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`x + factor * behind(said)`, and `ahead` of that sum; `may_add` must be true.

    Args:
        x, said: [1, T, width].
        behind, ahead: normalisations; None for none.
        factor: one number for a whole model, since each is a kernel of its own.

    Returns:
        The sum, and the same normalised; without `ahead` both are the sum.
    """
    total = torch.empty_like(x)
    normed = total if ahead is None else torch.empty_like(x)
    # Weights that are not read.
    idle = Weighing(x, 0.0, FORMS[0])
    first, last = behind or idle, ahead or idle
    width = x.shape[-1]
    launch(
        "add",
        (x.numel() // width,),
        x,
        said,
        first.weight,
        last.weight,
        total,
        normed,
        first.eps,
        last.eps,
        WIDTH=width,
        BLOCK=power(width),
        FACTOR=factor,
        BEHIND=behind is not None,
        BEHIND_OFFSET=first.form.offset,
        BEHIND_EARLY=first.form.early,
        AHEAD=ahead is not None,
        AHEAD_OFFSET=last.form.offset,
        AHEAD_EARLY=last.form.early,
        num_warps=_warps(width),
    )
    return total, normed


def launch(name: str, grid: tuple[int, ...], first: Tensor, *args: Any, **constants: Any) -> None:
    """Run one of the kernels, which must be there.

    Args:
        name: of it.
        grid: how many programs, in each dimension.
        first: its first argument, and a tensor where the others are.
        args: the others.
        constants: what it is compiled for.
    """
    kernels = loaded()
    assert kernels is not None
    # Triton launches on the current device, which need not be that of this layer.
    with torch.cuda.device(first.get_device()):
        getattr(kernels, name)[grid](first, *args, **constants, enable_fp_fusion=_FUSION)


_off: ContextVar[bool] = ContextVar("_off", default=False)


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Within this, and in this thread, kernels are called or not: then others do their work."""
    token = _off.set(not on)
    try:
        yield
    finally:
        _off.reset(token)


def off() -> bool:
    """Whether no kernel may be called: they are switched off, or operations are only being
    recorded, and a trace knows no kernels of ours."""
    # A trace never gets to the second question, which it could not follow.
    return torch.compiler.is_compiling() or _off.get()


def _warps(width: int) -> int:
    """Warps of a program that holds a row."""
    return min(16, max(1, power(width) // 256))


def power(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def loaded() -> ModuleType | None:
    """The kernels; None where there is no triton."""
    try:
        from . import kernels
    except ImportError:
        return None
    return kernels
