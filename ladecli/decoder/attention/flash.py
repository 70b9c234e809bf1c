"""Attention in two parts: the text by a flash kernel, the step's own tokens densely.

Every token of a step sees all of the text, so that part needs no mask, and the kernels that
everyone has are the right ones for it; only the step's own T x T block needs one.  `merge` joins
the two.  Kernels: PyTorch's own on CPUs; on GPUs the package flash-attn where it is installed
(Dao, "FlashAttention-2", 2023), else the copy of it that PyTorch brings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .merge import merge, merge_scores
from .sdpa import sdpa_attention
from .step import Parts, StepAttention

Kernel = Callable[[Tensor, Parts, StepAttention, float], tuple[Tensor, Tensor]]
"""(query [1, K, R, D], parts, step, scaling) -> attention over the cached slots that count,
[1, K, R, D], and its lse, float32 [1, K, R]: minus infinity where there are none."""

PAYS_FROM = 2**20
"""Scores of the cached part from which on a CPU is faster without the mask: below, two calls and
a merge cost more than reading the mask (`benchmarks/attention.py`)."""
PAYS_BY = 8
"""And there are to be so many cached tokens for each of the step's and each number of a head: the
step's own block and the merge are dearer than in one call, and cost by these."""
WIDEST = 1024
"""Tokens of a step; the scores of a wider one among themselves would fill the memory."""

_ROWS = 128
"""Rows of a tile in the flash kernels; with fewer, they cut tiles of this size all the same."""
_LEAST_SLOTS = 256
"""Slots that a split should have, or it spends its time on its beginning and its end."""


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: StepAttention,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attention in two parts where that is possible and pays; arguments as in
    `reference_attention`.

    Left to `sdpa_attention` are a lone token, which needs no mask; the beginning of a prompt, where
    there is no second part; sliding windows that hide something, since they go by position, which
    a kernel cannot know; soft caps; float32 on a GPU and heads that its kernels do not take; and
    steps on a CPU that are too small to gain anything.
    """
    simple = step.reach(sliding_window) is None and softcap is None
    one_part = step.visible is None or step.prefix == 0
    kernel = _kernel(query, value, step) if simple and not one_part else None
    if kernel is None:
        return sdpa_attention(query, key, value, step, scaling, sliding_window, softcap)
    _, heads, count, depth = query.shape
    parts = step.split(key, value)
    key_heads = parts.own_key.shape[1]
    # Query heads that share a key head become rows: no kernel reads keys more than once for them.
    folded = query.reshape(1, key_heads, heads // key_heads * count, depth)
    scores = _own_scores(folded, parts.own_key, step, scaling)
    out = merge_scores(scores, parts.own_value, *kernel(folded, parts, step, scaling))
    return out.to(query.dtype).reshape(1, heads, count, depth)


def _own_scores(query: Tensor, key: Tensor, step: StepAttention, scaling: float) -> Tensor:
    """Scores within the step, float32 [1, K, G * T, T]; minus infinity where nobody may look."""
    scores = query.float() @ key.float().transpose(2, 3) * scaling
    if step.visible is None:  # A lone token, which sees itself.
        return scores
    _, heads, rows, count = scores.shape
    grouped = scores.view(1, heads, rows // count, count, count)
    visible = step.visible.to(query.device)
    return torch.where(visible, grouped, float("-inf")).view(scores.shape)


def _kernel(query: Tensor, value: Tensor, step: StepAttention) -> Kernel | None:
    """The kernel for the cached part; None where none takes it, or two parts do not pay."""
    _, heads, count, depth = query.shape
    if count > WIDEST or value.shape[-1] != depth:
        return None
    if query.stride(-1) != 1 or value.stride(-1) != 1:
        return None
    if query.device.type == "cpu":
        if query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return None
        return _on_cpu if pays(heads, count, depth, _length(step)) else None
    half = query.dtype in (torch.bfloat16, torch.float16)
    if query.device.type != "cuda" or torch.version.hip or not half or depth % 8 or depth > 256:
        return None
    generation, _ = torch.cuda.get_device_capability(query.device)
    if generation < 8:
        return None
    # Later GPUs are refused by many versions of the package.
    packaged = generation in (8, 9) and _package() is not None
    return _by_package if packaged else _by_torch


def pays(heads: int, count: int, depth: int, length: int) -> bool:
    """Whether two parts are faster on a CPU than one call under a mask.

    Args:
        heads: of queries.
        count: tokens of the step.
        depth: size of a head.
        length: cached tokens.
    """
    return heads * count * length >= PAYS_FROM and length >= PAYS_BY * (count + depth)


def _length(step: StepAttention) -> int:
    """Cached tokens, for a CPU, where looking at a tensor costs nothing."""
    return int(step.length) if step.prefix is None else step.prefix


def _on_cpu(
    query: Tensor, parts: Parts, step: StepAttention, scaling: float
) -> tuple[Tensor, Tensor]:
    """A `Kernel`: PyTorch's for CPUs."""
    length = _length(step)
    if length == 0:  # The kernel would divide by it, and the process die.
        return torch.zeros_like(query), query.new_full(query.shape[:3], float("-inf")).float()
    key, value = parts.key[:, :, :length], parts.value[:, :, :length]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, scale=scaling
    )
    return out, lse


def _by_package(
    query: Tensor, parts: Parts, step: StepAttention, scaling: float
) -> tuple[Tensor, Tensor]:
    """A `Kernel`: that of the package flash-attn, which splits the keys by itself."""
    attend = _package()
    if attend is None:
        raise RuntimeError("the package flash-attn is not here")
    # It wants [1, tokens, heads, D], of any strides but the last.
    out, lse = attend(
        query.transpose(1, 2),
        parts.key.transpose(1, 2),
        parts.value.transpose(1, 2),
        cache_seqlens=step.length.to(query.device) if step.prefix is None else None,
        softmax_scale=scaling,
        return_softmax_lse=True,
    )
    return out.transpose(1, 2), _or_nothing(lse)


@cache
def _package() -> Callable[..., Any] | None:
    """`flash_attn_with_kvcache`; None where it is missing, broken or too old to return an lse."""
    try:
        attend: Callable[..., Any] = import_module("flash_attn").flash_attn_with_kvcache
    except (ImportError, OSError, AttributeError):
        return None
    return attend if "return_softmax_lse" in inspect.signature(attend).parameters else None


def _by_torch(
    query: Tensor, parts: Parts, step: StepAttention, scaling: float
) -> tuple[Tensor, Tensor]:
    """A `Kernel`: the copy of flash-attn within PyTorch."""
    if step.prefix is None:
        return _by_torch_in_splits(query, parts, step.length.to(query.device), scaling)
    rows, slots = query.shape[2], parts.key.shape[2]
    # As the package has it; lse is [1, K, R].
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        query.transpose(1, 2),
        parts.key.transpose(1, 2),
        parts.value.transpose(1, 2),
        None,
        None,
        rows,
        slots,
        0.0,
        False,
        False,
        scale=scaling,
    )
    return out.transpose(1, 2), _or_nothing(lse)


def _by_torch_in_splits(
    query: Tensor, parts: Parts, length: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    """The same behind as many tokens as `length` says, int32 [1] on the device.

    Only the form for texts of several lengths reads lengths there, and that one does not split
    keys.  So each split is given to it as a text of its own, with the same queries.
    """
    _, heads, rows, depth = query.shape
    slots = parts.key.shape[2]
    splits = _splits(-(-rows // _ROWS) * heads, slots, query.device)
    edges = torch.arange(splits + 1, dtype=torch.int32, device=query.device)
    share = torch.div(length + (splits - 1), splits, rounding_mode="floor")
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        query[0].transpose(0, 1).repeat(splits, 1, 1),
        parts.key[0].transpose(0, 1),
        parts.value[0].transpose(0, 1),
        edges * rows,
        torch.minimum(edges * share, length),
        rows,
        slots,
        0.0,
        False,
        False,
        scale=scaling,
    )
    out = out.view(splits, 1, rows, heads, depth).transpose(2, 3)
    # [K, splits * R] to [splits, 1, K, R].
    lse = lse.view(heads, splits, rows).transpose(0, 1).unsqueeze(1)
    return merge(out, _or_nothing(lse))


def _splits(tiles: int, slots: int, device: torch.device) -> int:
    """How many parts to cut the keys into, so that every multiprocessor has two tiles."""
    wanted = 2 * _processors(device) // tiles
    return max(1, min(wanted, slots // _LEAST_SLOTS))


def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _or_nothing(lse: Tensor) -> Tensor:
    """Flash kernels give infinity to a row without keys; to a merge that is minus infinity."""
    return lse.masked_fill(lse == float("inf"), float("-inf"))
