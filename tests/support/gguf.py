"""Small GGUF files that tests make, as llama.cpp's converter does; they need the package gguf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.support.tokenizers import byte_level

SHAPE: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
    **{"vocab_size": 300, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0},
    "tie_word_embeddings": False,
}
NAMES = {"gemma3_text": "gemma3", "mistral": "llama"}
"""llama.cpp's names for families, if they differ from transformers'."""


def model_of(family: str = "llama", **settings: Any) -> Any:
    """A small random model of a family."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**SHAPE | settings))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, float(weight.ndim == 1), 0.3)
    return model.eval()


def write(
    path: Path,
    model: Any = None,
    settings: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    kind: str = "F32",
    vocabulary: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    split: int = 0,
) -> Path:
    """Write a model (by default a small Llama) with a tokenizer to a file.

    Args:
        settings: additional or changed settings; None leaves one out, and a name that begins with a
            dot belongs to the family.
        tensors: additional ones by name; numbers, or a type with its blocks.
        kind: the type of the matrices of layers.
        vocabulary: the settings of another tokenizer.
        architecture: the name of the family in the file, if it is not the model's.
        split: tensors of a part, if the file is split.
    """
    model = model or model_of()
    config = model.config
    family = NAMES.get(config.model_type, config.model_type)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    file = gguf.GGUFWriter(path, architecture or family, split_max_tensors=split)
    rope = config.rope_parameters
    stated = {
        "general.name": "small",
        ".context_length": config.max_position_embeddings,
        ".embedding_length": config.hidden_size,
        ".block_count": config.num_hidden_layers,
        ".feed_forward_length": config.intermediate_size,
        ".attention.head_count": config.num_attention_heads,
        ".attention.head_count_kv": config.num_key_value_heads,
        ".attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", 1e-5),
        ".attention.layer_norm_epsilon": getattr(config, "layer_norm_eps", 1e-5),
        ".attention.key_length": head,
        ".attention.value_length": head,
        ".rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1)),
        ".rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
        **(byte_vocabulary() if vocabulary is None else vocabulary),
        **(settings or {}),
    }
    for name, value in stated.items():
        put(file, name if name[0] != "." else (architecture or family) + name, value)
    numbers_of = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers_of[family], config.num_hidden_layers)
    state = {} if model.config.tie_word_embeddings else {"lm_head": model.lm_head.weight}
    for name, weight in {**model.state_dict(), **state}.items():
        base, _, end = name.rpartition(".")
        numbers = weight.detach().float().numpy()
        if family == "llama" and ("q_proj" in name or "k_proj" in name):  # pairs lie together
            numbers = numbers.reshape(-1, 2, head // 2, *numbers.shape[1:])
            numbers = numbers.swapaxes(1, 2).reshape(weight.shape)
        if family.startswith("gemma") and name.endswith("norm.weight"):
            numbers = numbers + 1
        if not base or (config.tie_word_embeddings and name == "lm_head.weight"):
            continue
        block = "layers" in name and weight.ndim == 2
        if (name := f"{names.get_name(base)}.{end}") not in (tensors or {}):
            add(file, name, numbers, kind if block else "F32")
    for name, value in (tensors or {}).items():
        add(file, name, *value) if isinstance(value, tuple) else add(file, name, value)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def put(file: gguf.GGUFWriter, name: str, value: Any) -> None:
    """Add a setting; None leaves it out."""
    if isinstance(value, list):
        file.add_array(name, value)
    elif value is not None:
        kinds = {bool: file.add_bool, int: file.add_uint32, float: file.add_float32}
        add_value = file.add_string if isinstance(value, str) else kinds[type(value)]
        (file.add_uint64 if type(value) is int and value >= 2**32 else add_value)(name, value)


def add(file: gguf.GGUFWriter, name: str, numbers: Any, kind: str = "F32") -> None:
    """Add a tensor, in a type that may be one of blocks."""
    number, numbers = gguf.GGMLQuantizationType[kind], np.asarray(numbers)
    if kind == "F32":
        file.add_tensor(name, np.ascontiguousarray(numbers.astype(np.float32)))
    else:
        packed = numbers if numbers.dtype == np.uint8 else gguf.quantize(numbers, number)
        file.add_tensor(name, packed, raw_dtype=number)


def byte_vocabulary(tokenizer: Any = None, pre: str | None = "gpt-2") -> dict[str, Any]:
    """The settings of a tokenizer of bytes."""
    tokenizer = tokenizer or byte_level()
    tokens = [token for token, _ in sorted(tokenizer.vocab.items(), key=lambda item: item[1])]
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.padding_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}\n{% endfor %}",
    }


def piece_vocabulary(prefix: bool | None, *words: str) -> dict[str, Any]:
    """The settings of a tokenizer of characters, bytes and these words, as Llama 2 has it."""
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁thecasonmdf", *words]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [float(-i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, *[6] * 256, *[1] * (len(tokens) - 258)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
