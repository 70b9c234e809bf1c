"""The Triton kernels of split-KV tree attention; importing this needs the package triton.

Flash-Decoding (Dao et al., 2023): the keys of a step are shared out over several programs, its
splits.  Each leaves the softmax over its share and the logarithm of its weight; a second kernel
joins them.  The queries of all heads that share a key head are rows of one matrix, so that keys
are read once for all of them.  Softmax is in base 2, which is what the hardware computes.
"""

# Triton's language has no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)

# Numbers and addresses that differ between steps must not compile another kernel, as Triton does
# for numbers that are 1 or divisible by 16, and for addresses.
_VARYING = ["count", "window", "splits", "sinks", "length", "positions", "words"]


@triton.jit
def begin_early(EARLY: tl.constexpr):
    """Let the next kernel be set up from here on, and wait for what the last ones wrote."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _score(rows, keys, scaling, softcap, CAPPED: tl.constexpr, DOT: tl.constexpr):
    """Scores of keys [N, D] for rows [M, D], times log2(e): float32 [M, N]."""
    # Float32 is multiplied as such: TF32 would not be exact.
    scores = tl.dot(rows, tl.trans(keys.to(DOT)), input_precision="ieee")
    if CAPPED:
        # tanh(x) = 1 - 2 / (1 + exp(2 x)).
        tangent = 1 - 2 / (1 + tl.exp2(scores * (scaling / softcap * 2 * _LOG2_E)))
        return tangent * (softcap * _LOG2_E)
    return scores * (scaling * _LOG2_E)


@triton.jit
def _absorb(out, total, top, scores, values, DOT: tl.constexpr):
    """Add a tile of keys to the running softmax of every row.

    `out` [M, D] and `total` [M] are sums of weights 2 ** (score - top), `top` [M] the highest
    score so far; scores are [M, N], -inf where a key is not seen, values [N, D].
    """
    higher = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing yet: -inf less itself would be NaN.
    base = tl.where(higher == float("-inf"), 0.0, higher)
    fade = tl.exp2(top - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * fade + tl.sum(weights, 1)
    out = tl.dot(weights.to(DOT), values.to(DOT), out * fade[:, None], input_precision="ieee")
    return out, total, higher


@triton.jit(do_not_specialize=_VARYING)
def attend(
    query, key, value, sinks, out, lse, length, positions, words,
    query_head, query_token, key_head, key_slot, value_head, value_slot,
    out_head, out_token, out_split, count, window, scaling, softcap,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_D: tl.constexpr, DOT: tl.constexpr, WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attention of a tile of rows of one key head over one split of its keys.

    The grid is (tiles of rows, key heads, splits).  Row r of a key head is token r % count of
    its query head r // count.  Keys are the cached ones, filled up to a whole tile, then the
    step's own; splits have equal numbers of tiles, the last ones fewer or none.

    Args:
        query: [H, count, SIZE], the last dimension dense, as in all below.
        key, value: [K, slots, SIZE]: `length` cached slots, then `count` of the step.
        sinks: [H], scores of a key that all rows of a head see, with a value of zero, if SINKS.
        out: [H, count, splits, SIZE].
        lse: float32 [H, count, splits], log2 of each split's weight: -inf, with `out` unwritten,
            where a split saw nothing.
        length: int32 [1], cached slots.
        positions: int32 [count], read if WINDOWED.
        words: int32 [count, ceil(count / 32)], who sees whom within the step.
        query_head, ..., out_split: strides in elements.
        window: positions that a query sees back, if WINDOWED.
        softcap: scores become softcap * tanh(scores / softcap), if CAPPED.
        GROUPS: query heads per key head.
        BLOCK_M, BLOCK_N, BLOCK_O: rows, cached keys and own keys of a tile; BLOCK_O divides
            BLOCK_N and 32.
        BLOCK_D: SIZE as a power of two.
        DOT: type in which matrices are multiplied.
    """
    begin_early(EARLY)
    head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = row < GROUPS * count
    token = row % count
    query_at = head * GROUPS + row // count
    depth = tl.arange(0, BLOCK_D)
    deep = depth < SIZE
    rows = tl.load(
        query + (query_at * query_head + token * query_token)[:, None] + depth[None, :],
        mask=real[:, None] & deep[None, :],
        other=0.0,
    ).to(DOT)
    cached = tl.load(length)
    first = 0
    if WINDOWED:
        position = tl.load(positions + token, mask=real, other=2147483647)
        # No row of this tile sees a key at or before this position.
        horizon = tl.min(position, 0) - window
        first = tl.maximum(tl.minimum(horizon + 1, cached), 0) // BLOCK_N * BLOCK_N

    # Where the tiles of this split begin and end; own keys count from `filled` on.
    filled = tl.cdiv(cached, BLOCK_N) * BLOCK_N
    tiles = tl.cdiv(filled - first, BLOCK_N) + tl.cdiv(count, BLOCK_N)
    # With fewer keys than there are rows, a split would leave more bytes to join than it reads.
    least = tl.cdiv(GROUPS * count, BLOCK_N)
    share = tl.maximum(tl.cdiv(tiles, tl.num_programs(2)), least) * BLOCK_N
    begin = first + split * share
    end = begin + share

    accumulated = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    if SINKS:
        # The first split has seen its sink before anything else.
        first_split = row < tl.where(split == 0, GROUPS * count, 0)
        sink = tl.load(sinks + query_at, mask=first_split, other=float("-inf"))
        top = sink.to(tl.float32) * _LOG2_E
        total = tl.where(first_split, 1.0, total)
    # A text may have more than 2 ** 31 numbers in its keys.
    key += head * key_head
    value += head * value_head
    place = tl.arange(0, BLOCK_N)
    for start in tl.range(begin, tl.minimum(end, cached), BLOCK_N):
        slot = start + place
        # Slots from `cached` on may hold anything, even NaN.
        there = (slot < cached)[:, None] & deep[None, :]
        far = tl.cast(start, tl.int64) * key_slot
        keys = tl.load(
            key + far + place[:, None] * key_slot + depth[None, :], mask=there, other=0.0
        )
        scores = _score(rows, keys, scaling, softcap, CAPPED, DOT)
        seen = (slot < cached)[None, :]
        if WINDOWED:
            seen = seen & (slot[None, :] > (position - window)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        far = tl.cast(start, tl.int64) * value_slot
        values = tl.load(
            value + far + place[:, None] * value_slot + depth[None, :], mask=there, other=0.0
        )
        accumulated, total, top = _absorb(accumulated, total, top, scores, values, DOT)

    # One word of the mask a tile: with a load for each pair of tokens, registers ran out.
    key += tl.cast(cached, tl.int64) * key_slot
    value += tl.cast(cached, tl.int64) * value_slot
    narrow = tl.arange(0, BLOCK_O)
    own_end = tl.minimum(end - filled, count)
    for start in tl.range(tl.maximum(begin - filled, 0), own_end, BLOCK_O):
        other = start + narrow
        there = (other < count)[:, None] & deep[None, :]
        keys = tl.load(key + other[:, None] * key_slot + depth[None, :], mask=there, other=0.0)
        scores = _score(rows, keys, scaling, softcap, CAPPED, DOT)
        word = tl.load(words + token * tl.cdiv(count, 32) + start // 32, mask=real, other=0)
        seen = ((word[:, None] >> (other % 32)[None, :]) & 1) != 0
        if WINDOWED:
            whence = tl.load(positions + other, mask=other < count, other=0)
            seen = seen & (whence[None, :] > (position - window)[:, None])
        scores = tl.where(seen & (other < count)[None, :], scores, float("-inf"))
        values = tl.load(
            value + other[:, None] * value_slot + depth[None, :], mask=there, other=0.0
        )
        accumulated, total, top = _absorb(accumulated, total, top, scores, values, DOT)

    # Where nothing was seen, `top` is -inf and the sum stays -inf.
    total_or_one = tl.where(total == 0, 1.0, total)
    weight_at = (query_at * count + token) * tl.num_programs(2) + split
    tl.store(lse + weight_at, top + tl.log2(total_or_one), mask=real)
    target = query_at * out_head + token * out_token + split * out_split
    tl.store(
        out + target[:, None] + depth[None, :],
        (accumulated / total_or_one[:, None]).to(out.dtype.element_ty),
        mask=(real & (total > 0))[:, None] & deep[None, :],
    )


@triton.jit(do_not_specialize=_VARYING)
def join(
    part, lse, out, out_head, out_token, count, splits,
    SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The splits of one row, joined; the grid is (H * count).

    Args:
        part: [H, count, splits, SIZE], unwritten where `lse` is -inf.
        lse: float32 [H, count, splits], log2 of each split's weight.
        out: [H, count, SIZE], the last dimension dense.
        out_head, out_token: its other strides in elements.
        BLOCK_S, BLOCK_D: `splits` and SIZE as powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    split = row * splits + tl.arange(0, BLOCK_S)
    depth = tl.arange(0, BLOCK_D)
    weight = tl.load(lse + split, mask=tl.arange(0, BLOCK_S) < splits, other=float("-inf"))
    # Every token sees itself, so some split has seen something.
    weight = tl.exp2(weight - tl.max(weight, 0))
    values = tl.load(
        part + split[:, None] * SIZE + depth[None, :],
        mask=(weight > 0)[:, None] & (depth < SIZE)[None, :],
        other=0.0,
    ).to(tl.float32)
    result = tl.sum(values * weight[:, None], 0) / tl.sum(weight, 0)
    target = out + row // count * out_head + row % count * out_token
    tl.store(target + depth, result.to(out.dtype.element_ty), mask=depth < SIZE)


INTERPRETED = not isinstance(attend, triton.JITFunction)
"""True if Triton's interpreter runs the kernels (TRITON_INTERPRET=1), even on a CPU."""
