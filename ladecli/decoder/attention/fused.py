"""Attention of a whole step in one Triton kernel: cached keys and the step's own, in splits.

How a step is cut into programs follows from its shape alone, by a small table: nothing is tried
while text is decoded, and the same step is cut alike every time, as a captured graph demands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from ..errors import ConfigError, UnsupportedModelError
from .step import WORD, Parts, StepAttention

_MOST_SPLITS = 128
"""More would not fit into the registers of the program that joins them."""
_INTERPRETED_PROCESSORS = 8
_SHARED_MEMORY = 100 * 1024
"""Bytes per multiprocessor that every GPU of the last years has."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a step's attention is cut into programs.

    Attributes:
        rows, keys: of one tile, powers of two.
        depth: the head size as a power of two, at least 16.
        splits: programs that share the keys of a row.
        warps, stages: of each program, and how many tiles it loads ahead.
    """

    rows: int
    keys: int
    depth: int
    splits: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Chip:
    """What a GPU has room for: multiprocessors, and bytes of shared memory in each of them."""

    multiprocessors: int
    shared_memory: int


def cut(count: int, groups: int, heads: int, depth: int, slots: int, size: int, chip: Chip) -> Cut:
    """The cut for a step; nothing in it depends on how many of the slots are filled.

    Args:
        count: tokens of the step.
        groups: query heads that share a key head.
        heads: key heads.
        depth: size of a head.
        slots: cached tokens that there may be.
        size: bytes of a number.
        chip: where it runs.
    """
    deep = max(16, _power(depth))
    # Float32 is multiplied without tensor cores, and tiles of it are held in registers.
    rows = min(max(16, _power(groups * count)), 32 if size == 4 else 64 if deep > 128 else 128)
    keys = max(16, min(128, (4096 if size == 4 else 8192) // deep))
    # Two programs on a multiprocessor hide one another's waiting; one with twice the rows reads
    # each key half as often and leaves half as much to join.
    resident = 1 if rows == 128 else 2
    tile = 2 * keys * deep * size
    room = chip.shared_memory // resident - 1024 - rows * deep * size
    stages = 3 if room >= 3 * tile else 2
    programs = -(-groups * count // rows) * heads
    # A split of a single tile would spend more on its beginning and its end than on the tile.
    tiles = -(-slots // keys) + -(-count // keys)
    splits = min(resident * chip.multiprocessors // programs, tiles // 2, _MOST_SPLITS)
    return Cut(rows, keys, deep, max(splits, 1), 8 if rows == 128 or size == 4 else 4, stages)


def triton_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: StepAttention,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attention by the fused kernels; arguments as in `reference_attention`.

    Float32 is exact, that is without TF32; half precision is summed in float32.

    Raises:
        ConfigError: there is no triton, or it does not know the device; or that is too old.
        UnsupportedModelError: heads of keys and of values differ in size.
    """
    depth = query.shape[-1]
    _kernels(query.device)
    if value.shape[-1] != depth:
        raise UnsupportedModelError(
            f"attention 'triton' needs heads of one size, and these are {depth} and "
            f"{value.shape[-1]}; use --attention sdpa"
        )
    reach = step.reach(sliding_window)
    # A compiler would look into the launch of kernels that are whole as they are.
    run = torch.ops.lade.attend if torch.compiler.is_compiling() else _run
    out: Tensor = run(
        query,
        *step.split(key, value),
        step.length,
        step.bits,
        step.positions,
        scaling,
        reach or 0,
        softcap or 0.0,
    )
    return out


def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    length: Tensor,
    bits: Tensor,
    positions: Tensor,
    scaling: float,
    window: int,
    softcap: float,
) -> Tensor:
    """Launch the kernels: [1, H, T, D]; window and cap are 0 where there is none."""
    kernels = _kernels(query.device)
    _, heads, count, depth = query.shape
    parts = Parts(*map(_dense, (key, value, own_key, own_value)))
    key_heads, slots = key.shape[1:3]
    groups, size = heads // key_heads, query.element_size()
    plan = cut(count, groups, key_heads, depth, slots, size, _chip(query.device))
    out = _empty(query)
    told = tuple(each.to(query.device) for each in (length, bits, positions))
    given = (plan, _dense(query), parts, told, scaling, window, softcap)
    # Triton launches on the current device, which need not be that of this layer.
    with torch.cuda.device(query.device if query.is_cuda else -1):
        if plan.splits == 1:
            # Nothing to join, and nothing written about its weight.
            _attend(kernels, *given, part=out[0, :, :, None], lse=out)
        else:
            shape = (heads, count, plan.splits)
            part = query.new_empty((*shape, depth), dtype=torch.float32)
            lse = query.new_empty(shape, dtype=torch.float32)
            _attend(kernels, *given, part=part, lse=lse)
            _join(kernels, plan, part, lse, out)
    return out


def _empty(query: Tensor, *_others: object) -> Tensor:
    """Room for the result, [1, H, T, D]."""
    _, heads, count, depth = query.shape
    # In this order of tokens and heads, what transformers does next needs no copy.
    return query.new_empty((1, count, heads, depth)).transpose(1, 2)


@cache
def opaque() -> Callable[..., Tensor]:
    """`_run` as an operation that torch.compile does not look into.

    Made once, before anything is compiled, and only then: it takes a second.
    """
    operation = torch.library.custom_op("lade::attend", _run, mutates_args=())
    operation.register_fake(_empty)
    return operation


def _attend(
    kernels: ModuleType,
    plan: Cut,
    query: Tensor,
    parts: Parts,
    told: tuple[Tensor, ...],
    scaling: float,
    window: int,
    softcap: float,
    *,
    part: Tensor,
    lse: Tensor,
) -> None:
    """Fill `part` [H, T, splits, D] and `lse` [H, T, splits]; last dimensions are dense.

    `told` is the length of the text, who sees whom, and positions, as `StepAttention` has them.
    """
    _, heads, count, depth = query.shape
    key_heads = parts.key.shape[1]
    groups = heads // key_heads
    # The interpreter cannot multiply bfloat16.
    widened = kernels.INTERPRETED and query.dtype == torch.bfloat16
    multiplied = torch.float32 if widened else query.dtype
    kernels.attend[-(-groups * count // plan.rows), key_heads, plan.splits](
        query,
        *parts,
        part,
        lse,
        *told,
        *(stride for each in (query, *parts) for stride in each.stride()[1:3]),
        *part.stride()[:3],
        count,
        window,
        scaling,
        softcap or 1.0,
        GROUPS=groups,
        DEPTH=depth,
        BLOCK_M=plan.rows,
        BLOCK_N=plan.keys,
        BLOCK_O=min(plan.keys, WORD),
        BLOCK_D=plan.depth,
        DOT=getattr(kernels.tl, str(multiplied).removeprefix("torch.")),
        WINDOWED=window > 0,
        CAPPED=softcap > 0.0,
        ALONE=plan.splits == 1,
        num_warps=plan.warps,
        num_stages=plan.stages,
        enable_fp_fusion=True,
    )


def _join(kernels: ModuleType, plan: Cut, part: Tensor, lse: Tensor, out: Tensor) -> None:
    """Fill `out` [1, H, T, D] from what `_attend` left."""
    heads, count, splits, depth = part.shape
    kernels.join[heads * count,](
        part,
        lse,
        out,
        *out.stride()[1:3],
        count,
        splits,
        DEPTH=depth,
        BLOCK_D=plan.depth,
        BLOCK_S=_power(splits),
        num_warps=4 if splits <= 32 else 8,
        enable_fp_fusion=True,
    )


def _dense(tensor: Tensor) -> Tensor:
    """`tensor`, or a copy whose last dimension is dense."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _power(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _kernels(device: torch.device) -> ModuleType:
    """The kernels, for tensors on `device`.

    Raises:
        ConfigError: there is no triton, or it does not know the device.
    """
    try:
        from . import fused_kernel
    except ImportError:
        known = False
    else:
        known = device.type == "cuda" or fused_kernel.INTERPRETED
    if not known:
        raise ConfigError(
            "attention 'triton' needs the package triton, which comes with torch for CUDA; "
            "use --attention sdpa"
        )
    return fused_kernel


@cache
def _chip(device: torch.device) -> Chip:
    """What `device` has room for.

    Raises:
        ConfigError: it is too old for the matrix products of the kernels.
    """
    if device.type != "cuda":
        return Chip(_INTERPRETED_PROCESSORS, _SHARED_MEMORY)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is None and properties.major < 8:
        raise ConfigError(
            f"attention 'triton' needs compute capability 8.0, and {properties.name} has "
            f"{properties.major}.{properties.minor}; use --attention sdpa"
        )
    shared = getattr(properties, "shared_memory_per_multiprocessor", _SHARED_MEMORY)
    return Chip(properties.multi_processor_count, shared)
