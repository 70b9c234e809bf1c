"""PyTorch's scaled dot-product attention under an explicit mask: portable and fast."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .reference import reference_attention
from .step import StepAttention


def sdpa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: StepAttention,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attention by `scaled_dot_product_attention`; arguments as in `reference_attention`.

    Query heads that share a key head are folded into the query axis, so that keys are read
    once for all of them and never repeated.  Soft-capped scores are beyond that function:
    those layers use the reference.
    """
    if softcap is not None:
        return reference_attention(query, key, value, step, scaling, sliding_window, softcap)
    _, heads, count, depth = query.shape
    groups = heads // key.shape[1]
    mask = step.added_mask(sliding_window, groups, query.dtype, query.device)
    out = F.scaled_dot_product_attention(
        query.reshape(1, key.shape[1], groups * count, depth),
        key,
        value,
        attn_mask=None if mask is None else mask[None, None],
        scale=scaling,
    )
    return out.reshape(1, heads, count, value.shape[-1])
