"""Attention under an explicit mask: written out, and by PyTorch's own kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .mask import StepMask


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: StepMask,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Scores and softmax in float32: what the other backends are tested against.

    Args:
        query: [1, H, T, D].
        key, value: [1, K, S, D], cached slots and the step's own; each key head serves H / K
            query heads.
        mask: who sees whom.
        scaling: multiplies the scores.
        sliding_window: positions that a query sees back, its own included; None for all.
        softcap: scores become softcap * tanh(scores / softcap) (Gemma 2); None for no cap.
        sinks: [H], the score of a key that every query of a head sees and whose value is zero
            (gpt-oss); None for none.

    Returns:
        [1, H, T, D] in the queries' dtype.
    """
    _, heads, count, size = query.shape
    groups = heads // key.shape[1]
    first = mask.first_slot(sliding_window)
    key, value = key[:, :, first:].float(), value[:, :, first:].float()
    # Query heads that share a key head become rows of one matrix: [1, K, G * T, D].
    folded = query.reshape(1, key.shape[1], groups * count, size)
    scores = folded.float() @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    added = mask.additive_mask(sliding_window, groups, torch.float32, query.device)
    if added is not None:
        scores = scores + added
    if sinks is not None:
        scores = torch.cat([scores, per_row(sinks, groups, count)], dim=-1)
    out = torch.softmax(scores, dim=-1)[..., : key.shape[2]] @ value
    return out.to(query.dtype).reshape(1, heads, count, value.shape[-1])


def sdpa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: StepMask,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`scaled_dot_product_attention`; arguments as in `reference_attention`.

    Soft caps and sinks are left to the reference: PyTorch's function has none.
    """
    if softcap is not None or sinks is not None:
        more = scaling, sliding_window, softcap, sinks
        return reference_attention(query, key, value, mask, *more)
    heads, kv_heads = query.shape[1], key.shape[1]
    added = mask.additive_mask(sliding_window, heads // kv_heads, query.dtype, query.device)
    if sliding_window is not None and (first := mask.first_slot(sliding_window)):
        key, value = key[:, :, first:], value[:, :, first:]
    if heads == kv_heads:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scaling)
    # Keys are read once for all query heads that share them.
    folded = query.reshape(1, kv_heads, -1, query.shape[-1])
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=added, scale=scaling)
    return out.reshape(1, heads, -1, value.shape[-1])


def per_row(sinks: Tensor, groups: int, count: int) -> Tensor:
    """Sinks [H] as scores of one more key, float32 [1, K, G * T, 1]; see `reference_attention`."""
    return sinks.float().repeat_interleave(count).view(1, -1, groups * count, 1)
