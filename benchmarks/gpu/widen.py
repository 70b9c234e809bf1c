"""A small model inside a large one's shape: it answers as the small one, at the large one's cost.

With random weights every text is a loop, and says nothing about drafts.  Here the small model's
weights lie in a corner of the large one's; the rest is random as far as zeros keep it from having
any say.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

HEAD_SIZE = 128


@torch.no_grad()
def widen(small: Any, sizes: tuple[int, int, int, int, int]) -> Any:
    """A Llama of other sizes from a Llama that is smaller in each.

    The vocabulary stays the small model's; embeddings are not tied.

    Args:
        small: the model.
        sizes: of hidden states and inner ones; numbers of layers, of heads, and of heads with keys,
            which have to be shared by as many heads as in the small model, or by more.
    """
    hidden, inner, layers, heads, kv_heads = sizes
    old, like = small.config, small.model.embed_tokens.weight
    share = old.hidden_size / hidden
    config = transformers.LlamaConfig(
        vocab_size=old.vocab_size,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=HEAD_SIZE,
        max_position_embeddings=old.max_position_embeddings,
        # Of more numbers, of which the new ones are zeros.
        rms_norm_eps=old.rms_norm_eps * share,
        rope_parameters=old.rope_parameters,
        tie_word_embeddings=False,
        bos_token_id=old.bos_token_id,
        eos_token_id=old.eos_token_id,
    )
    torch.manual_seed(0)
    with torch.device(like.device):
        large = transformers.AutoModelForCausalLM.from_config(config, dtype=like.dtype)
    group, old_group = heads // kv_heads, old.num_attention_heads // old.num_key_value_heads
    # A rotary embedding turns a number of a head's first half with one of its second.  In a larger
    # head more pairs turn, at more speeds: one in `step` of these is one of the small model's.
    step = HEAD_SIZE // old.head_dim
    places = torch.arange(0, HEAD_SIZE, step, device=like.device)
    rows = [h // old_group * group + h % old_group for h in range(old.num_attention_heads)]
    queries = torch.cat([row * HEAD_SIZE + places for row in rows])
    keys = torch.cat([h * HEAD_SIZE + places for h in range(old.num_key_value_heads)])
    width, narrow = torch.arange(old.hidden_size), torch.arange(old.intermediate_size)
    for layer in large.model.layers:
        for adds in layer.self_attn.o_proj, layer.mlp.down_proj:
            adds.weight.zero_()
        layer.self_attn.k_proj.weight[: old.num_key_value_heads * HEAD_SIZE] = 0.0
    for to, of in zip(large.model.layers, small.model.layers, strict=False):
        # Scores are divided by the root of a head's size.
        _put(to.self_attn.q_proj, of.self_attn.q_proj.weight * step**0.5, queries, width)
        _put(to.self_attn.k_proj, of.self_attn.k_proj.weight, keys, width)
        _put(to.self_attn.v_proj, of.self_attn.v_proj.weight, keys, width)
        _put(to.self_attn.o_proj, of.self_attn.o_proj.weight, width, queries)
        _put(to.mlp.gate_proj, of.mlp.gate_proj.weight, narrow, width)
        _put(to.mlp.up_proj, of.mlp.up_proj.weight, narrow, width)
        _put(to.mlp.down_proj, of.mlp.down_proj.weight, width, narrow)
        _norm(to.input_layernorm, of.input_layernorm, share)
        _norm(to.post_attention_layernorm, of.post_attention_layernorm, share)
    _norm(large.model.norm, small.model.norm, share)
    large.model.embed_tokens.weight.zero_()
    everything = torch.arange(old.vocab_size)
    _put(large.model.embed_tokens, like, everything, width)
    _put(large.lm_head, small.lm_head.weight, everything, width)
    return large.eval().requires_grad_(False)


def _put(module: Any, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
    to = module.weight
    to[rows.to(to.device)[:, None], columns.to(to.device)] = weight


def _norm(to: Any, of: Any, share: float) -> None:
    """The mean of squares is smaller by the share of numbers that are not zero."""
    to.weight[: len(of.weight)] = of.weight * share**0.5
