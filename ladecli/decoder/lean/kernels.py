"""Triton kernels for what stands between a layer's products; importing this needs triton.

Numbers are computed in float32, and rounded wherever transformers rounds them: its operations
leave each result in the type of their inputs.  So in half precision these kernels give the same
bits, but for the order of a sum.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rounded(x, TYPE: tl.constexpr):
    """Float32 `x`, as it would be read back from a tensor of a type."""
    return x.to(TYPE).to(tl.float32)


@triton.jit
def rotate(
    query,
    key,
    cos,
    sin,
    query_out,
    key_out,
    query_token,
    query_head,
    key_token,
    key_head,
    cos_token,
    sin_token,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Turn queries and keys of one token and `HEADS` heads; outputs are [T, heads, 2 * HALF]."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    inside = place < HALF
    cos_at, sin_at = cos + token * cos_token + place, sin + token * sin_token + place
    cos_low = tl.load(cos_at, mask=inside, other=0.0).to(tl.float32)
    cos_high = tl.load(cos_at + HALF, mask=inside, other=0.0).to(tl.float32)
    sin_low = tl.load(sin_at, mask=inside, other=0.0).to(tl.float32)
    sin_high = tl.load(sin_at + HALF, mask=inside, other=0.0).to(tl.float32)
    # A program has heads of queries, of keys, or of both.
    asks = inside & (head < QUERIES)
    told = inside & (head >= QUERIES) & (head < QUERIES + KEYS)
    query_at = query + token * query_token + head * query_head + place
    key_at = key + token * key_token + (head - QUERIES) * key_head + place
    low = tl.load(query_at, mask=asks, other=0.0) + tl.load(key_at, mask=told, other=0.0)
    high = tl.load(query_at + HALF, mask=asks, other=0.0)
    high += tl.load(key_at + HALF, mask=told, other=0.0)
    TYPE: tl.constexpr = query_out.dtype.element_ty
    low, high = low.to(tl.float32), high.to(tl.float32)
    new_low = _rounded(low * cos_low, TYPE) - _rounded(high * sin_low, TYPE)
    new_high = _rounded(high * cos_high, TYPE) + _rounded(low * sin_high, TYPE)
    new_low, new_high = new_low.to(TYPE), new_high.to(TYPE)
    query_to = query_out + (token * QUERIES + head) * (2 * HALF) + place
    key_to = key_out + (token * KEYS + head - QUERIES) * (2 * HALF) + place
    tl.store(query_to, new_low, mask=asks)
    tl.store(query_to + HALF, new_high, mask=asks)
    tl.store(key_to, new_low, mask=told)
    tl.store(key_to + HALF, new_high, mask=told)


@triton.jit
def silu_and_multiply(both, out, token_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """`silu(gate) * up` for one block of one token, from [T, 2 * WIDTH] to [T, WIDTH]."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < WIDTH
    source = both + token * token_stride + place
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=inside, other=0.0).to(tl.float32)
    TYPE: tl.constexpr = out.dtype.element_ty
    result = _rounded(gate / (1.0 + tl.exp(-gate)), TYPE) * up
    tl.store(out + token * WIDTH + place, result.to(TYPE), mask=inside)


@triton.jit(do_not_specialize=["inner"])
def normalise(
    x,
    weight,
    out,
    inner,
    outer_stride,
    inner_stride,
    outer_out,
    inner_out,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    OFFSET: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Normalise one row by its root mean square.

    OFFSET is added to the weight; EARLY: round before the weight, too.
    """
    row = tl.program_id(0).to(tl.int64)
    outer, within = row // inner, row % inner
    place = tl.arange(0, BLOCK)
    inside = place < WIDTH
    source = x + outer * outer_stride + within * inner_stride + place
    value = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32) + OFFSET
    value *= tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
    if EARLY:
        value = _rounded(value, out.dtype.element_ty)
    target = out + outer * outer_out + within * inner_out + place
    tl.store(target, (value * scale).to(out.dtype.element_ty), mask=inside)


INTERPRETED = not isinstance(rotate, triton.JITFunction)
"""Whether Triton's interpreter runs the kernels (TRITON_INTERPRET=1), on a CPU, too."""
