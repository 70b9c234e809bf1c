"""Attention written out: the form that every other backend is tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from .step import StepAttention


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: StepAttention,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Dense attention with scores and softmax in float32.

    Args:
        query: [1, H, T, D].
        key, value: [1, K, S, D]; each key head serves H / K query heads.
        step: who sees whom.
        scaling: multiplies the scores.
        sliding_window: how far back a query sees, in positions; None for all the way.
        softcap: scores become softcap * tanh(scores / softcap) where given (Gemma 2).

    Returns:
        [1, H, T, D] in the queries' dtype.
    """
    _, heads, count, depth = query.shape
    groups = heads // key.shape[1]
    # The query heads that share a key head become rows of one matrix: [1, K, G * T, D].
    folded = query.reshape(1, key.shape[1], groups * count, depth)
    scores = folded.float() @ key.float().transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    mask = step.bool_mask(sliding_window)
    if mask is not None:
        scores = scores.masked_fill(~mask.to(query.device).repeat(groups, 1), float("-inf"))
    out = torch.softmax(scores, dim=-1) @ value.float()
    return out.to(query.dtype).reshape(1, heads, count, value.shape[-1])
