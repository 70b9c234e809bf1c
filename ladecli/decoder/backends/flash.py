"""Attention in two parts: the cached text by the package flash-attn, the step's own tokens densely.

Every token of a step sees all of the text, so that part needs no mask (Dao, "FlashAttention-2",
2023).  Only the step's T x T block is masked.  The parts are joined by the log-sum-exp of their
scores (Dao et al., "Flash-Decoding", 2023).
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from ..model.attention import sdpa_attention
from ..model.mask import Rules, StepMask


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules
) -> Tensor:
    """Compute attention in two parts; arguments as in `reference_attention`.

    `sdpa_attention` handles single tokens, which need no mask; an empty prefix; active sliding
    windows, which depend on positions, while flash kernels use slots; soft caps and sinks; and
    values of another size than keys.
    """
    if (
        rules.softcap is not None
        or rules.sinks is not None
        or mask.is_single
        or mask.prefix == 0
        or mask.active_window(rules.window) is not None
        or value.shape[-1] != key.shape[-1]
    ):
        return sdpa_attention(query, key, value, mask, rules)
    _, heads, count, size = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    folded = query.reshape(1, kv_heads, groups * count, size)
    # The package takes [1, tokens, heads, D], and reads the length of the text on the device.
    out, lse = import_module("flash_attn").flash_attn_with_kvcache(
        *(x.transpose(1, 2) for x in (folded, key, value)),
        cache_seqlens=mask.on_device(query.device).length,
        softmax_scale=rules.scaling,
        return_softmax_lse=True,
    )
    # Without a text it is +inf, which would be all of the weight.
    lse = lse.masked_fill(lse == float("inf"), float("-inf")).float()
    hidden = mask.visible(query.device).logical_not().repeat(groups, 1)
    scores = folded.float() @ mask.own(key).float().transpose(2, 3) * rules.scaling
    scores = scores.masked_fill_(hidden, float("-inf"))
    # The text acts as one more key, with its log-sum-exp as the score and its result as the value.
    weights = torch.softmax(torch.cat([scores, lse.unsqueeze(-1)], dim=-1), dim=-1)
    own = weights[..., :count] @ mask.own(value).float()
    joined = torch.addcmul(own, weights[..., count:], out.transpose(1, 2).float())
    return joined.to(query.dtype).reshape(1, heads, count, size)
