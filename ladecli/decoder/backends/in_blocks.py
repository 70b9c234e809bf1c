"""Attention over blocks of keys, whose sums are added in their order; see `invariant` for why.

It is written for TorchScript's interpreter; see `cpu_layouts`.
"""

# Annotations are not postponed, as in `cpu_layouts`.

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class KeyBlock(NamedTuple):
    """Slots of keys with adjacent positions, counted from a step's `first_slot`."""

    start: int
    end: int
    inside: Tensor | None = None
    """Float32 [end - start], 1 for slots that belong to the block, else 0; None if all do."""


def attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Tensor | None,
    blocks: list[KeyBlock],
    scaling: float,
    softcap: float | None = None,
) -> Tensor:
    """Compute attention in float32, [K, rows, D]; queries that share a key head are rows of one
    product.

    Args:
        query: [K, rows, D].
        key, value: [K, S, D].
        added: a term of the scores, [rows, S]; None for none.
        blocks: of all keys.
        scaling, softcap: as in `Rules`.
    """
    # The fewest rows and keys of a product, since libraries have special kernels for fewer.
    least_rows, least_keys = 4, 16
    count, keys = query.shape[1], key.shape[1]
    if keys < least_keys:
        missing = least_keys - keys
        if added is None:
            added = query.new_zeros((count, keys))
        added = F.pad(added, [0, missing], "constant", -math.inf)
        key, value = F.pad(key, [0, 0, 0, missing]), F.pad(value, [0, 0, 0, missing])
    query = query * (scaling if softcap is not None else scaling / math.log(2.0))
    if count < least_rows:
        query = F.pad(query, [0, 0, 0, least_rows - count])
        if added is not None:
            added = F.pad(added, [0, 0, 0, least_rows - count])
    weights = powers_of_scores(query, key, added, softcap)
    # Rounded to whole numbers of 2⁻³⁵: of 2¹⁸ of them the sum is exact in float64, in any order.
    unit = 2.0**-12
    denominator = weights.add_(unit).sub_(unit).sum(-1, True, dtype=torch.float64).float()
    total = query
    for number, block in enumerate(blocks):
        part, values = weights[:, :, block.start : block.end], value[:, block.start : block.end]
        inside = block.inside
        if inside is not None:
            part = part * inside
        if part.shape[2] < least_keys:
            missing = least_keys - part.shape[2]
            part, values = F.pad(part, [0, missing]), F.pad(values, [0, 0, 0, missing])
        product = torch.bmm(part, values)
        total = product if number == 0 else total.add_(product)
    return total.div_(denominator)[:, :count]


def powers_of_scores(
    query: Tensor, key: Tensor, added: Tensor | None, softcap: float | None
) -> Tensor:
    """Return powers of 2 of the scores [K, rows, S] minus the largest one of a row."""
    heads, rows, keys = query.shape[0], query.shape[1], key.shape[1]
    numbers = heads * rows * keys
    # The numbers must fill whole vectors, even unrolled ones.
    lanes = 64
    flat = query.new_empty(((numbers + lanes - 1) // lanes * lanes,))
    scores, turned = flat[:numbers].view(heads, rows, keys), key.transpose(1, 2)
    if softcap is not None:
        torch.bmm(query, turned, out=scores)
        # tanh(x) = 1 - 2 / (exp(2 x) + 1)
        scores.mul_(2.0 / math.log(2.0) / softcap)
        flat.exp2_()
        scores.add_(1.0).reciprocal_().mul_(-2.0).add_(1.0).mul_(softcap / math.log(2.0))
        if added is not None:
            scores.add_(added)
    elif added is not None:
        torch.baddbmm(added, query, turned, out=scores)
    else:
        torch.bmm(query, turned, out=scores)
    scores.sub_(scores.amax(-1, True))
    flat.exp2_()
    return scores
