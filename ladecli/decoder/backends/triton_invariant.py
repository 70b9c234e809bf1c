"""Batch-invariant attention in Triton: a token's result does not depend on its step.

A token that is computed alone sees only cached keys.  In a step with drafts, some of the same keys
belong to the step, and stand in other slots between keys that the token does not see.  Both cases
give the same bits, because the order of all sums depends on positions alone:

- Keys are read in tiles of `BLOCK_N` positions.  All tokens share the tiles that are full of cached
  keys (`attend_cached`).  From the first other tile on, every token gathers the keys of its own
  path, so that each key has the same place in its tile as in the text (`attend_own`).
- A split has the tiles of `SPLIT` positions, in order, and splits are joined in order.
- All sums over keys, including the sum of the weights, are products by mma.sync, which adds 16 keys
  after the other, whatever the number of rows; see `triton_product`.

Importing this needs triton.
"""

# Triton's language has no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..model.mask import Rules, StepMask
from .triton_attention import early, power_of_two
from .triton_attention_kernel import INTERPRETED, begin_early

SPLIT = 256
"""The number of positions in a split; a multiple of all tiles."""
WIDEST = 64
"""The most tokens that are computed at once; with more, partial results take too much memory."""

_LOG2_E = tl.constexpr(1.4426950408889634)
_VARYING = ["count", "window", "splits", "sinks", "length", "positions", "paths", "path_row"]


@triton.jit
def _absorb(
    out, total, top, rows, keys, values, seen, scaling, softcap,
    CAPPED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Add a tile of keys to the running softmax of every row.

    `out` [M, D] and `total` [M, 16], in 16 equal columns, are sums of weights 2 ** (score - top),
    `top` [M] the highest score so far; rows are [M, D], keys and values [N, D], and `seen` is
    [M or 1, N].  M is 16 or 32: with 64, Triton would use wgmma.
    """
    scores = tl.dot(rows, tl.trans(keys.to(DOT)), input_precision="ieee")
    if CAPPED:
        # tanh(x) = 1 - 2 / (1 + exp(2 x)).
        tangent = 1 - 2 / (1 + tl.exp2(scores * (scaling / softcap * 2 * _LOG2_E)))
        scores = tangent * (softcap * _LOG2_E)
    else:
        scores = scores * (scaling * _LOG2_E)
    scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    # For a row that has seen no key yet, -inf - -inf would be NaN.
    base = tl.where(higher == float("-inf"), 0.0, higher)
    fade = tl.exp2(top - base)[:, None]
    weights = tl.exp2(scores - base[:, None]).to(DOT)
    ones = tl.full([weights.shape[1], 16], 1.0, DOT)
    total = tl.dot(weights, ones, total * fade, input_precision="ieee")
    out = tl.dot(weights, values.to(DOT), out * fade, input_precision="ieee")
    return out, total, higher


@triton.jit
def _joined(out, total, top, more, more_total, more_top):
    """Join the softmax over a split to that over the splits before it; the form of `_absorb`."""
    higher = tl.maximum(top, more_top)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    old, new = tl.exp2(top - base)[:, None], tl.exp2(more_top - base)[:, None]
    return out * old + more * new, total * old + more_total * new, higher


@triton.jit(do_not_specialize=_VARYING)
def attend_cached(
    query, key, value, sinks, part, sums, length, positions,
    query_head, query_token, key_head, key_slot, value_head, value_slot,
    count, window, scaling, softcap,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, DOT: tl.constexpr, WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attention of a tile of rows of one key head over one split of whole tiles of cached keys.

    The grid is (tiles of rows, key heads, splits).  Row r of a key head is token r % count of its
    query head r // count.  Splits after the first one without a full tile write nothing.

    Args:
        part: float32 [H, count, splits, SIZE], sums of values by weight.
        sums: float32 [H, count, splits, 2], the sum of the weights, and log2 of their unit.
        Others are those of `triton_attention_kernel.attend`.
    """
    begin_early(EARLY)
    head, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    edge = tl.load(length) // BLOCK_N * BLOCK_N
    begin = split * SPLIT
    if begin > edge:
        return
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    token, query_at = row % count, head * GROUPS + row // count
    real = row < GROUPS * count
    depth = tl.arange(0, BLOCK_D)[None, :]
    at = (query_at * query_head + token * query_token)[:, None] + depth
    inside = real[:, None] & (depth < SIZE)
    rows = tl.load(query + at, mask=inside, other=0.0).to(DOT)
    out = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    total = tl.zeros([BLOCK_M, 16], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    if SINKS:
        # The first split begins with the sink.
        first_split = row < tl.where(split == 0, GROUPS * count, 0)
        sink = tl.load(sinks + query_at, mask=first_split, other=float("-inf"))
        top = sink.to(tl.float32) * _LOG2_E
        total += tl.where(split == 0, 1.0, 0.0)
    first = begin
    if WINDOWED:
        position = tl.load(positions + token, mask=real, other=2147483647)
        # No row of this tile sees a key at or before this position.
        horizon = tl.min(position) - window
        first = tl.maximum(begin, tl.maximum(horizon + 1, 0) // BLOCK_N * BLOCK_N)
    # A text may have more than 2 ** 31 numbers in its keys.
    place = tl.arange(0, BLOCK_N)
    key += head * key_head + (place.to(tl.int64) * key_slot)[:, None] + depth
    value += head * value_head + (place.to(tl.int64) * value_slot)[:, None] + depth
    for start in tl.range(first, tl.minimum(begin + SPLIT, edge), BLOCK_N):
        slot = tl.cast(start, tl.int64)
        keys = tl.load(key + slot * key_slot, mask=depth < SIZE, other=0.0)
        values = tl.load(value + slot * value_slot, mask=depth < SIZE, other=0.0)
        seen = (start + place)[None, :] >= 0
        if WINDOWED:
            seen = (start + place)[None, :] > (position - window)[:, None]
        out, total, top = _absorb(
            out, total, top, rows, keys, values, seen, scaling, softcap, CAPPED, DOT
        )
    whence = (query_at * count + token) * tl.num_programs(2) + split
    tl.store(part + whence[:, None] * SIZE + depth, out, mask=inside)
    tl.store(sums + 2 * whence, tl.max(total, 1), mask=real)
    tl.store(sums + 2 * whence + 1, top, mask=real)


@triton.jit
def _stored(part, sums, at, real, depth, SIZE: tl.constexpr):
    """Return the result of `attend_cached` for a split, in the form of `_absorb`."""
    inside = real[:, None] & (depth < SIZE)
    out = tl.load(part + at[:, None] * SIZE + depth, mask=inside, other=0.0)
    total = tl.load(sums + 2 * at, mask=real, other=0.0)[:, None]
    return out, total, tl.load(sums + 2 * at + 1, mask=real, other=0.0)


@triton.jit(do_not_specialize=_VARYING)
def attend_own(
    query, key, value, part, sums, out, length, positions, paths,
    query_head, query_token, key_head, key_slot, value_head, value_slot, out_head, out_token,
    path_row, count, splits, window, scaling, softcap,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, DOT: tl.constexpr, WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    """Attention of one token: the splits of `attend_cached`, then the tiles from the first one that
    is not full of cached keys, all joined; the grid is (count, key heads).

    Args:
        part, sums: as `attend_cached` left them.
        out: [H, count, SIZE], the last dimension dense.
        paths: int32 [count, ...]; row i has the step's token that token i sees at each position,
            counted from the step's first position.
        path_row, out_head, out_token: strides.
        Others are those of `triton_attention_kernel.attend`.
    """
    token, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    cached, position = tl.load(length), tl.load(positions + token)
    edge = cached // BLOCK_N * BLOCK_N
    group = tl.arange(0, BLOCK_M)
    query_at, real = head * GROUPS + group, group < GROUPS
    depth = tl.arange(0, BLOCK_D)[None, :]
    inside = real[:, None] & (depth < SIZE)
    at = (query_at * query_head + token * query_token)[:, None] + depth
    rows = tl.load(query + at, mask=inside, other=0.0).to(DOT)
    whence = (query_at * count + token) * splits
    nothing = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    no_total = tl.zeros([BLOCK_M, 16], dtype=tl.float32)
    no_top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    whole, whole_total, whole_top = nothing, no_total, no_top
    last = edge // SPLIT
    for split in tl.range(0, last, loop_unroll_factor=4):
        found, total, top = _stored(part, sums, whence + split, real, depth, SIZE)
        whole, whole_total, whole_top = _joined(whole, whole_total, whole_top, found, total, top)
    # The split in which the token's own keys begin.
    found, total, top = _stored(part, sums, whence + last, real, depth, SIZE)
    total += no_total
    place = tl.arange(0, BLOCK_N)
    key += head * key_head + depth
    value += head * value_head + depth
    for start in tl.range(edge, position + 1, BLOCK_N):
        where = start + place
        seen = where <= position
        own = seen & (where >= cached)
        path = tl.load(paths + token * path_row + where - cached, mask=own, other=0)
        if WINDOWED:
            seen = seen & (where > position - window)
        slot = tl.where(own, cached + path, where).to(tl.int64)[:, None]
        there = seen[:, None] & (depth < SIZE)
        keys = tl.load(key + slot * key_slot, mask=there, other=0.0)
        values = tl.load(value + slot * value_slot, mask=there, other=0.0)
        found, total, top = _absorb(
            *(found, total, top, rows, keys, values, seen[None, :]),
            *(scaling, softcap, CAPPED, DOT),
        )
        if (start + BLOCK_N) % SPLIT == 0:
            whole, whole_total, whole_top = _joined(
                whole, whole_total, whole_top, found, total, top
            )
            found, total, top = nothing, no_total, no_top
    whole, whole_total, whole_top = _joined(whole, whole_total, whole_top, found, total, top)
    # Every token sees itself.
    result = whole / tl.max(whole_total, 1)[:, None]
    target = (query_at * out_head + token * out_token)[:, None] + depth
    tl.store(out + target, result.to(out.dtype.element_ty), mask=inside)


def invariant_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules
) -> Tensor:
    """Attention in half precision; arguments as in `reference_attention`."""
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    _, heads, count, size = query.shape
    # This layout needs no copy to become [T, H * D].
    out = query.new_empty((1, count, heads, size)).transpose(1, 2)
    length, positions, _ = mask.on_device(query.device)
    paths = mask.once(("paths", query.device), partial(_paths, mask, query.device))
    for first in range(0, count, WIDEST):
        own = slice(first, first + WIDEST)
        window = mask.active_window(rules.window)
        _attend(
            *(query[0, :, own], key[0], value[0], out[0, :, own]),
            *(length, positions[own], paths[own], rules._replace(window=window)),
        )
    return out


def _paths(mask: StepMask, device: torch.device) -> Tensor:
    """Return `paths` for `attend_own`; values after a token's own position are arbitrary."""
    length, positions, _ = mask.on_device(device)
    visible = mask.visible(device)
    places = torch.arange(len(positions), dtype=torch.int32, device=device).expand_as(visible)
    column = torch.where(visible, (positions - length).long(), len(positions))
    paths = torch.zeros((len(positions), len(positions) + 1), dtype=torch.int32, device=device)
    return paths.scatter_(1, column, places)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    length: Tensor,
    positions: Tensor,
    paths: Tensor,
    rules: Rules,
) -> None:
    """Compute attention of a few tokens: `out` and `query` are [H, T, D], keys [K, S, D]."""
    (heads, count, size), (kv_heads, slots, _) = query.shape, key.shape
    groups, splits, depth = heads // kv_heads, -(-slots // SPLIT), max(16, power_of_two(size))
    part = query.new_empty((heads, count, splits, size), dtype=torch.float32)
    sums = query.new_empty((heads, count, splits, 2), dtype=torch.float32)
    rows = min(max(16, power_of_two(groups * count)), 32)
    # The interpreter cannot multiply bfloat16.
    widened = INTERPRETED and query.dtype == torch.bfloat16
    dot: Any = getattr(tl, "float32" if widened else str(query.dtype).split(".")[1])
    strides = [stride for states in (query, key, value) for stride in states.stride()[:2]]
    numbers = rules.window or 0, rules.scaling, rules.softcap or 1.0
    options = {
        "GROUPS": groups,
        "SIZE": size,
        "BLOCK_N": 64 if depth <= 128 else 32,
        "BLOCK_D": depth,
        "SPLIT": SPLIT,
        "DOT": dot,
        "WINDOWED": rules.window is not None,
        "CAPPED": rules.softcap is not None,
        # Both kernels must round the same operations in the same way.
        "enable_fp_fusion": False,
    }
    with torch.cuda.device(query.get_device()):
        attend_cached[-(-groups * count // rows), kv_heads, splits](
            *(query, key, value, part if rules.sinks is None else rules.sinks, part, sums),
            *(length, positions, *strides, count, *numbers),
            BLOCK_M=rows,
            SINKS=rules.sinks is not None,
            num_warps=rows // 4,
            **early(query.device),
            **options,
        )
        attend_own[count, kv_heads](
            *(query, key, value, part, sums, out, length, positions, paths, *strides),
            *(*out.stride()[:2], paths.stride(0), count, splits, *numbers),
            BLOCK_M=max(16, power_of_two(groups)),
            **options,
        )
