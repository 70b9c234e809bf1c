"""A small random model of every supported family, with the features that distinguish families."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING

from ladecli.decoder.backends.compat import needs_eager
from tests.support.tokenizers import byte_level

VOCABULARY = 97
SLIDING = 11
"""Sliding windows are shorter than the tests' prompts, so that they have an effect."""

_SHAPE: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    # Tied embeddings make a random model repeat its last token forever.
    "tie_word_embeddings": False,
}


def _rope(kind: str, original: int, **settings: Any) -> dict[str, Any]:
    settings |= {"original_max_position_embeddings": original} if original else {}
    return {"rope_type": kind, "rope_theta": 10000.0, **settings}


_LLAMA3 = _rope("llama3", 64, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
LONG_ROPE = _rope("longrope", 40, factor=4.0, **_FACTORS)
_LONG = {"rope_parameters": LONG_ROPE, "max_position_embeddings": 160}
_DYNAMIC = {"rope_parameters": _rope("dynamic", 0, factor=4.0), "max_position_embeddings": 40}
# Queries grow with their position from the original length on.
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
_GROWING = _rope("yarn", 32, factor=8.0, llama_4_scaling_beta=0.5, **_YARN)
_MIXED = {"sliding_window": SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
_QWEN = {"use_sliding_window": True, "sliding_window": SLIDING, "max_window_layers": 1}
_GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8} | _MIXED
_GEMMA4 = {"head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 8}
_GEMMA4 |= {"vocab_size_per_layer_input": VOCABULARY}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GROUPED = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_HALF_ROPE = _rope("default", 0, partial_rotary_factor=0.5)
_SCALES = {"logits_scaling": 2.0, "residual_multiplier": 0.7, "embedding_multiplier": 3.0}
_LORA = {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 16}
_LORA |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8}

OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3": ("llama", {"rope_parameters": _LLAMA3}),
    "llama_bias": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama_tied": ("llama", {"tie_word_embeddings": True, "head_dim": 16}),
    "llama_dynamic": ("llama", _DYNAMIC),
    "mistral": ("mistral", {"sliding_window": SLIDING}),
    "mistral_long": ("mistral", {"sliding_window": SLIDING} | _LONG),
    "ministral": ("ministral", {"head_dim": 8} | _MIXED),
    "ministral3": ("ministral3", {"head_dim": 8, "rope_parameters": _GROWING}),
    "qwen2": ("qwen2", _QWEN),
    "qwen3": ("qwen3", {"head_dim": 16, "attention_bias": True} | _QWEN),
    "gemma": ("gemma", {"head_dim": 8}),
    "gemma2": ("gemma2", _GEMMA | {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 3.0}),
    "gemma3": ("gemma3_text", _GEMMA),
    "phi3": ("phi3", {"sliding_window": SLIDING}),
    "phi3_partial": ("phi3", {"rope_parameters": _HALF_ROPE}),
    "phi3_long": ("phi3", {"original_max_position_embeddings": 40} | _LONG),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", _MIXED),
    "granite": ("granite", {"attention_multiplier": 0.2} | _SCALES),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]} | _QWEN),
    "glm": ("glm", {"head_dim": 8}),
    "glm4": ("glm4", {"head_dim": 8, "attention_bias": True}),
    "seed_oss": ("seed_oss", {"head_dim": 8, "attention_out_bias": True}),
    "cwm": ("cwm", {"head_dim": 8, "rope_parameters": _LLAMA3} | _MIXED),
    "internlm3": ("internlm3", {"qkv_bias": True, "bias": True, "head_dim": 8}),
    "helium": ("helium", {"head_dim": 8}),
    "ernie4_5": ("ernie4_5", {"use_bias": True, "head_dim": 8}),
    "iquestcoder": ("iquestcoder", {"head_dim": 8}),
}
"""The family and its settings by name; these models run on our own forward."""

STOCK: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi": ("phi", {}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt2": ("gpt2", {"n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48}),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "starcoder2": ("starcoder2", {"sliding_window": SLIDING}),
    "cohere": ("cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", {"head_dim": 8} | _MIXED),
    "olmo": ("olmo", {}),
    "hunyuan": ("hunyuan_v1_dense", {"head_dim": 8}),
    "exaone4": ("exaone4", {"head_dim": 8} | _MIXED),
    "gemma4": ("gemma4_text", _GEMMA4 | _MIXED),
    "gpt_oss": ("gpt_oss", {"head_dim": 8, "num_local_experts": 4} | _MIXED),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 8, "num_experts": 4} | _EXPERTS),
    "glm4_moe": ("glm4_moe", {"head_dim": 8, "n_routed_experts": 4} | _EXPERTS | _GROUPED),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 4, "moe_k": 2} | _EXPERTS),
    "deepseek_v3": ("deepseek_v3", {"n_routed_experts": 4} | _LORA | _EXPERTS | _GROUPED),
}
"""The same for those that run on transformers' forward."""

_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_DELTA = {
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
} | _LINEAR
_DELTA_EXPERTS = {"num_experts": 4, "shared_expert_intermediate_size": 16} | _DELTA | _EXPERTS
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2}
_NEMOTRON = {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2}
_ZAMBA = {"n_mamba_heads": 8, "mamba_headdim": 8, "mamba_d_state": 8, "mamba_ngroups": 2}
_SHORT = {"layer_types": ["conv", "full_attention"]}
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": _DELTA_EXPERTS,
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA_EXPERTS,
    "olmo_hybrid": {"num_key_value_heads": 4} | _DELTA,
    "lara_mini": _DELTA,
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2},
    "granitemoehybrid": {"num_local_experts": 0, "shared_intermediate_size": 48} | _MAMBA | _LINEAR,
    "falcon_h1": {"mamba_d_ssm": 64} | _MAMBA,
    "bamba": {"attn_layer_indices": [1]} | _MAMBA,
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "head_dim": 8} | _NEMOTRON,
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "num_key_value_heads": 4} | _ZAMBA,
    "lfm2": _SHORT,
    "lfm2_moe": {"num_experts": 4, "num_dense_layers": 1} | _SHORT | _EXPERTS,
    "lfm3": _SHORT,
}
"""Settings of families with recurrent layers, which also verify trees on transformers' forward."""

LACKING = {"internlm3", "iquestcoder", "lara_mini", "lfm3"} - {*CONFIG_MAPPING}
"""Families that transformers 5.17 does not have."""
for family in LACKING:
    OWN.pop(family, None)
    HYBRIDS.pop(family, None)

FAMILIES = OWN | STOCK


@cache
def model_of(family: str) -> Any:
    """Return a random model of the family, the same at every call; tests must not change it."""
    return new_model(family)


def new_model(family: str, **extra: Any) -> Any:
    """Return a random model of any family in float32, with additional or changed settings."""
    model_type, settings = FAMILIES.get(family, (family, HYBRIDS.get(family, {})))
    common = [*_SHAPE]
    if model_type == "gpt2":
        common = ["vocab_size", "bos_token_id", "eos_token_id", "tie_word_embeddings"]
    shape = {name: _SHAPE[name] for name in common}
    config = CONFIG_MAPPING[model_type](**{**shape, **settings, **extra})
    generator = torch.Generator().manual_seed(sum(map(ord, family)))
    attention = {"attn_implementation": "eager"} if needs_eager(config) else {}
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some weights stay as they are drawn here
        model = transformers.AutoModelForCausalLM.from_config(config, **attention).eval().float()
    # With the small initial weights, every text ends in one repeated token.
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            std = 1.0 if "embed" in name and not config.tie_word_embeddings else 0.25
            torch.nn.init.normal_(parameter, std=std, generator=generator)
        elif "bias" in name or "norm" in name:
            # Missing biases of zero and norms of one would not be noticed.
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.1, generator=generator)
    return model


def saved(folder: Path, family: str, **extra: Any) -> str:
    """Save such a model and a tokenizer; return the name of their folder."""
    new_model(family, **extra).save_pretrained(folder)
    byte_level().save_pretrained(folder)
    return str(folder)


def prompt_for(family: str, length: int = 24) -> list[int]:
    """Return random tokens without special ones, with a part that repeats."""
    generator = torch.Generator().manual_seed(len(family))
    tokens = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
    return (tokens + tokens[: length // 2])[-length:] if length > 1 else tokens
