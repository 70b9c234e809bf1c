"""Attention of a whole step in one Triton kernel: cached keys and the step's own, in splits.

How a step is cut into programs follows from its shape alone, by a small table: nothing is tried
while text is decoded, and a step is cut alike every time, as a captured graph demands.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ..layout import WORD, words_for
from ..model.attention import sdpa_attention
from ..model.mask import CapturedMask, DeviceMask, Rules, StepMask

_MOST_SPLITS = 128
"""More would not fit into the registers of the program that joins them."""
_TO_JOIN = 8192
"""Numbers that the registers of a warp hold while it joins splits."""
_SHARED_MEMORY = 100 * 1024
"""Bytes per multiprocessor that every GPU since 2020 has."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Multiprocessors, and bytes of shared memory in each of them."""

    multiprocessors: int
    shared_memory: int


@dataclass(frozen=True, slots=True)
class Launch:
    """The programs that the attention of a step is cut into."""

    rows: int
    keys: int
    """`rows`, `keys`: of a tile, powers of two."""
    splits: int  # programs that share the keys of a row
    warps: int  # of a program
    stages: int  # tiles that a program loads ahead


def plan(
    count: int, groups: int, kv_heads: int, head_size: int, slots: int, itemsize: int, gpu: Gpu
) -> Launch:
    """The launch for a step of `count` tokens and S slots, cached and own, with `groups` query
    heads per key head; nothing in it depends on how many of the slots are filled.
    """
    depth = max(16, power_of_two(head_size))
    # Float32 is multiplied without tensor cores, and its tiles are held in registers.
    most = 32 if itemsize == 4 else 64 if depth > 128 else 128
    rows = min(max(16, power_of_two(groups * count)), most)
    keys = max(16, min(128, (4096 if itemsize == 4 else 8192) // depth))
    # Two programs on a multiprocessor hide one another's waiting; one with twice the rows reads
    # each key half as often.
    resident = 1 if rows == 128 else 2
    room = gpu.shared_memory // resident - 1024 - rows * depth * itemsize
    stages = 3 if room >= 3 * 2 * keys * depth * itemsize else 2
    programs = -(-groups * count // rows) * kv_heads
    splits = min(
        resident * gpu.multiprocessors // programs,
        # A split of one tile would spend more on its beginning and end than on the tile.
        slots // (2 * keys),
        # What splits leave to be joined must not be more bytes than the keys and values.
        slots // (groups * count),
        _MOST_SPLITS,
    )
    # The largest tiles need the registers of 8 warps.
    return Launch(rows, keys, max(splits, 1), 8 if rows == most or itemsize == 4 else 4, stages)


def triton_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules
) -> Tensor:
    """Attention by Triton kernels; arguments as in `reference_attention`.

    Float32 is exact, without TF32; half precision is summed in float32.  Values of another size
    than keys are left to `sdpa_attention`.
    """
    if value.shape[-1] != query.shape[-1]:
        return sdpa_attention(query, key, value, mask, rules)
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    _, heads, count, size = query.shape
    kv_heads, slots = key.shape[1:3]
    gpu = gpu_of(query.device)
    launch = plan(count, heads // kv_heads, kv_heads, size, slots, query.element_size(), gpu)
    # Laid out so that [T, H * D] of it needs no copy.
    out = query.new_empty((1, count, heads, size)).transpose(1, 2)
    # One split leaves the result itself; of several, each leaves a part and its log-sum-exp.
    shape = heads, count, launch.splits
    part = out[0].unsqueeze(2) if launch.splits == 1 else query.new_empty((*shape, size))
    lse = query.new_empty(shape, dtype=torch.float32)
    # Triton launches on the current device, which need not be that of this layer.
    with torch.cuda.device(query.get_device()):
        _attend(launch, query, key, value, mask, rules, part, lse)
        if launch.splits > 1:
            _join(launch, part, lse, out)
    return out


@torch.inference_mode()
def compile_attention(
    model: Any, widths: Sequence[int], slots: int, workers: int | None = None
) -> None:
    """Compile Triton attention for all widths of steps at once, in threads.

    Args:
        model: our own `transformer.Transformer`, on a GPU that Triton knows.
        widths: tokens of the steps.
        slots: of the cache.
        workers: threads; None for as many as there are cores.

    Raises:
        Exception: whatever Triton raises.
    """
    layer, device = model.layers[0], model.device
    heads, kv_heads, size = layer.heads
    groups = heads // kv_heads
    # As many slots as the cache has, all in the place of one.
    key = torch.ones((1, kv_heads, 1, size), dtype=model.dtype, device=device)
    keys = key.expand(-1, -1, slots, -1)
    # By what is compiled for it, one of the widths.
    launches = {}
    for width in widths:
        cut = plan(width, groups, kv_heads, size, slots, key.element_size(), gpu_of(device))
        launches[replace(cut, splits=power_of_two(cut.splits))] = width
    calls = []
    for width in launches.values():
        query = key.new_ones((1, width, heads, size)).transpose(1, 2)
        sizes = (1, width, (width, words_for(width)))
        numbers = [torch.ones(each, dtype=torch.int32, device=device) for each in sizes]
        mask = CapturedMask(DeviceMask(*numbers), slots)
        calls += [
            partial(triton_attention, query, keys, keys, mask, rules)
            for rules in {each.attends for each in model.layers}
        ]
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def _attend(
    launch: Launch,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: StepMask,
    rules: Rules,
    part: Tensor,
    lse: Tensor,
) -> None:
    """Compute the result of each split: part [H, T, splits, D], and lse [H, T, splits]."""
    # Not before here: a CPU does without triton.
    from triton import language

    from . import triton_attention_kernel as kernels

    _, heads, count, size = query.shape
    groups = heads // key.shape[1]
    scaling, window, softcap, sinks = rules
    window = mask.active_window(window)
    # The interpreter cannot multiply bfloat16.
    widened = kernels.INTERPRETED and query.dtype == torch.bfloat16
    dot: Any = getattr(language, "float32" if widened else str(query.dtype).split(".")[1])
    strides = (stride for each in (query, key, value) for stride in each.stride()[1:3])
    grid = -(-groups * count // launch.rows), key.shape[1], launch.splits
    kernels.attend[grid](
        *(query, key, value, lse if sinks is None else sinks, part, lse),
        *mask.on_device(query.device),
        *(*strides, *part.stride()[:3], count, window or 0, scaling, softcap or 1.0),
        GROUPS=groups,
        SIZE=size,
        BLOCK_M=launch.rows,
        BLOCK_N=launch.keys,
        BLOCK_O=min(launch.keys, WORD),
        BLOCK_D=max(16, power_of_two(size)),
        DOT=dot,
        WINDOWED=window is not None,
        CAPPED=softcap is not None,
        SINKS=sinks is not None,
        **early(query.device),
        num_warps=launch.warps,
        num_stages=launch.stages,
        enable_fp_fusion=True,
    )


def _join(launch: Launch, part: Tensor, lse: Tensor, out: Tensor) -> None:
    """Weigh the parts of all splits: out [1, H, T, D]."""
    from . import triton_attention_kernel as kernels

    heads, count, size = out.shape[1:]
    kernels.join[heads * count,](
        *(part, lse, out, *out.stride()[1:3], count, launch.splits),
        SIZE=size,
        BLOCK_D=max(16, power_of_two(size)),
        BLOCK_S=power_of_two(launch.splits),
        num_warps=warps_to_join(launch.splits, size),
        enable_fp_fusion=True,
    )


@cache
def early(device: torch.device) -> dict[str, bool]:
    """What a kernel is launched with so as to be set up while the last one still runs, where the
    device can do that: NVIDIA's programmatic dependent launch.  On an H200 it takes 2 to 4 % off a
    step of 8 billion parameters.  `join` does without: of four warps each, its programs kept places
    that attention needed."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    if nvidia and torch.cuda.get_device_capability(device) >= (9, 0):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


def warps_to_join(splits: int, size: int) -> int:
    """Return the warps of a program that joins a row of `size` numbers: as few as have the
    registers.

    With four a step of 64 tokens took 12 us for what one did in 3, on an H200.
    """
    return max(1, power_of_two(splits) * max(16, power_of_two(size)) // _TO_JOIN)


@cache
def triton_available(device: torch.device) -> bool:
    """Return whether Triton kernels run on a device; on a CPU where TRITON_INTERPRET is 1.

    Triton is not imported for the answer.
    """
    if find_spec("triton") is None:
        return False
    if device.type != "cuda":
        return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


@cache
def gpu_of(device: torch.device) -> Gpu:
    """Return what a device has room for."""
    if device.type != "cuda":
        return Gpu(8, _SHARED_MEMORY)
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_multiprocessor", _SHARED_MEMORY)
    return Gpu(properties.multi_processor_count, shared)
