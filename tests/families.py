"""A small random model of every supported family, and of some that must be refused."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers

VOCABULARY = 97
SLIDING = 11
"""Sliding windows are shorter than the tests' prompts, so that they have something to hide."""

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Tied embeddings make a random model repeat its last token for ever.
    "tie_word_embeddings": False,
}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 40,
    "factor": 4.0,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama_dynamic": (
        "Llama",
        {
            "max_position_embeddings": 40,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        },
    ),
    "mistral": ("Mistral", {"sliding_window": SLIDING}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": SLIDING, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "gemma": ("Gemma", {"head_dim": 8}),
    "gemma2": ("Gemma2", {"head_dim": 8, "sliding_window": SLIDING, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3", {"head_dim": 8, "sliding_window": SLIDING, "query_pre_attn_scalar": 8}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {"sliding_window": SLIDING}),
    "phi3_long": (
        "Phi3",
        {
            "rope_parameters": _LONG_ROPE,
            "original_max_position_embeddings": 40,
            "max_position_embeddings": 160,
        },
    ),
    "olmo2": ("Olmo2", {}),
    "gpt_neox": ("GPTNeoX", {}),
    "gpt2": ("GPT2", {"n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48}),
    "opt": ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "starcoder2": ("Starcoder2", {"sliding_window": SLIDING}),
    "granite": ("Granite", {"logits_scaling": 2.0, "residual_multiplier": 0.7}),
    "cohere": ("Cohere", {"use_qk_norm": True}),
    "glm4": ("Glm4", {"head_dim": 8}),
}
_CONFIG_NAMES = {"Gemma3": "Gemma3TextConfig"}


@cache
def model_of(family: str) -> Any:
    """A random model of the family, the same at every call; tests must not change it."""
    stem, extra = FAMILIES[family]
    config_class = getattr(transformers, _CONFIG_NAMES.get(stem, f"{stem}Config"))
    shape = dict(_SHAPE)
    if stem == "GPT2":
        shape = {
            k: shape[k]
            for k in ("vocab_size", "bos_token_id", "eos_token_id", "tie_word_embeddings")
        }
    config = config_class(**{**shape, **extra})
    torch.manual_seed(sum(map(ord, family)))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    # Initial weights are so small that every text ends in one repeated token.
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25 if "embed" not in name else 1.0)
    return model.float()


def prompt_for(family: str, length: int = 24) -> list[int]:
    """Random tokens without special ones, with a part that repeats."""
    generator = torch.Generator().manual_seed(len(family))
    tokens = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
    return (tokens + tokens[: length // 2])[-length:] if length > 1 else tokens
