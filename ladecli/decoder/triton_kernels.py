"""Triton kernels for what lies between a layer's matrix products; importing this needs triton.

Fused are residual add + RMSNorm, QK-norm + RoPE + cache write, the gated MLP's activation, and
the best logits of a row.  Numbers are computed in float32 and rounded where transformers rounds
them, so that half precision differs by the order of a sum at most.  Ask
`attention.triton_available` first.
"""

# Triton's language has no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention import CapturedMask, DeviceMask
from .attention.triton import gpu_of, plan, power_of_two, triton_attention
from .mask_bits import words_for

MOST_BEST = 8
"""Logits of a row that `top_k` finds; each takes one more look at all of a block."""
_BLOCK = 4096
"""Logits that one program looks at."""
_MOST_BLOCKS = 256
"""Blocks of a row that one program can join."""
_NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def _rounded(x, TYPE: tl.constexpr):
    """Float32 numbers as a tensor of a type would hold them."""
    return x.to(TYPE).to(tl.float32)


@triton.jit
def _scaled(x, root, weight, FLOAT_WEIGHT: tl.constexpr, TYPE: tl.constexpr):
    """`x * root * weight`; what meets the weight is rounded first unless FLOAT_WEIGHT."""
    x *= root
    if not FLOAT_WEIGHT:
        x = _rounded(x, TYPE)
    return _rounded(x * weight, TYPE)


@triton.jit
def norm_kernel(
    x, update, weight, out, x_row, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, FLOAT_WEIGHT: tl.constexpr,
):  # fmt: skip
    """One row: if ADD, `x += update`; then `out`, the norm of `x`.  The grid is (rows)."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < WIDTH
    TYPE: tl.constexpr = out.dtype.element_ty
    scale = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * x_row + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        more = tl.load(update + row * WIDTH + place, mask=inside, other=0.0)
        value = _rounded(value + more.to(tl.float32), TYPE)
        tl.store(x + row * x_row + place, value.to(TYPE), mask=inside)
    root = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
    value = _scaled(value, root, scale, FLOAT_WEIGHT, TYPE)
    tl.store(out + row * WIDTH + place, value.to(TYPE), mask=inside)


# The start differs from step to step, and so does the address of one that lies on the device.
@triton.jit(do_not_specialize=["start", "angle_token"])
def rope_kernel(
    qkv, cos, sin, q_norm, k_norm, query, keys, values, start,
    qkv_token, angle_token, cache_head, cache_slot, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, ROTARY: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, INTERLEAVED: tl.constexpr,
    NORMED: tl.constexpr, FLOAT_WEIGHT: tl.constexpr, ON_DEVICE: tl.constexpr,
):  # fmt: skip
    """BLOCK_H heads of one token, queries before keys before values; the grid is (T, blocks)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    place = tl.arange(0, BLOCK_D)[None, :]
    inside, turned = place < SIZE, place < ROTARY
    is_query = inside & (head < HEADS)
    is_key = inside & (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = inside & (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    if INTERLEAVED:
        partner = place ^ 1
    else:
        partner = tl.where(place < ROTARY // 2, place + ROTARY // 2, place - ROTARY // 2)
    at = qkv + token * qkv_token + head * SIZE
    TYPE: tl.constexpr = query.dtype.element_ty
    number = tl.load(at + place, mask=is_query | is_key | is_value, other=0.0)
    x = number.to(tl.float32)
    other = tl.load(at + partner, mask=turned & (is_query | is_key), other=0.0).to(tl.float32)
    if NORMED:
        root = tl.rsqrt(tl.sum(x * x, 1)[:, None] / SIZE + eps)
        scale = tl.load(q_norm + place, mask=is_query, other=0.0).to(tl.float32)
        scale += tl.load(k_norm + place, mask=is_key, other=0.0).to(tl.float32)
        x = _scaled(x, root, scale, FLOAT_WEIGHT, TYPE)
        scale = tl.load(q_norm + partner, mask=turned & is_query, other=0.0).to(tl.float32)
        scale += tl.load(k_norm + partner, mask=turned & is_key, other=0.0).to(tl.float32)
        other = _scaled(other, root, scale, FLOAT_WEIGHT, TYPE)
    cosine = tl.load(cos + token * angle_token + place, mask=turned, other=1.0).to(tl.float32)
    sine = tl.load(sin + token * angle_token + place, mask=turned, other=0.0).to(tl.float32)
    result = (x * cosine + other * sine).to(TYPE)
    tl.store(query + (token * HEADS + head) * SIZE + place, result, mask=is_query)
    slot = token + (tl.load(start) if ON_DEVICE else start)
    kv_head = (head - HEADS).to(tl.int64)
    tl.store(keys + kv_head * cache_head + slot * cache_slot + place, result, mask=is_key)
    kv_head -= KV_HEADS
    tl.store(values + kv_head * cache_head + slot * cache_slot + place, number, mask=is_value)


@triton.jit
def gate_kernel(both, out, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    """`act(gate) * up` of one block of one token; the grid is (T, blocks)."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < WIDTH
    TYPE: tl.constexpr = out.dtype.element_ty
    gate = tl.load(both + token * row + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + token * row + WIDTH + place, mask=inside, other=0.0).to(tl.float32)
    inner = gate
    if GELU:
        # (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x)); the factor is 2 sqrt(2 / pi).
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    # Beyond 80 the result is 0 either way, and the exponential infinite.
    result = _rounded(gate / (1.0 + tl.exp(tl.minimum(-inner, 80.0))), TYPE) * up
    tl.store(out + token * WIDTH + place, result.to(TYPE), mask=inside)


@triton.jit
def _best(values, tokens, left):
    """The greatest value that is left, and of those as great the lowest token."""
    value = tl.max(tl.where(left, values, float("-inf")), 0)
    return value, tl.min(tl.where(left & (values == value), tokens, _NO_TOKEN), 0)


@triton.jit
def _weights(values, top):
    """exp(value - top), also where all are -inf."""
    return tl.exp(values - tl.where(top == float("-inf"), 0.0, top))


@triton.jit
def block_top_k_kernel(
    logits, values, tokens, tops, sums, row_stride, vocabulary,
    COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best COUNT logits of one block of one row; the grid is (rows, blocks).

    Leaves values and tokens [rows, blocks, COUNT], _NO_TOKEN where a block has no more; and
    [rows, blocks], the greatest logit and the sum of exp(logit - greatest).
    """
    row = tl.program_id(0).to(tl.int64)
    part = row * tl.num_programs(1) + tl.program_id(1)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    left = token < vocabulary
    value = tl.load(logits + row * row_stride + token, mask=left, other=float("-inf"))
    value = value.to(tl.float32)
    top, _ = _best(value, token, left)
    tl.store(tops + part, top)
    tl.store(sums + part, tl.sum(tl.where(left, _weights(value, top), 0.0), 0))
    for place in tl.static_range(COUNT):
        best, which = _best(value, token, left)
        tl.store(values + part * COUNT + place, best)
        tl.store(tokens + part * COUNT + place, which)
        left = left & (token != which)


@triton.jit
def join_top_k_kernel(
    values, tokens, tops, sums, out_values, out_tokens, out_logsumexp, blocks, vocabulary,
    COUNT: tl.constexpr, BLOCKS: tl.constexpr, FOUND: tl.constexpr,
):  # fmt: skip
    """The best logits of one row from those of its blocks; the grid is (rows)."""
    row = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, BLOCKS)
    top = tl.load(tops + row * blocks + each, mask=each < blocks, other=float("-inf"))
    total = tl.load(sums + row * blocks + each, mask=each < blocks, other=0.0)
    highest = tl.max(top, 0)
    tl.store(out_logsumexp + row, tl.log(tl.sum(total * _weights(top, highest), 0)) + highest)
    place = tl.arange(0, FOUND)
    there = place < blocks * COUNT
    value = tl.load(values + row * blocks * COUNT + place, mask=there, other=0.0)
    token = tl.load(tokens + row * blocks * COUNT + place, mask=there, other=_NO_TOKEN)
    left = token < _NO_TOKEN
    for rank in tl.static_range(COUNT):
        best, which = _best(value, token, left)
        tl.store(out_values + row * COUNT + rank, best)
        # A row of NaN has no best one: some token then, and a logsumexp that is NaN.
        tl.store(out_tokens + row * COUNT + rank, tl.minimum(which, vocabulary - 1))
        left = left & (token != which)


def rms_norm(x: Tensor, weight: Tensor, eps: float, float_weight: bool) -> Tensor:
    """Root mean square norm of each row (Zhang and Sennrich, 2019).

    Args:
        x: [T, n], rows of any stride.
        weight: [n], of any type.
        eps: added to the mean square.
        float_weight: the product with the weight is in float32 (Gemma); else what meets it is
            rounded to the type of `x` first (Llama).

    Returns:
        [T, n], dense.
    """
    return _norm(x, None, weight, eps, float_weight)


def add_rms_norm(
    residual: Tensor, update: Tensor, weight: Tensor, eps: float, float_weight: bool
) -> Tensor:
    """Add `update` to `residual` in place, [T, n] both; the `rms_norm` of the sum."""
    return _norm(residual, update, weight, eps, float_weight)


def _norm(
    x: Tensor, update: Tensor | None, weight: Tensor, eps: float, float_weight: bool
) -> Tensor:
    _require_dense(x, *(() if update is None else (update,)))
    count, width = x.shape
    out, block = x.new_empty((count, width)), power_of_two(width)
    sizes = {"WIDTH": width, "BLOCK": block, "num_warps": min(16, max(1, block // 256))}
    flags = {"ADD": update is not None, "FLOAT_WEIGHT": float_weight, "enable_fp_fusion": False}
    more = x if update is None else update.contiguous()
    with torch.cuda.device(x.get_device()):
        norm_kernel[count,](x, more, weight, out, x.stride(0), eps, **sizes, **flags)
    return out


def rope_and_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    head_size: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    interleaved: bool,
    keys: Tensor,
    values: Tensor,
    start: int | Tensor,
    float_weight: bool = False,
) -> Tensor:
    """QK-norm, rotary embedding (Su et al., 2021), and keys and values into the cache.

    Args:
        qkv: [T, (heads + 2 kv_heads) * head_size].
        cos, sin: [T, n] or [T, 1, n]: what the first n numbers of a head, and their partners,
            are multiplied with; the sign of a partner is in `sin`.
        q_norm, k_norm: [head_size], weights of a norm over each head before; None for none.
        eps, float_weight: of these norms, see `rms_norm`.
        interleaved: partners are neighbours, not n / 2 apart.
        keys, values: [kv_heads, slots, head_size], written from slot `start` on.
        start: the same on the host, or int32 [1] on the device.

    Returns:
        Queries [T, heads, head_size].
    """
    _require_dense(qkv, cos, sin, keys, values)
    if cos.stride(0) != sin.stride(0) or keys.stride() != values.stride():
        raise ValueError("cos and sin, and keys and values, must lie alike")
    query = qkv.new_empty((len(qkv), heads, head_size))
    norms = qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm
    strides = qkv.stride(0), cos.stride(0), *keys.stride()[:2]
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "SIZE": head_size, "ROTARY": cos.shape[-1]}
    blocks = {"BLOCK_H": 4, "BLOCK_D": power_of_two(head_size), "enable_fp_fusion": False}
    flags = {"NORMED": q_norm is not None, "FLOAT_WEIGHT": float_weight}
    flags |= {"INTERLEAVED": interleaved, "ON_DEVICE": isinstance(start, Tensor)}
    tensors = qkv, cos, sin, *norms, query, keys, values, start
    grid = len(qkv), -(-(heads + 2 * kv_heads) // 4)
    with torch.cuda.device(qkv.get_device()):
        rope_kernel[grid](*tensors, *strides, eps, **sizes, **blocks, **flags)
    return query


def gate(gate_up: Tensor, activation: str) -> Tensor:
    """The activation ("silu" or "gelu_tanh") of the first half of [T, 2 n] times the second."""
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"no kernel for the activation {activation!r}")
    _require_dense(gate_up)
    count, width = len(gate_up), gate_up.shape[1] // 2
    out, block = gate_up.new_empty((count, width)), min(1024, power_of_two(width))
    flags = {"GELU": activation == "gelu_tanh", "enable_fp_fusion": False}
    with torch.cuda.device(gate_up.get_device()):
        gate_kernel[count, -(-width // block)](
            gate_up, out, gate_up.stride(0), WIDTH=width, BLOCK=block, **flags
        )
    return out


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best logits of each row, of equal ones the lowest token first.

    Args:
        logits: [R, V].
        k: from 1 to `MOST_BEST`, at most V.

    Returns:
        Values float32 [R, k], tokens int32 [R, k], and the logsumexp of each row, float32 [R]:
        NaN if a logit is.
    """
    rows, vocabulary = logits.shape
    blocks = -(-vocabulary // _BLOCK)
    if not 1 <= k <= min(MOST_BEST, vocabulary) or blocks > _MOST_BLOCKS:
        raise ValueError(f"no kernel for the best {k} of {vocabulary:,} logits")
    _require_dense(logits)
    numbers = partial(torch.empty, device=logits.device, dtype=torch.float32)
    whole = partial(numbers, dtype=torch.int32)
    part = numbers(rows, blocks, k), whole(rows, blocks, k)
    sums = numbers(rows, blocks), numbers(rows, blocks)
    found = numbers(rows, k), whole(rows, k), numbers(rows)
    block, held, joined = (power_of_two(n) for n in (vocabulary, blocks, blocks * k))
    with torch.cuda.device(logits.get_device()):
        block_top_k_kernel[rows, blocks](
            *(logits, *part, *sums, logits.stride(0), vocabulary, k, min(_BLOCK, block)),
            num_warps=8,
        )
        join_top_k_kernel[rows,](*part, *sums, *found, blocks, vocabulary, k, held, joined)
    return found


@dataclass(frozen=True, slots=True)
class KernelShape:
    """What the kernels of a model are compiled for; see the functions that take it."""

    dtype: torch.dtype
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int
    rotary: int
    float_weight: bool = False
    qk_norm: bool = False
    interleaved: bool = False
    activation: str = "silu"
    softcap: float | None = None
    sliding_window: int | None = None
    best: tuple[int, ...] = (1,)


def prepare(
    shape: KernelShape,
    device: torch.device,
    widths: Sequence[int],
    slots: int,
    workers: int | None = None,
) -> None:
    """Compile what steps of a model launch, in parallel threads.

    Every kernel runs once, on ones; what is compiled already takes no time.

    Args:
        shape: of the model.
        device: where it runs.
        widths: tokens of the steps.
        slots: of the cache.
        workers: threads; None for as many as there are cores.

    Raises:
        Exception: whatever Triton raises.
    """
    ones = partial(torch.ones, dtype=shape.dtype, device=device)
    whole = partial(ones, dtype=torch.int32)
    norm_type = torch.float32 if shape.float_weight else shape.dtype
    heads, kv_heads, size = sizes = shape.heads, shape.kv_heads, shape.head_size
    row, weight = ones(1, shape.hidden), ones(shape.hidden, dtype=norm_type)
    norm = ones(size, dtype=norm_type) if shape.qk_norm else None
    qkv, angle, length = ones(1, (heads + 2 * kv_heads) * size), ones(1, shape.rotary), whole(1)
    slot = ones(kv_heads, 2, size)
    # As many slots as the cache has, all in the place of one.
    cache = slot[None, :, :1].expand(-1, -1, slots, -1)
    calls: list[Callable[[], object]] = [
        lambda: rms_norm(row, weight, 1.0, shape.float_weight),
        lambda: add_rms_norm(row.clone(), row, weight, 1.0, shape.float_weight),
        lambda: gate(ones(1, 2 * shape.intermediate), shape.activation),
        *(partial(top_k, ones(1, shape.vocabulary), k) for k in shape.best),
    ]
    rope = partial(rope_and_write, qkv, angle, angle, *sizes, norm, norm, 1.0, shape.interleaved)
    calls += [partial(rope, slot, slot, start, shape.float_weight) for start in (0, length)]
    # By what is compiled for it, one of the widths.
    launches = {}
    for width in widths:
        cut = plan(width, heads // kv_heads, *sizes[1:], slots, row.element_size(), gpu_of(device))
        launches[replace(cut, splits=power_of_two(cut.splits))] = width
    for width, window in product(launches.values(), {None, shape.sliding_window}):
        mask = CapturedMask(DeviceMask(length, whole(width), whole(width, words_for(width))), slots)
        query = ones(1, width, heads, size).transpose(1, 2)
        calls.append(
            partial(triton_attention, query, cache, cache, mask, 1.0, window, shape.softcap)
        )
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def _require_dense(*tensors: Tensor) -> None:
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError("the last dimension must be dense")
