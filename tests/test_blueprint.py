"""Shapes from configurations: they must agree with the models that are loaded from them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from ladecli.blueprint import shape_of
from ladecli.decoder.engine import Limits

from .decoding import decoder_of, run
from .families import FAMILIES, model_of


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_and_bytes_are_those_of_the_model(family: str) -> None:
    model = model_of(family)
    shape = shape_of(model.config, torch.float32)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.weight_bytes == 4 * shape.parameters
    assert (shape.weights, shape.compute, shape.value_bytes) == ("float32", "float32", 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_cache_bytes_are_those_of_the_cache(family: str) -> None:
    decoder = decoder_of(family)
    run(decoder, [3, 4, 5], limits=Limits(2))
    held = sum(tensor.nbytes for tensor in decoder.cache.tensors)
    config = model_of(family).config
    assert held == decoder.cache.slots * shape_of(config, torch.float32).cache_bytes


def mixtral(**changes: Any) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}
    return transformers.MixtralConfig(**sizes, **heads, **changes)


def test_a_token_meets_its_share_of_the_experts() -> None:
    few = shape_of(mixtral(num_local_experts=8, num_experts_per_tok=2), torch.bfloat16)
    all_of_them = shape_of(mixtral(num_local_experts=8, num_experts_per_tok=8), torch.bfloat16)
    experts = 2 * 8 * 3 * 32 * 64
    assert few.parameters == all_of_them.parameters == all_of_them.active
    assert few.active == few.parameters - experts * 6 / 8
    assert few.weight_bytes == 2 * few.parameters


def test_fp8_packs_experts_and_bitsandbytes_does_not() -> None:
    config = mixtral(num_local_experts=8)
    plain = shape_of(config, torch.bfloat16)
    experts = 2 * 8 * 3 * 32 * 64
    attention = 2 * (2 * 32 * 32 + 2 * 32 * 16)
    assert plain.linear == attention
    four = shape_of(config, torch.bfloat16, "4bit")
    assert four.weight_bytes == plain.weight_bytes - attention * (2 - 0.5625)
    config.quantization_config = {"quant_method": "fp8"}
    packed = shape_of(config, torch.bfloat16)
    assert packed.weight_bytes == plain.weight_bytes - attention - experts


def test_what_latent_attention_caches() -> None:
    config = transformers.DeepseekV3Config(
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        first_k_dense_replace=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        vocab_size=50,
    )
    with torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        cache = model(torch.tensor([[3, 4, 5]])).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == 3 * shape_of(config, torch.float32).cache_bytes


def test_the_configuration_stays_as_it_is() -> None:
    config = transformers.Gemma3Config(
        text_config={"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100},
        vision_config={"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1},
        dtype="bfloat16",
    )
    shape_of(config, torch.bfloat16)
    assert config.vision_config.dtype is None


def llama(**changes: Any) -> Any:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "vocab_size": 100}
    return transformers.LlamaConfig(**sizes, **heads, **changes)


LINEAR = 2 * (4 * 64 * 64 + 3 * 64 * 128)
REST = 2 * 100 * 64 + 5 * 64
"""Embeddings, the last layer and the norms, which stay as they are."""


@pytest.mark.parametrize(
    ("quantize", "given", "weights", "bytes_each"),
    [
        ("4bit", None, "nf4", 0.5625),
        ("8bit", None, "int8", 1.0),
        ("none", {"quant_method": "gptq", "bits": 4}, "gptq", 0.5),
        ("none", {"quant_method": "awq", "bits": 4}, "awq", 0.5),
        ("none", {"quant_method": "fp8"}, "fp8", 1.0),
        ("none", {"quant_method": "fp8", "dequantize": True}, "float16", 2.0),
        (
            "none",
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}},
            *("hqq", 0.5),
        ),
        ("none", {"quant_method": "quanto", "weights": "int2"}, "quanto", 0.25),
        ("none", {"quant_method": "torchao", "quant_type": "int4_weight_only"}, "torchao", 0.5),
        (
            "none",
            {
                "quant_method": "torchao",
                "quant_type": {
                    "default": {"_type": "Int8DynamicActivationInt4WeightConfig", "_data": {}}
                },
            },
            *("torchao", 0.5),
        ),
        # The first forward pass unpacks these.
        (
            "none",
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            },
            *("float16", 2.0),
        ),
        ("none", {"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", 0.5625),
        ("none", {"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0),
    ],
)
def test_quantised_weights(
    quantize: str, given: dict[str, Any] | None, weights: str, bytes_each: float
) -> None:
    config = llama(**({"quantization_config": given} if given else {}))
    shape = shape_of(config, torch.float16, quantize)
    assert shape.weights == weights
    assert shape.compute == "float16"
    assert shape.parameters == LINEAR + REST
    assert shape.weight_bytes == LINEAR * bytes_each + REST * 2


def test_tied_embeddings_count_once() -> None:
    tied = shape_of(llama(tie_word_embeddings=True), torch.float32)
    assert tied.parameters == LINEAR + REST - 100 * 64
