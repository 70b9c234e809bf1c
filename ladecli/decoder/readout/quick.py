"""What is read out of logits, by Triton kernels that read each of them once.

By torch's operations a wide step of a large vocabulary spends a good part of its time on that: its
softmax has one program for each row, its search for the greatest numbers sorts them, and whole
numbers as weights take half a dozen passes over float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..lean import fused
from ..lean.trial import numbers, passed
from ..memory import attempt
from .penalty import Penalized, Scores, gather, maxima, part

ONE = 1 << 40
"""The weight of the most probable token; 2**22 such ones can be summed up in 63 bits."""

DEVICES = ("cuda",)
"""Types of devices for which there is something to gain."""
BLOCK = 4096
"""Logits that one program looks at."""
MOST_BLOCKS = 256
"""What the program that joins them can hold."""
MOST = 8
"""Tokens of a row; each takes another look at all of a block."""
CLOSE = 1e-5
"""Probabilities may be off by so much, relatively: they go into drafts alone."""
HELD = 8
"""Sums that one program makes."""

Rank = Callable[[Scores, int], tuple[Tensor, Tensor]]
"""(scores, count) -> the most probable tokens and their probabilities, [rows, count] each."""
Weigh = Callable[[Scores, Tensor, float], Tensor]
"""(scores, the best token of each row [rows], temperature) -> sums of weights, int64."""


def may_rank(scores: Scores, count: int, own: Rank) -> bool:
    """Whether `rank` takes these: dense rows, where a trial has shown that it works.

    Args:
        scores: [rows, vocabulary].
        count: at most the vocabulary.
        own: what it would stand for.
    """
    logits, penalized = kind_of(scores)
    asked = logits.device, logits.dtype, logits.shape[-1], count, own, penalized
    return (
        count <= MOST
        and logits.shape[-1] <= BLOCK * MOST_BLOCKS
        and may_read(logits)
        and bool(attempt(_ranks, *asked))
    )


def may_weigh(scores: Scores, block: int, own: Weigh) -> bool:
    """Whether `weigh` takes these: dense rows, where a trial has shown that it says the same.

    Args:
        scores: [rows, vocabulary].
        block: see `weigh`.
        own: what it would stand for.
    """
    logits, penalized = kind_of(scores)
    asked = logits.device, logits.dtype, logits.shape[-1], block, own, penalized
    return may_read(logits) and bool(attempt(_weighs, *asked))


def may_top(scores: Penalized, size: int) -> bool:
    """Whether `top` takes these: dense rows, where a trial has shown that it says the same.

    Args:
        scores: [rows, vocabulary].
        size: see `top`.
    """
    logits = scores.logits
    return (
        size <= BLOCK
        and may_read(logits)
        and bool(attempt(_tops, logits.device, logits.dtype, logits.shape[-1], size))
    )


def may_read(logits: Tensor) -> bool:
    """Whether kernels may be tried on these: dense rows on a device that has some."""
    return (
        logits.device.type in DEVICES
        and logits.stride(-1) == 1
        # Distributed tensors have their numbers elsewhere.
        and type(logits) is Tensor
        and not fused.off()
        and fused.available(logits.device)
    )


@lru_cache(maxsize=16)
def _ranks(
    device: torch.device,
    dtype: torch.dtype,
    vocabulary: int,
    count: int,
    own: Rank,
    penalized: bool,
) -> bool:
    """Whether `rank` says what `own` does."""

    def trial() -> bool:
        # In half precision some of the greatest are equal.
        scores = tried(dtype, device, vocabulary, penalized)
        found, bits = rank(scores, count)
        tokens, probabilities = own(scores, count)
        shares = bits.view(torch.float32)
        great = gather(scores, found.long()).equal(gather(scores, tokens))
        close = torch.allclose(shares, probabilities, rtol=CLOSE, atol=0.0)
        return great and close and torch.equal(found[:, 0], tokens[:, 0].int())

    return passed(device, trial)


@lru_cache(maxsize=16)
def _weighs(
    device: torch.device,
    dtype: torch.dtype,
    vocabulary: int,
    block: int,
    own: Weigh,
    penalized: bool,
) -> bool:
    """Whether `weigh` says what `own` does, to the last bit."""

    def trial() -> bool:
        scores = tried(dtype, device, vocabulary, penalized)
        asked = scores, part(scores, slice(vocabulary)).argmax(dim=-1), 0.7
        return torch.equal(weigh(*asked, block), own(*asked))

    return passed(device, trial)


@lru_cache(maxsize=16)
def _tops(device: torch.device, dtype: torch.dtype, vocabulary: int, size: int) -> bool:
    """Whether `top` says what `maxima` does, to the last bit."""

    def trial() -> bool:
        scores = tried(dtype, device, vocabulary, penalized=True)
        return isinstance(scores, Penalized) and torch.equal(
            top(scores, size), maxima(scores, size)
        )

    return passed(device, trial)


def tried(
    dtype: torch.dtype, device: torch.device, vocabulary: int, penalized: bool, rows: int = 2
) -> Scores:
    """Rows for a trial; where they are penalised, some logits above 0 and some below."""
    logits = numbers(torch.empty(0, dtype=dtype, device=device), rows, vocabulary)
    if not penalized:
        return logits
    some = torch.arange(vocabulary, device=device) % 3 == 0
    return Penalized(logits, some.repeat(rows, 1), 1.1)


def rank(scores: Scores, count: int) -> Tensor:
    """The most probable tokens of each row with their probabilities, the best first; `may_rank`
    must be true.

    Args:
        scores: [rows, vocabulary].
        count: from 1 to the vocabulary.

    Returns:
        int32 [2, rows, count]: tokens, and probabilities as the bits of float32.  Of equally
        probable tokens the lowest comes first.
    """
    from . import kernels

    rows, vocabulary = scores.shape
    logits, penalized = kind_of(scores)
    blocks = -(-vocabulary // BLOCK)
    # Those of small models are one block, which need not be that large.
    block = min(BLOCK, fused.power(vocabulary))
    tops, sums = logits.new_empty((2, rows, blocks), dtype=torch.float32)
    values = logits.new_empty((rows, blocks, count), dtype=torch.float32)
    tokens = torch.empty_like(values, dtype=torch.int32)
    out = logits.new_empty((2, rows, count), dtype=torch.int32)
    found = values, tokens, tops, sums
    # Triton launches on the current device.
    with torch.cuda.device(logits.get_device()):
        kernels.rank[rows, blocks](
            *operands(scores),
            *found,
            *strides(scores),
            vocabulary,
            PENALIZED=penalized,
            COUNT=count,
            BLOCK=block,
            num_warps=8,
        )
        kernels.join[rows,](
            *found,
            out[0],
            out[1].view(torch.float32),
            blocks,
            vocabulary,
            COUNT=count,
            BLOCKS=fused.power(blocks),
            FOUND=fused.power(blocks * count),
        )
    return out


def top(scores: Penalized, size: int) -> Tensor:
    """What `penalty.maxima` says; `may_top` must be true.

    Args:
        scores: [rows, vocabulary].
        size: a power of two, at most the vocabulary.

    Returns:
        float32 [rows, groups].
    """
    from . import kernels

    logits = scores.logits
    rows, vocabulary = logits.shape
    groups, held = vocabulary // size, max(BLOCK // size, 1)
    tops = logits.new_empty((rows, groups), dtype=torch.float32)
    with torch.cuda.device(logits.get_device()):
        kernels.tops[rows, -(-groups // held)](
            *operands(scores),
            tops,
            *strides(scores),
            groups,
            SIZE=size,
            HELD=held,
            num_warps=8,
        )
    return tops


def weigh(scores: Scores, best: Tensor, temperature: float, block: int) -> Tensor:
    """Sums of the weights of `block` tokens each, as `choosing` has them; `may_weigh` must be true.

    Args:
        scores: [rows, vocabulary].
        best: the token with the greatest score of each row, whole numbers [rows].
        temperature: as it divides, above 0.
        block: a power of two.

    Returns:
        int64 [rows, blocks].
    """
    from . import kernels

    rows, vocabulary = scores.shape
    blocks = -(-vocabulary // block)
    sums = best.new_empty((rows, blocks), dtype=torch.int64)
    with torch.cuda.device(best.get_device()):
        kernels.weigh[rows, -(-blocks // HELD)](
            *operands(scores),
            best,
            bits_of(1.0 / temperature),
            sums,
            *strides(scores),
            best.stride(0),
            vocabulary,
            blocks,
            PENALIZED=kind_of(scores)[1],
            ONE=float(ONE),
            BLOCK=block,
            HELD=HELD,
            num_warps=8,
        )
    return sums


def bits_of(number: float) -> int:
    """The bits of a float64: as an argument of a kernel, a number would be rounded to float32."""
    return int(np.float64(number).view(np.int64))


def kind_of(scores: Scores) -> tuple[Tensor, bool]:
    """Logits, and whether they are penalised."""
    if isinstance(scores, Penalized):
        return scores.logits, True
    return scores, False


def operands(scores: Scores) -> tuple[Tensor, Tensor, float]:
    """Logits, which tokens are present, and the penalty: any, where there is none."""
    if isinstance(scores, Penalized):
        return scores.logits, scores.present.view(torch.uint8), scores.penalty
    return scores, scores, 1.0


def strides(scores: Scores) -> tuple[int, int]:
    """From row to row of the first two of them."""
    logits, present, _ = operands(scores)
    return logits.stride(0), present.stride(0)
