"""PyTorch's scaled dot-product attention under an explicit mask: portable and fast."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .mask import StepMask
from .reference import reference_attention


def sdpa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: StepMask,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attention by `scaled_dot_product_attention`; arguments as in `reference_attention`.

    Query heads that share a key head become rows, so that keys are read once for all of them.
    Soft caps are left to the reference: PyTorch's function has none.
    """
    if softcap is not None:
        return reference_attention(query, key, value, mask, scaling, sliding_window, softcap)
    heads, kv_heads = query.shape[1], key.shape[1]
    groups = heads // kv_heads
    added = mask.additive_mask(sliding_window, groups, query.dtype, query.device)
    if first := mask.first_slot(sliding_window):
        key, value = key[:, :, first:], value[:, :, first:]
    if groups == 1:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scaling)
    folded = query.reshape(1, kv_heads, -1, query.shape[-1])
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=added, scale=scaling)
    return out.reshape(1, heads, -1, value.shape[-1])
