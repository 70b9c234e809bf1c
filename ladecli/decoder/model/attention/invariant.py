"""Attention on a CPU whose result for a token does not depend on the step it is computed in.

Plain decoding computes a token alone; a step with drafts computes it among others, its keys in
other slots, with those of rivals in between.  Matrix products and vector instructions then add in
another order, so that texts part where two tokens are nearly as good.  Here both add alike, bit
for bit ("batch invariance": He et al., "Defeating nondeterminism in LLM inference", 2025):

- Keys are taken in blocks of `BLOCK` positions from the text's first one on, and the sums of blocks
  are added one by one.  A block's product runs through its keys in their order, in which those that
  a token does not see are zeros.
- Products have shapes for which the library takes one and the same way: no few rows or keys, and
  no more keys than it adds in one go.
- No number is left over when vectors are filled: for those libraries compute other exponentials.
- One thread computes: several share products out by their size.

What libraries do is theirs to change: a trial at load finds out whether it is so here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .dense import per_row
from .mask import KeyBlock, Rules, StepMask

BLOCK = 96
"""Positions whose keys are one sum.  With the rivals of a step that is at most `2 * BLOCK`: of more
keys than 192 libraries make several sums."""
WIDEST = BLOCK
"""Tokens that are computed at once; wider steps are cut."""
LEAST_ROWS, LEAST_KEYS = 4, 16
"""Of a product: for fewer libraries have ways of their own."""
SUM_COLUMNS = 16
"""A sum is a product with as many columns of ones: with a single one it would be another kind."""
LANES = 64
"""Numbers that vector instructions take at a time, at most, with what they are unrolled by."""
LOG2_E = math.log2(math.e)


def invariant_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules
) -> Tensor:
    """Attention in float32; arguments as in `reference_attention`, keys and values float32."""
    if query.shape[2] <= WIDEST:
        with one_thread():
            return _attention(query, key, value, mask, rules).to(query.dtype)
    found = []
    for part in mask.parts(WIDEST):
        own = query[:, :, part.places], key[:, :, part.slots], value[:, :, part.slots]
        with one_thread():
            found.append(_attention(*own, part.mask, rules)[:, :, part.results])
    return torch.cat(found, dim=2).to(query.dtype)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with a single thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules) -> Tensor:
    _, heads, count, size = query.shape
    kv_heads, first = key.shape[1], mask.first_slot(rules.window)
    key, value = key[0, :, first:], value[0, :, first:]
    groups = heads // kv_heads
    rows = groups * count
    added = mask.additive_mask(rules.window, groups, torch.float32, query.device)
    if (missing := LEAST_KEYS - key.shape[1]) > 0:
        if added is None:
            added = query.new_zeros((rows, key.shape[1]), dtype=torch.float32)
        key, value = (F.pad(each, (0, 0, 0, missing)) for each in (key, value))
        added = F.pad(added, (0, missing), value=-math.inf)
    if added is not None and rows < LEAST_ROWS:
        added = F.pad(added, (0, 0, 0, LEAST_ROWS - rows))
    # Query heads that share a key head are rows of one product, as in the reference.
    folded = query.new_zeros((kv_heads, max(rows, LEAST_ROWS), size), dtype=torch.float32)
    scale = rules.scaling if rules.softcap is not None else rules.scaling * LOG2_E
    torch.mul(query.reshape(kv_heads, rows, size).float(), scale, out=folded[:, :rows])
    sinks = None if rules.sinks is None else per_row(rules.sinks, groups, count)[0]
    weights = _weights(folded, key, added, rules.softcap, sinks)
    # Sums of values, and of weights, block by block.
    blocks = mask.blocks(rules.window, BLOCK)
    total, denominator = _sums(weights, value, blocks[0])
    for block in blocks[1:]:
        more, more_weights = _sums(weights, value, block)
        total += more
        denominator += more_weights
    if sinks is not None:
        denominator += weights[:, :, -1:]
    attended = total.div_(denominator[:, :, :1])[:, :rows]
    return attended.reshape(1, heads, count, -1)


def _weights(
    query: Tensor, key: Tensor, added: Tensor | None, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Powers of 2 of the scores [K, rows, S], less the largest one of a row; those of sinks,
    [K, rows, 1], are one more column."""
    shape = query.shape[0], query.shape[1], key.shape[1] + (sinks is not None)
    numbers = math.prod(shape)
    flat = query.new_zeros(-(-numbers // LANES) * LANES)
    weights = flat[:numbers].view(shape)
    scores = weights[:, :, : key.shape[1]]
    if softcap is not None:
        torch.bmm(query, key.transpose(1, 2), out=scores)
        # tanh(x) = 1 - 2 / (exp(2 x) + 1)
        scores *= 2.0 * LOG2_E / softcap
        flat.exp2_()
        scores.add_(1.0).reciprocal_().mul_(-2.0).add_(1.0).mul_(softcap * LOG2_E)
        if added is not None:
            scores += added
    elif added is not None:
        torch.baddbmm(added, query, key.transpose(1, 2), out=scores)
    else:
        torch.bmm(query, key.transpose(1, 2), out=scores)
    if sinks is not None:
        weights[:, : sinks.shape[1], -1:] = sinks * LOG2_E
    weights -= weights.amax(dim=-1, keepdim=True)
    flat.exp2_()
    return weights


def _sums(weights: Tensor, value: Tensor, block: KeyBlock) -> tuple[Tensor, Tensor]:
    """Of a block's weighted values [K, rows, D], and of its weights, [K, rows, columns]."""
    part, values = weights[:, :, block.start : block.end], value[:, block.start : block.end]
    if block.inside is not None:
        part = part * block.inside
    if (missing := LEAST_KEYS - part.shape[-1]) > 0:
        part, values = F.pad(part, (0, missing)), F.pad(values, (0, 0, 0, missing))
    return torch.bmm(part, values), torch.matmul(part, _ones()[: part.shape[-1]])


@lru_cache(maxsize=1)
def _ones() -> Tensor:
    with torch.inference_mode(False):
        return torch.ones((2 * BLOCK, SUM_COLUMNS))
