"""Attention written out: what the other backends are tested against."""

from __future__ import annotations

import torch
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
) -> Tensor:
    """Dense attention with scores and softmax in float32.

    Args:
        query: [1, H, T, D].
        key, value: [1, K, S, D], cached slots and the step's own; each key head serves H / K
            query heads.
        mask: who sees whom.
        scaling: multiplies the scores.
        sliding_window: positions that a query sees back, its own included; None for all.
        softcap: scores become softcap * tanh(scores / softcap) (Gemma 2); None for no cap.

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
    out = torch.softmax(scores, dim=-1) @ value
    return out.to(query.dtype).reshape(1, heads, count, value.shape[-1])
