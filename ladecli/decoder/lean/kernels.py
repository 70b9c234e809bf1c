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
    keys,
    values,
    length,
    query_token,
    query_head,
    key_token,
    key_head,
    cos_token,
    sin_token,
    keys_head,
    keys_slot,
    values_head,
    values_slot,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Turn queries and keys of one token and `HEADS` heads; outputs are [T, heads, 2 * HALF].

    WRITE: copy turned keys into `keys` [KEYS, slots, 2 * HALF], and into `values` what lies behind
    the keys of each token, one head for each of theirs; token t goes to slot `length` + t.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    inside = place < HALF
    cos_at, sin_at = cos + token * cos_token + place, sin + token * sin_token + place
    cos_low = tl.load(cos_at, mask=inside, other=0.0).to(tl.float32)
    cos_high = tl.load(cos_at + HALF, mask=inside, other=0.0).to(tl.float32)
    sin_low = tl.load(sin_at, mask=inside, other=0.0).to(tl.float32)
    sin_high = tl.load(sin_at + HALF, mask=inside, other=0.0).to(tl.float32)
    # A program has heads of queries, of keys, of values, or of some of them.
    behind = head - QUERIES
    asks = inside & (behind < 0)
    told = inside & (behind >= 0) & (behind < KEYS)
    means = inside & (behind >= KEYS) & (behind < 2 * KEYS) & WRITE
    query_at = query + token * query_token + head * query_head + place
    key_at = key + token * key_token + behind * key_head + place
    low = tl.load(query_at, mask=asks, other=0.0) + tl.load(key_at, mask=told | means, other=0.0)
    high = tl.load(query_at + HALF, mask=asks, other=0.0)
    high += tl.load(key_at + HALF, mask=told | means, other=0.0)
    TYPE: tl.constexpr = query_out.dtype.element_ty
    if WRITE:
        slot = tl.load(length).to(tl.int64) + token
        value_to = values + (behind - KEYS).to(tl.int64) * values_head + slot * values_slot + place
        tl.store(value_to, low, mask=means)
        tl.store(value_to + HALF, high, mask=means)
    low, high = low.to(tl.float32), high.to(tl.float32)
    new_low = _rounded(low * cos_low, TYPE) - _rounded(high * sin_low, TYPE)
    new_high = _rounded(high * cos_high, TYPE) + _rounded(low * sin_high, TYPE)
    new_low, new_high = new_low.to(TYPE), new_high.to(TYPE)
    query_to = query_out + (token * QUERIES + head) * (2 * HALF) + place
    key_to = key_out + (token * KEYS + behind) * (2 * HALF) + place
    tl.store(query_to, new_low, mask=asks)
    tl.store(query_to + HALF, new_high, mask=asks)
    tl.store(key_to, new_low, mask=told)
    tl.store(key_to + HALF, new_high, mask=told)
    if WRITE:
        key_to = keys + behind.to(tl.int64) * keys_head + slot * keys_slot + place
        tl.store(key_to, new_low, mask=told)
        tl.store(key_to + HALF, new_high, mask=told)


@triton.jit
def angles(positions, frequencies, cos, sin, scaling, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Cosine and sine of one position's angles, twice each: [T, 2 * HALF]."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < HALF
    position = tl.load(positions + token).to(tl.float32)
    angle = position * tl.load(frequencies + place, mask=inside, other=0.0)
    new_cos = (tl.cos(angle) * scaling).to(cos.dtype.element_ty)
    new_sin = (tl.sin(angle) * scaling).to(cos.dtype.element_ty)
    at = token * (2 * HALF) + place
    tl.store(cos + at, new_cos, mask=inside)
    tl.store(cos + at + HALF, new_cos, mask=inside)
    tl.store(sin + at, new_sin, mask=inside)
    tl.store(sin + at + HALF, new_sin, mask=inside)


@triton.jit
def write(
    key,
    value,
    keys,
    values,
    length,
    key_token,
    key_head,
    value_token,
    value_head,
    keys_head,
    keys_slot,
    values_head,
    values_slot,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy key and value of one token and one head to slot `length` + token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < DEPTH
    slot = tl.load(length).to(tl.int64) + token
    new_key = tl.load(key + token * key_token + head * key_head + place, mask=inside)
    new_value = tl.load(value + token * value_token + head * value_head + place, mask=inside)
    tl.store(keys + head * keys_head + slot * keys_slot + place, new_key, mask=inside)
    tl.store(values + head * values_head + slot * values_slot + place, new_value, mask=inside)


@triton.jit
def move(
    keys,
    values,
    sources,
    targets,
    head_stride,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    MOVED: tl.constexpr,
):
    """Copy slots of one head of one layer over others of them."""
    first = tl.program_id(0).to(tl.int64) * head_stride
    source = tl.load(sources + tl.arange(0, MOVED)).to(tl.int64)[:, None]
    target = tl.load(targets + tl.arange(0, MOVED)).to(tl.int64)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    moves = (source != target) & (place < DEPTH)
    key = tl.load(keys + first + source * DEPTH + place, mask=moves)
    value = tl.load(values + first + source * DEPTH + place, mask=moves)
    # What is a target may be another one's source: all are read before any is written.
    tl.debug_barrier()
    tl.store(keys + first + target * DEPTH + place, key, mask=moves)
    tl.store(values + first + target * DEPTH + place, value, mask=moves)


@triton.jit
def gate(both, out, token_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    """`act(gate) * up` for one block of one token, from [T, 2 * WIDTH] to [T, WIDTH].

    GELU: by its approximation, since (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x)); else SiLU.
    """
    token = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < WIDTH
    source = both + token * token_stride + place
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=inside, other=0.0).to(tl.float32)
    TYPE: tl.constexpr = out.dtype.element_ty
    inner = gate
    if GELU:
        # 2 * sqrt(2 / pi)
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    # Beyond that it is 0 either way, and the exponential infinite.
    result = _rounded(gate / (1.0 + tl.exp(tl.minimum(-inner, 80.0))), TYPE) * up
    tl.store(out + token * WIDTH + place, result.to(TYPE), mask=inside)


@triton.jit
def _normalised(value, scale, eps, WIDTH: tl.constexpr, EARLY: tl.constexpr, TYPE: tl.constexpr):
    """A float32 row, 0 behind its width, over its root mean square, times a scale.

    EARLY: round before the scale, too.
    """
    value *= tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
    if EARLY:
        value = _rounded(value, TYPE)
    return _rounded(value * scale, TYPE)


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
    """Normalise one row by its root mean square; OFFSET is added to the weight."""
    row = tl.program_id(0).to(tl.int64)
    outer, within = row // inner, row % inner
    place = tl.arange(0, BLOCK)
    inside = place < WIDTH
    source = x + outer * outer_stride + within * inner_stride + place
    value = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32) + OFFSET
    TYPE: tl.constexpr = out.dtype.element_ty
    value = _normalised(value, scale, eps, WIDTH, EARLY, TYPE)
    target = out + outer * outer_out + within * inner_out + place
    tl.store(target, value.to(TYPE), mask=inside)


@triton.jit
def add(
    x,
    said,
    behind,
    ahead,
    total,
    normed,
    behind_eps,
    ahead_eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BEHIND: tl.constexpr,
    BEHIND_OFFSET: tl.constexpr,
    BEHIND_EARLY: tl.constexpr,
    AHEAD: tl.constexpr,
    AHEAD_OFFSET: tl.constexpr,
    AHEAD_EARLY: tl.constexpr,
):
    """One row of `x + said`, and that sum normalised; all are [T, WIDTH].

    BEHIND: whether `said` is normalised first; AHEAD: whether the sum is.
    """
    place = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * WIDTH + place
    inside = place < WIDTH
    # All that is read is asked for at once.
    value = tl.load(said + at, mask=inside, other=0.0).to(tl.float32)
    base = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(behind + place, mask=inside & BEHIND, other=0.0).to(tl.float32)
    last = tl.load(ahead + place, mask=inside & AHEAD, other=0.0).to(tl.float32)
    TYPE: tl.constexpr = total.dtype.element_ty
    if BEHIND:
        value = _normalised(value, first + BEHIND_OFFSET, behind_eps, WIDTH, BEHIND_EARLY, TYPE)
    value = _rounded(base + value, TYPE)
    tl.store(total + at, value.to(TYPE), mask=inside)
    if AHEAD:
        value = _normalised(value, last + AHEAD_OFFSET, ahead_eps, WIDTH, AHEAD_EARLY, TYPE)
        tl.store(normed + at, value.to(TYPE), mask=inside)


INTERPRETED = not isinstance(rotate, triton.JITFunction)
"""Whether Triton's interpreter runs the kernels (TRITON_INTERPRET=1), on a CPU, too."""
