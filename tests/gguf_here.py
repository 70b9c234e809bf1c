"""A small GGUF file that tests make; the package gguf is needed."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import torch

from .tokenizers_here import byte_level

HEADS, KV_HEADS, LAYERS, HIDDEN, INNER = 4, 2, 2, 32, 64


def write(path: Path, architecture: str = "llama") -> None:
    """A small random Llama with its tokenizer; norms and embeddings whole, the rest in 8 bits."""
    tokenizer = byte_level()
    tokens = [token for token, _ in sorted(tokenizer.vocab.items(), key=lambda item: item[1])]
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    file = gguf.GGUFWriter(path, architecture)
    file.add_context_length(256)
    file.add_embedding_length(HIDDEN)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(HIDDEN // HEADS)
    file.add_vocab_size(len(tokens))
    file.add_tokenizer_model("gpt2")
    file.add_token_list(tokens)
    file.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    file.add_token_merges([" ".join(pair) for pair in state["merges"]])
    file.add_bos_token_id(tokenizer.eos_token_id)
    file.add_eos_token_id(tokenizer.eos_token_id)
    file.add_add_bos_token(False)
    file.add_chat_template("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    draw = torch.Generator().manual_seed(0)
    shapes = {"token_embd": (len(tokens), HIDDEN), "output": (len(tokens), HIDDEN)}
    for layer in range(LAYERS):
        block, narrow = f"blk.{layer}.", HIDDEN * KV_HEADS // HEADS
        shapes |= {f"{block}attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "output")}
        shapes |= {f"{block}attn_{name}": (narrow, HIDDEN) for name in ("k", "v")}
        shapes |= {f"{block}ffn_{name}": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[f"{block}ffn_down"] = (HIDDEN, INNER)
        shapes |= {f"{block}{name}_norm": (HIDDEN,) for name in ("attn", "ffn")}
    for name, shape in {**shapes, "output_norm": (HIDDEN,)}.items():
        weight = torch.randn(shape, generator=draw) * 0.3 + (len(shape) == 1)
        numbers = weight.numpy()
        if len(shape) == 1 or "blk" not in name:
            file.add_tensor(f"{name}.weight", numbers)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            file.add_tensor(f"{name}.weight", gguf.quantize(numbers, kind), raw_dtype=kind)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
