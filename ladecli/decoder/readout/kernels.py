"""The Triton kernels of `quick`; importing this needs the package triton."""

from __future__ import annotations

import triton
import triton.language as tl

_NONE = tl.constexpr(2**31 - 1)
"""Stands for no token, behind all that there are."""


@triton.jit
def _best(values, tokens, left):
    """The greatest of the values that are left, and of those as great the lowest token."""
    value = tl.max(tl.where(left, values, float("-inf")), 0)
    return value, tl.min(tl.where(left & (values == value), tokens, _NONE), 0)


@triton.jit
def _weights(values, top):
    """exp(value - top), where `top` is minus infinity if nothing is possible."""
    return tl.exp(values - tl.where(top == float("-inf"), 0.0, top))


@triton.jit
def _harsher(values, present, penalty, there):
    """Values of tokens with the penalty that those have which are present."""
    harsher = tl.where(values < 0, values * penalty, tl.div_rn(values, penalty))
    return tl.where(tl.load(present, mask=there, other=0) != 0, harsher, values)


@triton.jit
def rank(
    logits,
    present,
    penalty,
    values,
    tokens,
    tops,
    sums,
    row_stride,
    present_stride,
    vocabulary,
    PENALIZED: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The greatest logits of one block of one row; the grid is (rows, blocks).

    Args:
        logits: [rows, vocabulary], whose rows are dense.
        present: uint8 [rows, vocabulary], likewise: 0 but for tokens that are penalised; neither
            this nor the penalty is looked at unless PENALIZED.
        values, tokens: float32 and int32 [rows, blocks, COUNT], the greatest first; _NONE where
            a block has no more tokens.
        tops, sums: float32 [rows, blocks], the greatest logit, and the sum of exp(logit - top).
    """
    row = tl.program_id(0).to(tl.int64)
    part = row * tl.num_programs(1) + tl.program_id(1)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    left = token < vocabulary
    value = tl.load(logits + row * row_stride + token, mask=left, other=0.0).to(tl.float32)
    if PENALIZED:
        value = _harsher(value, present + row * present_stride + token, penalty, left)
    top, _ = _best(value, token, left)
    tl.store(tops + part, top)
    tl.store(sums + part, tl.sum(tl.where(left, _weights(value, top), 0.0), 0))
    for place in tl.static_range(COUNT):
        best, which = _best(value, token, left)
        tl.store(values + part * COUNT + place, best)
        tl.store(tokens + part * COUNT + place, which)
        left = left & (token != which)


@triton.jit
def join(
    values,
    tokens,
    tops,
    sums,
    out,
    shares,
    blocks,
    COUNT: tl.constexpr,
    BLOCKS: tl.constexpr,
    FOUND: tl.constexpr,
):
    """The greatest logits of one row, from those of its blocks; the grid is (rows,).

    Args:
        values, tokens, tops, sums: as `rank` left them.
        out, shares: int32 and float32 [rows, COUNT], tokens and their probabilities.
        BLOCKS, FOUND: `blocks`, and all that they found, as powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, BLOCKS)
    top = tl.load(tops + row * blocks + each, mask=each < blocks, other=float("-inf"))
    total = tl.load(sums + row * blocks + each, mask=each < blocks, other=0.0)
    highest = tl.max(top, 0)
    total = tl.sum(total * _weights(top, highest), 0)
    place = tl.arange(0, FOUND)
    there = place < blocks * COUNT
    value = tl.load(values + row * blocks * COUNT + place, mask=there, other=0.0)
    token = tl.load(tokens + row * blocks * COUNT + place, mask=there, other=_NONE)
    left = token < _NONE
    for rank in tl.static_range(COUNT):
        best, which = _best(value, token, left)
        # Where nothing is possible, the total is 0.
        share = _weights(best, highest) / tl.where(total == 0.0, 1.0, total)
        tl.store(out + row * COUNT + rank, which)
        tl.store(shares + row * COUNT + rank, share)
        left = left & (token != which)


@triton.jit
def tops(
    logits,
    present,
    penalty,
    out,
    row_stride,
    present_stride,
    groups,
    SIZE: tl.constexpr,
    HELD: tl.constexpr,
):
    """The greatest penalised logits of groups of SIZE neighbours; the grid is (rows, groups in
    parts of HELD).

    Args:
        logits: [rows, vocabulary], whose rows are dense.
        present, penalty: see `rank`.
        out: float32 [rows, groups].
    """
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * HELD + tl.arange(0, HELD)
    token = group[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    there = (group < groups)[:, None] & (token >= 0)
    value = tl.load(logits + row * row_stride + token, mask=there, other=0.0).to(tl.float32)
    value = _harsher(value, present + row * present_stride + token, penalty, there)
    tl.store(out + row * groups + group, tl.max(value, 1), mask=group < groups)


@triton.jit
def weigh(
    logits,
    present,
    penalty,
    best,
    inverse,
    sums,
    row_stride,
    present_stride,
    vocabulary,
    blocks,
    PENALIZED: tl.constexpr,
    ONE: tl.constexpr,
    BLOCK: tl.constexpr,
    HELD: tl.constexpr,
):
    """Sums of weights of BLOCK tokens each; the grid is (rows, blocks in groups of HELD).

    A weight is floor(ONE * exp((logit - best) * inverse)) in float64, where sums of them are exact.

    Args:
        logits: [rows, vocabulary], whose rows are dense.
        present, penalty: see `rank`.
        best: [rows], the greatest logits, penalised.
        inverse: float64 [1], of the temperature.
        sums: int64 [rows, blocks].
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * HELD + tl.arange(0, HELD)
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = token < vocabulary
    value = tl.load(logits + row * row_stride + token, mask=inside, other=0.0)
    if PENALIZED:
        value = value.to(tl.float32)
        value = _harsher(value, present + row * present_stride + token, penalty, inside)
    value = (value.to(tl.float64) - tl.load(best + row).to(tl.float64)) * tl.load(inverse)
    weight = tl.where(inside, tl.floor(tl.exp(value) * ONE), 0.0)
    tl.store(sums + row * blocks + block, tl.sum(weight, 1).to(tl.int64), mask=block < blocks)
