"""A small random model of any type with which transformers generates text."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from transformers import CONFIG_MAPPING

from tests.support.tokenizers import byte_level

VOCABULARY = 320


def _values(*rows: tuple[Any, str]) -> dict[str, Any]:
    return {name: value for value, names in rows for name in names.split()}


# Windows are shorter than prompts, and longer than the trial at load, which cannot detect them.
_TEXT = _values(
    (VOCABULARY, "vocab_size vocab_size_per_layer_input"),
    (512, "max_position_embeddings"),
    (96, "intermediate_size moe_shared_expert_intermediate_size"),
    (64, "hidden_size"),
    (32, "moe_intermediate_size shared_expert_intermediate_size"),
    (24, "head_dim query_pre_attn_scalar global_head_dim"),
    (16, "kv_lora_rank q_lora_rank v_head_dim index_head_dim index_n_heads hc_lowrank state_size"),
    (16, "mamba_d_state ssm_state_size linear_key_head_dim linear_value_head_dim"),
    (14, "sliding_window local_attention window_size attention_window_size attention_chunk_size"),
    (8, "qk_rope_head_dim qk_nope_head_dim rotary_dim index_topk hidden_size_per_layer_input"),
    (4, "num_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts"),
    (4, "linear_num_value_heads laurel_rank"),
    (2, "num_hidden_layers num_key_value_heads num_experts_per_tok moe_k moe_topk pad_token_id"),
    (2, "linear_num_key_heads hc_count"),
    (2.0, "logits_scaling embedding_multiplier"),
    (1, "eos_token_id max_window_layers n_group topk_group n_shared_experts first_k_dense_replace"),
    (1, "num_dense_layers"),
    (0.5, "residual_multiplier attention_multiplier"),
    (0, "bos_token_id num_kv_shared_layers"),
    (True, "use_sliding_window attention_bias use_qk_norm"),
    (False, "tie_word_embeddings"),
)
_OTHERS = _values(
    (64, "out_hidden_size projection_dim vision_output_dim projector_output_dim"),
    (32, "intermediate_size encoder_ffn_dim mlp_dim"),
    (16, "hidden_size embed_dim d_model num_position_embeddings position_embedding_size"),
    (16, "max_source_positions"),
    (8, "image_size num_mel_bins head_dim"),
    (4, "patch_size spatial_patch_size"),
    (2, "num_heads num_attention_heads num_key_value_heads encoder_attention_heads"),
    (1, "depth num_hidden_layers num_layers encoder_layers temporal_patch_size"),
    ([0], "deepstack_visual_indexes"),
)
"""Settings for text models, and for parts for images or audio, applied if they exist."""


def _mrope(*sections: int) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [*sections]}
    return {"rope_parameters": rope}


def _each(names: str, settings: dict[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(names.split(), settings)


_HEADS = {"num_key_value_heads": 4}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_OMNI = {"vision_start_token_id": VOCABULARY - 1}
_ROWS = """
mistral3 mistral4 qwen3_vl qwen3_vl_moe smolvlm lfm2_vl qwen3_5 qwen3_5_moe qwen4_exp gemma3 gemma3n
gemma4 gemma4_unified llama4 qwen2_vl qwen2_5_vl qwen2_5_omni_thinker granite_docling llava_next
lfm2_moe mamba2 bamba zamba2 glm_moe_dsa
"""
NEWER = {"granite_docling"} - {*CONFIG_MAPPING}
"""Types that transformers 5.17 does not have."""
ROWS = [name for name in _ROWS.split() if name not in NEWER]
"""Models for images or audio, and others, that the tests decode at every entry point."""

SETTINGS: dict[str, dict[str, Any]] = {
    **_each("axk2 deepseek_v32 glm_moe_dsa mistral_large4_text", _HEADS),
    **_each("cosmos3_edge_text paddleocr_vl_text hunyuan_vl_text", _mrope(6, 3, 3)),
    **_each(
        "qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text glm4v_text glm_ocr_text",
        _mrope(4, 2, 2),
    ),
    **_each("glm4v_moe_text hy_v4_vl_text", _mrope(2, 1, 1)),
    "qwen3_omni_moe_text": {"sliding_window": None},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "nemotron_h": {"n_groups": 1, "mamba_num_heads": 4, "mamba_head_dim": 16},
    "granitemoehybrid": _LINEAR | {"mamba_n_heads": 8, "mamba_d_head": 16},
    "zamba2": {
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "hybrid", "mamba"],
        "layers_block_type": ["mamba", "hybrid", "mamba"],
        "adapter_rank": 4,
        "mamba_ngroups": 1,
        "n_mamba_heads": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "glm4_moe_lite": {"head_dim": 8},
    "helium": {"head_dim": 16},
    "longcat_flash": {
        "num_layers": 2,
        "head_dim": 8,
        "expert_ffn_hidden_size": 32,
        "ffn_hidden_size": 64,
        "zero_expert_num": 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "internlm3": {"qkv_bias": True, "bias": True},
    "zaya": {"num_experts_per_tok": 1},
    "qwen4_exp_text": {
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 24,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "ple_layer_ids": [1],
        "ngram_vocab_size_base": 40,
        "split_ngram_parts": 2,
    },
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": _mrope(6, 3, 3)["rope_parameters"],
            "full_attention": None,
        },
    },
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [32, 32]} | _mrope(2, 2, 4),
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "n_routed_experts": 4} | _HEADS,
    "dory": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "n_input_layers": 1,
        "n_output_layers": 1,
        "n_recurrent_layers": 2,
    },
    "inkling2_text": {
        "unpadded_vocab_size": VOCABULARY,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 24,
        "sliding_window_size": 14,
        "rel_extent": 32,
    },
    "inkling2_loop_text": {
        "unpadded_vocab_size": VOCABULARY,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 24,
        "sliding_window_size": 14,
        "rel_extent": 32,
    },
    "granite4_vision": {"deepstack_layer_map": []},
    "qwen2_5_omni_thinker": _OMNI,
    "qwen3_omni_moe_thinker": _OMNI,
    "chameleon": {"vocabulary_map": {"<image>": 319}},
    "gemma4": {
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "position_embedding_size": 16,
        },
    },
    "gemma4_text": {"global_head_dim": 24},
    "gemma4_unified_text": {"global_head_dim": 24},
    "molmo2": {
        "vision_config": {"image_size": [8, 8]},
        "adapter_config": {"vision_feature_layer": [0, -1]},
    },
    "emu3": {"vocabulary_map": {"<image>": 319, "<|extra_200|>": 318}},
    "bert": {"is_decoder": True},
    "roberta": {"is_decoder": True},
}
"""Additional settings for some types, and for their parts by name."""


def new_config(model_type: str, shape: dict[str, Any] = _TEXT, **more: Any) -> Any:
    """A small configuration of a type."""
    kind = CONFIG_MAPPING[model_type]
    more = copy.deepcopy(SETTINGS.get(model_type, {})) | more  # configurations change what they get
    known = {*kind.__dataclass_fields__, *kind.attribute_map}
    known -= {name for name in known if _is_fixed(kind, kind.attribute_map.get(name, name))}
    values = {name: value for name, value in shape.items() if name in known}
    default = kind(**{name: more[name] for name in more.keys() & {"hidden_size_per_layer_input"}})
    kinds = getattr(default, "layer_types", None)
    if shape is _TEXT and "layer_types" in known and isinstance(kinds, list):
        values["layer_types"] = [*dict.fromkeys(kinds), kinds[-1]][: max(2, len({*kinds}))]
        values["num_hidden_layers"] = len(values["layer_types"])
    for name in kind.sub_configs:
        part = getattr(default, name, None)
        if part is not None and not isinstance(part, dict) and part.model_type:
            text = part.model_type == default.get_text_config(decoder=True).model_type
            inner = new_config(part.model_type, _TEXT if text else _OTHERS, **more.pop(name, {}))
            values[name] = inner.to_dict()
    if kind.sub_configs:  # ids of images and the like are not at the start of the vocabulary
        ids = {name: getattr(default, name, None) for name in known if "_token_i" in name}
        values |= {name: VOCABULARY - 1 for name, i in ids.items() if isinstance(i, int) and i > 9}
    return kind(**values | more)


def _is_fixed(kind: Any, name: str) -> bool:
    field = getattr(kind, name, None)
    return isinstance(field, property) and field.fset is None


def new_model(model_type: str, **more: Any) -> Any:
    """Return a small random model of a type in float32, with all of its parts.

    Weights have a wide distribution, and norms and biases are not neutral: with transformers'
    initial values, texts repeat one token, and a missing norm would not be noticed.
    """
    config = new_config(model_type, **more)
    mappings = (
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_MULTIMODAL_LM_MAPPING,
    )
    kind = next(m[type(config)] for m in reversed(mappings) if type(config) in m)
    with torch.device("meta"):
        size = sum(x.numel() for x in kind._from_config(copy.deepcopy(config)).parameters())
    assert size < 6e7, f"{size:.2g} weights"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind._from_config(config).float().eval()
    generator = torch.Generator().manual_seed(sum(map(ord, model_type)))
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            nn.init.normal_(weight, weight.mean().item(), 0.2, generator)
        else:
            fan_in = 1 if "emb" in name or "wte" in name else weight.shape[-1]
            nn.init.normal_(weight, 0.0, 1.5 * fan_in**-0.5, generator)
    return model


def saved(folder: Path, model_type: str) -> Any:
    """Save such a model with a tokenizer; return the model that generates its texts."""
    if model_type == "gemma3n":  # its image parts need packages that tests do not have
        model = new_model("gemma3n_text")
        tensors = {
            name.replace("model.", "model.language_model.", 1): tensor.detach().clone()
            for name, tensor in model.state_dict().items()
        }
        config = CONFIG_MAPPING[model_type](text_config=model.config.to_dict())
        config.architectures = ["Gemma3nForConditionalGeneration"]
        config.save_pretrained(folder)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        model = new_model(model_type)
        model.save_pretrained(folder)
    model.generation_config.pad_token_id = 0
    byte_level().save_pretrained(folder)
    if model_type == "llama4":  # its full forward fails in transformers 5.24
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model
