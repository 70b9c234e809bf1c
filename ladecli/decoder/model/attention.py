"""Attention under an explicit mask: written out in float32, and by PyTorch's own kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .mask import Rules, StepMask

Attend = Callable[[Tensor, Tensor, Tensor, StepMask, Rules], Tensor]
"""(query [1, H, T, D], key and value [1, K, S, D], mask, rules) -> [1, H, T, D]; see
`reference_attention`."""


def reference_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules
) -> Tensor:
    """Compute attention with scores and softmax in float32; other backends are tested against this.

    Args:
        query: [1, H, T, D].
        key, value: [1, K, S, D], the cached slots and the step's own; each key head serves H / K
            query heads.
        mask: which token sees which.
        rules: the rules of the layer.

    Returns:
        [1, H, T, D] in the queries' dtype.
    """
    _, heads, count, size = query.shape
    groups = heads // key.shape[1]
    scaling, window, softcap, sinks = rules
    first = mask.first_slot(window)
    key, value = key[:, :, first:].float(), value[:, :, first:].float()
    # Query heads that share a key head become rows of one matrix: [1, K, G * T, D].
    folded = query.reshape(1, key.shape[1], groups * count, size)
    scores = folded.float() @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    added = mask.additive_mask(window, groups, torch.float32, query.device)
    if added is not None:
        scores = scores + added
    if sinks is not None:
        # The scores of one more key, [1, K, G * T, 1].
        column = sinks.float().repeat_interleave(count).view(1, -1, groups * count, 1)
        scores = torch.cat([scores, column], dim=-1)
    out = torch.softmax(scores, dim=-1)[..., : key.shape[2]] @ value
    return out.to(query.dtype).reshape(1, heads, count, value.shape[-1])


def sdpa_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules
) -> Tensor:
    """Compute attention by PyTorch's `scaled_dot_product_attention`; see `reference_attention`.

    That function has no soft caps and sinks, so layers with these are left to the reference.
    """
    scaling, window, softcap, sinks = rules
    if softcap is not None or sinks is not None:
        return reference_attention(query, key, value, mask, rules)
    heads, kv_heads = query.shape[1], key.shape[1]
    added = mask.additive_mask(window, heads // kv_heads, query.dtype, query.device)
    if window is not None and (first := mask.first_slot(window)):
        key, value = key[:, :, first:], value[:, :, first:]
    if heads == kv_heads:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scaling)
    # Keys are read once for all query heads that share them.
    folded = query.reshape(1, kv_heads, -1, query.shape[-1])
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=added, scale=scaling)
    return out.reshape(1, heads, -1, value.shape[-1])
