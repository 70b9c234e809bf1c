"""The Triton kernels of the fused attention; importing this needs the package triton.

Flash-Decoding (Dao et al., 2023): the keys of a step are dealt out over several programs, its
splits, each of which leaves the softmax over its share and the logarithm of its weight; a second
kernel joins them.  The queries of all heads that share a key head are the rows of one matrix, so
that keys are read once for all of them.  Softmax is in base 2, which is what the hardware computes.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)

# Of lengths, widths and windows there are many: none may compile another kernel, as Triton does
# for numbers that are 1 or divisible by 16, and for addresses.  The length is a number of a step
# among others, at another address for each width.
_ANY = ["count", "window", "splits", "length"]


@triton.jit
def _tanh(x):
    """Hyperbolic tangent without loss of digits near 0, where 1 - 2 / (1 + exp(2 x)) has none."""
    square = x * x
    # Its series; at 0.25 the next term is 2e-10 of the result.
    series = 62.0 / 2835 + square * (-1382.0 / 155925)
    series = 2.0 / 15 + square * (-17.0 / 315 + square * series)
    series = x * (1 + square * (-1.0 / 3 + square * series))
    return tl.where(square < 0.0625, series, 1 - 2 / (1 + tl.exp2(x * (2 * _LOG2_E))))


@triton.jit
def _score(rows, keys, scaling, softcap, CAPPED: tl.constexpr, DOT: tl.constexpr):
    """Scores of a tile of keys [N, D] for rows [M, D], times log2(e): float32 [M, N]."""
    # Float32 is multiplied as float32: TF32 would not be exact.
    scores = tl.dot(rows, tl.trans(keys.to(DOT)), input_precision="ieee")
    if CAPPED:
        scores = _tanh(scores * (scaling / softcap)) * (softcap * _LOG2_E)
    else:
        scores = scores * (scaling * _LOG2_E)
    return scores


@triton.jit
def _absorb(out, total, top, scores, values, DOT: tl.constexpr):
    """Add a tile of keys to the running softmax of every row.

    `out` [M, D] and `total` [M] are sums of weights 2 ** (score - top), `top` [M] the highest
    score so far; scores are [M, N], minus infinity where a key is not seen, values [N, D].
    """
    higher = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing yet: minus infinity less itself would be no number.
    base = tl.where(higher == float("-inf"), 0.0, higher)
    fade = tl.exp2(top - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * fade + tl.sum(weights, 1)
    out = tl.dot(weights.to(DOT), values.to(DOT), out * fade[:, None], input_precision="ieee")
    return out, total, higher


@triton.jit(do_not_specialize=_ANY)
def attend(
    query,
    key,
    value,
    own_key,
    own_value,
    out,
    lse,
    length,
    bits,
    positions,
    query_head,
    query_token,
    key_head,
    key_slot,
    value_head,
    value_slot,
    own_key_head,
    own_key_token,
    own_value_head,
    own_value_token,
    out_head,
    out_token,
    out_split,
    count,
    window,
    scaling,
    softcap,
    GROUPS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DOT: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    ALONE: tl.constexpr,
):
    """Attention of some rows of one key head over one split of its keys.

    The grid is (tiles of rows, key heads, splits).  Row r of a key head is token r % count of its
    query head r // count.  The keys are the cached ones, filled up to a whole tile, and then the
    step's own; each split has as many tiles of them as the others, the last ones fewer or none.

    Args:
        query: [H, count, DEPTH], whose last dimension is dense, like that of all below.
        key, value: [K, slots, DEPTH], the first `length` slots count.
        own_key, own_value: [K, count, DEPTH].
        out: [H, count, splits, DEPTH]: float32, or with one split in any type.
        lse: float32 [H, count, splits]: log2 of each split's weight, minus infinity where a split
            saw nothing; `out` is not written there.  Not written with one split.
        length: int32 [1].
        bits: int32 [count, ceil(count / 32)], who sees whom among the own keys.
        positions: int64 [count], read where WINDOWED.
        query_head, ..., out_split: strides, in elements.
        count: tokens of the step.
        window: how far back a query sees, in positions, where WINDOWED.
        scaling: multiplies the scores.
        softcap: where CAPPED, scores become softcap * tanh(scores / softcap).
        GROUPS: query heads per key head.
        BLOCK_M, BLOCK_N: rows and cached keys of a tile.
        BLOCK_O: own keys of a tile, which divides 32 and BLOCK_N.
        BLOCK_D: DEPTH as a power of two.
        DOT: the type in which matrices are multiplied.
        ALONE: whether there is one split.
    """
    head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = row < GROUPS * count
    token = row % count
    query_at = head * GROUPS + row // count
    depth = tl.arange(0, BLOCK_D)
    deep = depth < DEPTH
    rows = tl.load(
        query + (query_at * query_head + token * query_token)[:, None] + depth[None, :],
        mask=real[:, None] & deep[None, :],
        other=0.0,
    ).to(DOT)
    cached = tl.load(length)
    first = 0
    if WINDOWED:
        position = tl.load(positions + token, mask=real, other=2147483647).to(tl.int32)
        # No row of this tile sees a key at or before this.
        horizon = tl.min(position, 0) - window
        first = tl.maximum(tl.minimum(horizon + 1, cached), 0) // BLOCK_N * BLOCK_N

    # Where the tiles of this split begin and end; own keys count from `filled` on.
    filled = tl.cdiv(cached, BLOCK_N) * BLOCK_N
    tiles = tl.cdiv(filled - first, BLOCK_N) + tl.cdiv(count, BLOCK_N)
    share = tl.cdiv(tiles, tl.num_programs(2)) * BLOCK_N
    begin = first + split * share
    end = begin + share

    accumulated = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    place = tl.arange(0, BLOCK_N)

    for start in tl.range(begin, tl.minimum(end, cached), BLOCK_N):
        # Slots behind the last cached one hold anything, even what is no number.
        there = (start + place < cached)[:, None] & deep[None, :]
        # A text may have more than 2 ** 31 numbers in its keys.
        far = head * key_head + tl.cast(start, tl.int64) * key_slot
        keys = tl.load(
            key + far + place[:, None] * key_slot + depth[None, :], mask=there, other=0.0
        )
        scores = _score(rows, keys, scaling, softcap, CAPPED, DOT)
        seen = (start + place < cached)[None, :]
        if WINDOWED:
            seen = seen & ((start + place)[None, :] > (position - window)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        far = head * value_head + tl.cast(start, tl.int64) * value_slot
        values = tl.load(
            value + far + place[:, None] * value_slot + depth[None, :], mask=there, other=0.0
        )
        accumulated, total, top = _absorb(accumulated, total, top, scores, values, DOT)

    # Tiles of one word of the mask: with a load for each pair of tokens, registers ran out.
    narrow = tl.arange(0, BLOCK_O)
    own_end = tl.minimum(end - filled, count)
    for start in tl.range(tl.maximum(begin - filled, 0), own_end, BLOCK_O):
        other = start + narrow
        there = (other < count)[:, None] & deep[None, :]
        keys = tl.load(
            own_key + head * own_key_head + other[:, None] * own_key_token + depth[None, :],
            mask=there,
            other=0.0,
        )
        scores = _score(rows, keys, scaling, softcap, CAPPED, DOT)
        word = tl.load(bits + token * tl.cdiv(count, 32) + start // 32, mask=real, other=0)
        seen = ((word[:, None] >> (other % 32)[None, :]) & 1) != 0
        if WINDOWED:
            whence = tl.load(positions + other, mask=other < count, other=0).to(tl.int32)
            seen = seen & (whence[None, :] > (position - window)[:, None])
        scores = tl.where(seen & (other < count)[None, :], scores, float("-inf"))
        values = tl.load(
            own_value + head * own_value_head + other[:, None] * own_value_token + depth[None, :],
            mask=there,
            other=0.0,
        )
        accumulated, total, top = _absorb(accumulated, total, top, scores, values, DOT)

    result = accumulated / tl.where(total == 0, 1.0, total)[:, None]
    target = query_at * out_head + token * out_token + split * out_split
    wanted = real
    if not ALONE:
        # Where nothing was seen, top is minus infinity and stays it.
        tl.store(
            lse + (query_at * count + token) * tl.num_programs(2) + split,
            top + tl.log2(tl.where(total == 0, 1.0, total)),
            mask=real,
        )
        wanted = real & (total > 0)
    tl.store(
        out + target[:, None] + depth[None, :],
        result.to(out.dtype.element_ty),
        mask=wanted[:, None] & deep[None, :],
    )


@triton.jit(do_not_specialize=_ANY)
def join(
    part,
    lse,
    out,
    out_head,
    out_token,
    count,
    splits,
    DEPTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """The splits of one row, joined; the grid is (H * count).

    Args:
        part: float32 [H, count, splits, DEPTH], unwritten where `lse` is minus infinity.
        lse: float32 [H, count, splits], log2 of each split's weight.
        out: [H, count, DEPTH], whose last dimension is dense.
        out_head, out_token: its other strides, in elements.
        BLOCK_S, BLOCK_D: `splits` and DEPTH as powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    split = row * splits + tl.arange(0, BLOCK_S)
    depth = tl.arange(0, BLOCK_D)
    weight = tl.load(lse + split, mask=tl.arange(0, BLOCK_S) < splits, other=float("-inf"))
    top = tl.max(weight, 0)
    # Where no split saw anything, the sum is 0.
    weight = tl.exp2(weight - tl.where(top == float("-inf"), 0.0, top))
    values = tl.load(
        part + split[:, None] * DEPTH + depth[None, :],
        mask=(weight > 0)[:, None] & (depth < DEPTH)[None, :],
        other=0.0,
    )
    total = tl.sum(weight, 0)
    result = tl.sum(values * weight[:, None], 0) / tl.where(total == 0, 1.0, total)
    target = out + row // count * out_head + row % count * out_token
    tl.store(target + depth, result.to(out.dtype.element_ty), mask=depth < DEPTH)


INTERPRETED = not isinstance(attend, triton.JITFunction)
"""Whether Triton's interpreter runs the kernels (TRITON_INTERPRET=1), on a CPU, too."""
