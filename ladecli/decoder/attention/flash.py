"""Attention in two parts: the cached text by a flash kernel, the step's own tokens densely.

Every token of a step sees all of the text, so that part needs no mask, and kernels that know
none are the right ones for it: the package flash-attn on GPUs (Dao, "FlashAttention-2", 2023),
PyTorch's own on CPUs.  Only the step's T x T block is masked.  The parts are joined by the
log-sum-exp of their scores (Dao et al., "Flash-Decoding", 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from .mask import StepMask
from .sdpa import sdpa_attention


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: StepMask,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attention in two parts; arguments as in `reference_attention`.

    Left to `sdpa_attention` are single tokens, which need no mask; an empty prefix; windows that
    hide something, since they go by position and flash kernels by slot; soft caps; and values of
    another size than keys.

    Raises:
        ConfigError: a GPU without the package flash-attn.
    """
    unknown_on_cpu = mask.prefix is None and not query.is_cuda
    if (
        softcap is not None
        or mask.is_single
        or not (mask.prefix or mask.prefix is None)
        or unknown_on_cpu
        or mask.active_window(sliding_window) is not None
        or value.shape[-1] != key.shape[-1]
    ):
        return sdpa_attention(query, key, value, mask, scaling, sliding_window, softcap)
    _, heads, count, size = query.shape
    kv_heads = key.shape[1]
    parts = mask.split(key, value)
    folded = query.reshape(1, kv_heads, heads // kv_heads * count, size)
    attend = _on_gpu if query.is_cuda else _on_cpu
    out, lse = attend(folded, parts.keys, parts.values, mask, scaling)
    hidden = mask.visible(query.device).logical_not().repeat(heads // kv_heads, 1)
    scores = folded.float() @ parts.own_keys.float().transpose(2, 3) * scaling
    scores = scores.masked_fill_(hidden, float("-inf"))
    # The text is like one key more: its score is its log-sum-exp, its value what it came to.
    weights = torch.softmax(torch.cat([scores, lse.float().unsqueeze(-1)], dim=-1), dim=-1)
    own = weights[..., :count] @ parts.own_values.float()
    joined = torch.addcmul(own, weights[..., count:], out.float())
    return joined.to(query.dtype).reshape(1, heads, count, size)


def _on_cpu(
    query: Tensor, keys: Tensor, values: Tensor, mask: StepMask, scaling: float
) -> tuple[Tensor, Tensor]:
    """Attention of [1, K, R, D] over a text that is not empty; and its log-sum-exp [1, K, R]."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, scale=scaling
    )
    return out, lse


def _on_gpu(
    query: Tensor, keys: Tensor, values: Tensor, mask: StepMask, scaling: float
) -> tuple[Tensor, Tensor]:
    """The same by the package flash-attn, which reads on the device how long the text is."""
    # It takes [1, tokens, heads, D].
    query, keys, values = (x.transpose(1, 2) for x in (query, keys, values))
    length = mask.on_device(query.device).length
    out, lse = _package()(
        query, keys, values, cache_seqlens=length, softmax_scale=scaling, return_softmax_lse=True
    )
    # Without a text it says +inf, which would be all of the weight.
    return out.transpose(1, 2), lse.masked_fill(lse == float("inf"), float("-inf"))


@cache
def _package() -> Callable[..., Any]:
    try:
        attend: Callable[..., Any] = import_module("flash_attn").flash_attn_with_kvcache
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(
            "attention 'flash' needs the package flash-attn on a GPU; use --attention auto"
        ) from error
    return attend
