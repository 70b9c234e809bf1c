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
def _scored(logits, present, penalty, token, there, PENALIZED: tl.constexpr):
    """Logits of tokens of one row, with the penalty if there is one; impossible are those that are
    not `there`."""
    value = tl.load(logits + token, mask=there, other=float("-inf")).to(tl.float32)
    if PENALIZED:
        value = _harsher(value, present + token, penalty, there)
    return value


@triton.jit
def _weighed(values, top, inverse, ONE: tl.constexpr):
    """What tokens weigh beside the best one, as `choosing` has it: float64, whole numbers.

    Args:
        values, top: logits of the tokens, and the greatest of their row.
        inverse: of the temperature, as the bits of float64: a number that is no integer would be
            rounded to float32 on its way here.
    """
    apart = values.to(tl.float64) - top.to(tl.float64)
    return tl.floor(tl.exp(apart * inverse.to(tl.int64).to(tl.float64, bitcast=True)) * ONE)


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
    logits += row * row_stride
    present += row * present_stride
    value = _scored(logits, present, penalty, token, left, PENALIZED)
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
    vocabulary,
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
        # Of a row without numbers nothing is the greatest: any token, but one that there is.
        tl.store(out + row * COUNT + rank, tl.minimum(which, vocabulary - 1))
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
    logits += row * row_stride
    present += row * present_stride
    value = _scored(logits, present, penalty, token, there, True)
    tl.store(out + row * groups + group, tl.max(value, 1), mask=group < groups)


@triton.jit(do_not_specialize=["inverse"])
def weigh(
    logits,
    present,
    penalty,
    best,
    inverse: tl.int64,
    sums,
    row_stride,
    present_stride,
    best_stride,
    vocabulary,
    blocks,
    PENALIZED: tl.constexpr,
    ONE: tl.constexpr,
    BLOCK: tl.constexpr,
    HELD: tl.constexpr,
):
    """Sums of weights of BLOCK tokens each; the grid is (rows, blocks in groups of HELD).

    Args:
        logits: [rows, vocabulary], whose rows are dense.
        present, penalty: see `rank`.
        best: [rows], the token with the greatest logit, penalised.
        inverse: see `_weighed`.
        sums: int64 [rows, blocks]; exact, since sums of float64 are within a block.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    present += row * present_stride
    greatest = tl.load(best + row * best_stride)
    top = _scored(logits, present, penalty, greatest, greatest >= 0, PENALIZED)
    block = tl.program_id(1) * HELD + tl.arange(0, HELD)
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = token < vocabulary
    value = _scored(logits, present, penalty, token, inside, PENALIZED)
    weight = _weighed(value, top, inverse, ONE)
    tl.store(sums + row * blocks + block, tl.sum(weight, 1).to(tl.int64), mask=block < blocks)


# Numbers of a step lie among others: not at every address that a kernel could be compiled for.
@triton.jit(do_not_specialize=["inverse", "uniforms"])
def pick(
    logits,
    present,
    penalty,
    best,
    inverse: tl.int64,
    sums,
    uniforms,
    out,
    row_stride,
    present_stride,
    best_stride,
    vocabulary,
    blocks,
    PENALIZED: tl.constexpr,
    ONE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The token of one row at its uniform number, none removed; the grid is (rows,).

    Args:
        logits, present, penalty, best, inverse, sums: as `weigh` had and left them.
        uniforms: float64 [rows].
        out: int32 [rows]; of rows that are not finite, any token.
        BLOCKS: `blocks` as a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, BLOCKS)
    weight = tl.load(sums + row * blocks + each, mask=each < blocks, other=0)
    total = tl.sum(weight, 0)
    target = (total.to(tl.float64) * tl.load(uniforms + row)).to(tl.int64)
    # Rounding can put it on the total: then the last possible token is meant.
    target = tl.minimum(target, total - 1)
    block = tl.sum((tl.cumsum(weight, 0) <= target).to(tl.int32), 0)
    target -= tl.sum(tl.where(each < block, weight, 0), 0)

    logits += row * row_stride
    present += row * present_stride
    greatest = tl.load(best + row * best_stride)
    top = _scored(logits, present, penalty, greatest, greatest >= 0, PENALIZED)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocabulary
    value = _scored(logits, present, penalty, token, inside, PENALIZED)
    weight = _weighed(value, top, inverse, ONE).to(tl.int64)
    place = tl.sum((tl.cumsum(weight, 0) <= target).to(tl.int32), 0)
    tl.store(out + row, tl.minimum(block * BLOCK + place, vocabulary - 1))
