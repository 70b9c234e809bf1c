"""The most probable tokens of each row of logits by Triton kernels; importing this needs triton.

By torch's `topk` and `softmax` that takes 2 to 5 % as long as the forward of 8 billion parameters.
Here a row is cut into blocks of tokens, of which each leaves its best ones and its part of the sum
that probabilities are relative to; a second kernel joins them.
"""

# Triton's language has no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import sampling
from .triton_attention import power_of_two

MOST = 16
"""Tokens of a row that can be asked for."""
_BLOCK = 4096
"""Tokens of a row that one program looks at."""
_MOST = tl.constexpr(MOST)
_NONE = tl.constexpr(-(1 << 63))  # below all keys


@triton.jit
def _keys(x, token):
    """Int64 numbers that rise with float32 `x`, and fall with the token where it is equal."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (rising.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit(do_not_specialize=["vocabulary", "count"])
def rank_block(logits, best, tops, sums, logits_row, vocabulary, count, BLOCK: tl.constexpr):
    """The best tokens of one block of one row; the grid is (rows, blocks).

    Args:
        logits: [rows, vocabulary].
        best: int64 [rows, blocks, MOST], of which `count` keys are written, the best one first.
        tops: float32 [rows, blocks], the largest logit.
        sums: float32 [rows, blocks], of the exponentials of logits less the largest one.
        logits_row: a stride in elements.
    """
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * logits_row + token, mask=token < vocabulary, other=float("-inf"))
    x = x.to(tl.float32)
    x = tl.where(x == x, x, float("nan"))  # with a sign it would come after padding
    top = tl.max(x, 0)
    # A block may hold minus infinity alone, which less itself would be NaN.
    base = tl.where(top == float("-inf"), 0.0, top)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(tops + place, top)
    tl.store(sums + place, tl.sum(tl.exp(x - base), 0))
    keys = _keys(x, token)
    for rank in range(count):
        largest = tl.max(keys, 0)
        tl.store(best + place * _MOST + rank, largest)
        keys = tl.where(keys == largest, _NONE, keys)


@triton.jit(do_not_specialize=["blocks", "count"])
def rank_row(best, tops, sums, ids, shares, blocks, count, BLOCKS: tl.constexpr):
    """The blocks of a row joined; the grid is (rows).

    Args:
        best, tops, sums: see `rank_block`.
        ids: int64 [rows, count].
        shares: float32 [rows, count], probabilities: NaN where a logit is NaN or infinite.
        BLOCKS: `blocks` as a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    top = tl.load(tops + row * blocks + block, mask=block < blocks, other=float("-inf"))
    part = tl.load(sums + row * blocks + block, mask=block < blocks, other=0.0)
    highest = tl.max(top, 0)
    total = tl.sum(tl.where(part == 0.0, 0.0, part * tl.exp(top - highest)), 0)
    place = tl.arange(0, BLOCKS * _MOST)
    there = (place // _MOST < blocks) & (place % _MOST < count)
    keys = tl.load(best + row * blocks * _MOST + place, mask=there, other=_NONE)
    for rank in range(count):
        largest = tl.max(keys, 0)
        keys = tl.where(keys == largest, _NONE, keys)
        rising = (largest >> 32).to(tl.int32)
        x = (rising ^ ((rising >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        tl.store(ids + row * count + rank, 0x7FFFFFFF - (largest & 0x7FFFFFFF))
        tl.store(shares + row * count + rank, tl.exp(x - highest) / total)


def most_probable(logits: Tensor, successors: int) -> tuple[Tensor, Tensor]:
    """See `sampling.most_probable`, which finds more than `MOST` tokens; numbers are always
    probabilities."""
    if successors > MOST:
        return sampling.most_probable(logits, successors)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocabulary = logits.shape
    count = min(max(successors, 1), vocabulary)
    blocks = -(-vocabulary // _BLOCK)
    tops, sums = logits.new_empty((2, rows, blocks), dtype=torch.float32)
    best = logits.new_empty((rows, blocks, MOST), dtype=torch.int64)
    ids = logits.new_empty((rows, count), dtype=torch.int64)
    shares = logits.new_empty((rows, count), dtype=torch.float32)
    with torch.cuda.device(logits.get_device()):
        rank_block[rows, blocks](
            logits, best, tops, sums, logits.stride(0), vocabulary, count, BLOCK=_BLOCK, num_warps=8
        )
        rank_row[rows,](
            best, tops, sums, ids, shares, blocks, count, BLOCKS=power_of_two(blocks), num_warps=4
        )
    return ids, shares
