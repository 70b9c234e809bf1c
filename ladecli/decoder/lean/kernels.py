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
def _weighed(value, root, scale, EARLY: tl.constexpr, TYPE: tl.constexpr):
    """Float32 numbers times the reciprocal root of their mean square, times a scale.

    EARLY: round before the scale, too.
    """
    value *= root
    if EARLY:
        value = _rounded(value, TYPE)
    return _rounded(value * scale, TYPE)


@triton.jit
def _read(query, key, is_query, is_key):
    """Numbers at either of two places, by masks of which at most one is true."""
    return tl.load(query, mask=is_query, other=0.0) + tl.load(key, mask=is_key, other=0.0)


# The length lies among the numbers of a step: not at every address that a kernel could be compiled
# for.
@triton.jit(do_not_specialize=["length"])
def rotate(
    query,
    key,
    cos,
    sin,
    query_weight,
    key_weight,
    query_out,
    key_out,
    keys,
    values,
    length,
    eps,
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
    TURNED: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    SHARED: tl.constexpr,
    ROUNDED: tl.constexpr,
    NORMED: tl.constexpr,
    OFFSET: tl.constexpr,
    EARLY: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Turn queries and keys of one token and `HEADS` heads; outputs are [T, heads, 2 * HALF].

    A head's first 2 * TURNED numbers are turned, in pairs, and what is behind them stays.
    NEIGHBOURS: a pair are two neighbours; else one of them is in the first half of those.
    SHARED: an angle of the first half is for both of a pair; else each number has its own.
    ROUNDED: products are rounded before they are added.
    NORMED: each head is normalised first, its weight and EARLY as in `normalise`.
    WRITE: copy turned keys into `keys` [KEYS, slots, 2 * HALF], and into `values` what lies behind
    the keys of each token, one head for each of theirs; token t goes to slot `length` + t.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    inside, turned = place < HALF, place < TURNED
    low_at, high_at = place, place + TURNED
    if NEIGHBOURS:
        low_at, high_at = 2 * place, 2 * place + 1
    elif TURNED < HALF:
        # What stays makes pairs, too: its first half, and its second.
        low_at = tl.where(turned, place, place + TURNED)
        high_at = tl.where(turned, place + TURNED, place + HALF)
    cos_at, sin_at = cos + token * cos_token, sin + token * sin_token
    angle, other_angle = low_at, high_at
    if SHARED:
        angle, other_angle = place, place
    cos_low = tl.load(cos_at + angle, mask=turned, other=1.0).to(tl.float32)
    cos_high = tl.load(cos_at + other_angle, mask=turned, other=1.0).to(tl.float32)
    sin_low = tl.load(sin_at + angle, mask=turned, other=0.0).to(tl.float32)
    sin_high = tl.load(sin_at + other_angle, mask=turned, other=0.0).to(tl.float32)
    # A program has heads of queries, of keys, of values, or of some of them.
    behind = head - QUERIES
    is_query = inside & (behind < 0)
    is_key = inside & (behind >= 0) & (behind < KEYS)
    is_value = inside & (behind >= KEYS) & (behind < 2 * KEYS) & WRITE
    query_at = query + token * query_token + head * query_head
    key_at = key + token * key_token + behind * key_head
    low = _read(query_at + low_at, key_at + low_at, is_query, is_key | is_value)
    high = _read(query_at + high_at, key_at + high_at, is_query, is_key | is_value)
    TYPE: tl.constexpr = query_out.dtype.element_ty
    if WRITE:
        slot = tl.load(length).to(tl.int64) + token
        value_to = values + (behind - KEYS).to(tl.int64) * values_head + slot * values_slot
        tl.store(value_to + low_at, low, mask=is_value)
        tl.store(value_to + high_at, high, mask=is_value)
    low, high = low.to(tl.float32), high.to(tl.float32)
    if NORMED:
        root = tl.rsqrt(tl.sum(low * low + high * high, 1)[:, None] / (2 * HALF) + eps)
        scale = _read(query_weight + low_at, key_weight + low_at, is_query, is_key).to(tl.float32)
        low = _weighed(low, root, scale + OFFSET, EARLY, TYPE)
        scale = _read(query_weight + high_at, key_weight + high_at, is_query, is_key).to(tl.float32)
        high = _weighed(high, root, scale + OFFSET, EARLY, TYPE)
    BETWEEN: tl.constexpr = TYPE if ROUNDED else tl.float32
    new_low = _rounded(low * cos_low, BETWEEN) - _rounded(high * sin_low, BETWEEN)
    new_high = _rounded(high * cos_high, BETWEEN) + _rounded(low * sin_high, BETWEEN)
    new_low, new_high = new_low.to(TYPE), new_high.to(TYPE)
    query_to = query_out + (token * QUERIES + head) * (2 * HALF)
    key_to = key_out + (token * KEYS + behind) * (2 * HALF)
    tl.store(query_to + low_at, new_low, mask=is_query)
    tl.store(query_to + high_at, new_high, mask=is_query)
    tl.store(key_to + low_at, new_low, mask=is_key)
    tl.store(key_to + high_at, new_high, mask=is_key)
    if WRITE:
        key_to = keys + behind.to(tl.int64) * keys_head + slot * keys_slot
        tl.store(key_to + low_at, new_low, mask=is_key)
        tl.store(key_to + high_at, new_high, mask=is_key)


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


@triton.jit(do_not_specialize=["length"])
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
    """A float32 row, 0 behind its width, over its root mean square, times a scale."""
    root = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
    return _weighed(value, root, scale, EARLY, TYPE)


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
    FACTOR: tl.constexpr,
    BEHIND: tl.constexpr,
    BEHIND_OFFSET: tl.constexpr,
    BEHIND_EARLY: tl.constexpr,
    AHEAD: tl.constexpr,
    AHEAD_OFFSET: tl.constexpr,
    AHEAD_EARLY: tl.constexpr,
):
    """One row of `x + FACTOR * said`, and that sum normalised; all are [T, WIDTH].

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
    if FACTOR != 1.0:
        value = _rounded(value * FACTOR, TYPE)
    value = _rounded(base + value, TYPE)
    tl.store(total + at, value.to(TYPE), mask=inside)
    if AHEAD:
        value = _normalised(value, last + AHEAD_OFFSET, ahead_eps, WIDTH, AHEAD_EARLY, TYPE)
        tl.store(normed + at, value.to(TYPE), mask=inside)


INTERPRETED = not isinstance(rotate, triton.JITFunction)
"""Whether Triton's interpreter runs the kernels (TRITON_INTERPRET=1), on a CPU, too."""
