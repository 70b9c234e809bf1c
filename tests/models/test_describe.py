"""Specs from configurations: they must agree with the models that are loaded from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ladecli
from ladecli.decoder.backends.compat import returned_cache
from ladecli.decoder.config import Limits
from ladecli.models.describe import empty_model
from ladecli.models.fit import spec_of
from ladecli.models.memory import ModelSpec
from tests.decoder.backends.test_transformers_forward import NO_TREES
from tests.support import every
from tests.support.decoding import decoder_of, run, text_ids, transformers_ids
from tests.support.models import FAMILIES, model_of, new_model
from tests.support.tokenizers import byte_level

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
LINEAR = 2 * (4 * 64 * 64 + 3 * 64 * 128)
REST = 2 * 100 * 64 + 5 * 64
"""Embeddings, the last layer and the norms, which stay as they are."""


def spec(config: Any, dtype: torch.dtype = torch.float32, quantize: str = "none") -> ModelSpec:
    return spec_of(empty_model(config, {}), dtype, quantize)


def llama(**changes: Any) -> Any:
    return transformers.LlamaConfig(**SIZES, num_attention_heads=4, vocab_size=100, **changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_are_those_of_the_model_and_its_cache(family: str) -> None:
    model, decoder = model_of(family), decoder_of(family)
    shape = spec(model.config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.weight_bytes == 4 * shape.parameters
    assert (shape.weights, shape.compute, shape.value_bytes) == ("float32", "float32", 4)
    run(decoder, [3, 4, 5], limits=Limits(2))
    held = sum(tensor.nbytes for tensor in decoder.cache.tensors)
    assert held == decoder.cache.slots * shape.cache_bytes


def held_by(cache: Any) -> int:
    """Return the bytes of the tensors in a model's own cache."""
    parts = [part for layer in cache.layers for part in vars(layer).values()]
    return sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))


@pytest.mark.parametrize("family", ["falcon", "qwen3_next", "mamba"])
def test_the_growth_of_a_models_own_cache(family: str) -> None:
    """Recurrent layers hold no keys, and Falcon has few key heads."""
    model = new_model(family, **(NO_TREES[family][2] if family in NO_TREES else {}))
    with torch.no_grad():
        caches = [returned_cache(model(torch.tensor([[5] * count]))) for count in (20, 50)]
    assert held_by(caches[1]) - held_by(caches[0]) == 30 * spec(model.config).cache_bytes


def test_experts() -> None:
    config = transformers.MixtralConfig(
        **SIZES, num_attention_heads=4, num_key_value_heads=2, vocab_size=100, num_local_experts=8
    )
    experts, attention = 2 * 8 * 3 * 64 * 128, 2 * (2 * 64 * 64 + 2 * 64 * 32)
    plain, four = spec(config, torch.bfloat16), spec(config, torch.bfloat16, "4bit")
    assert plain.active == plain.parameters - experts * 6 / 8
    assert plain.linear == attention, "bitsandbytes packs no experts"
    assert four.weight_bytes == plain.weight_bytes - attention * (2 - 0.5625)
    config.quantization_config = {"quant_method": "fp8"}
    assert spec(config, torch.bfloat16).weight_bytes == plain.weight_bytes - attention - experts


@pytest.mark.parametrize(
    ("quantize", "config", "weights", "bytes_each"),
    [
        ("4bit", None, "nf4", 0.5625),
        ("8bit", None, "int8", 1.0),
        ("none", {"quant_method": "gptq", "bits": 4}, "gptq", 0.5),
        ("none", {"quant_method": "fp8"}, "fp8", 1.0),
        ("none", {"quant_method": "fp8", "dequantize": True}, "float16", 2.0),
        ("none", {"quant_method": "hqq", "quant_config": {"params": {"nbits": 4}}}, "hqq", 0.5),
        ("none", {"quant_method": "quanto", "weights": "int2"}, "quanto", 0.25),
        ("none", {"quant_method": "torchao", "quant_type": "int4_weight_only"}, "torchao", 0.5),
        ("none", {"quant_method": "compressed-tensors", "bits": 4}, "float16", 2.0),
        ("none", {"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", 0.5625),
        ("none", {"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0),
    ],
)
def test_quantised_weights(
    quantize: str, config: dict[str, Any] | None, weights: str, bytes_each: float
) -> None:
    shape = spec(llama(quantization_config=config), torch.float16, quantize)
    assert (shape.weights, shape.compute) == (weights, "float16")
    assert shape.parameters == LINEAR + REST
    assert shape.weight_bytes == LINEAR * bytes_each + REST * 2
    assert (shape.linear == 0.0) == (config is not None), "packed weights are not packed again"


# Models for images or audio, of which only the text decoder is loaded.

PROMPT = "the cat sat on the mat, the cat sat"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # notices of `load` and `lookahead`
@pytest.mark.parametrize("model_type", every.ROWS)
def test_the_text_of_a_whole_model_at_every_entry_point(
    model_type: str, lade: Any, tmp_path: Path
) -> None:
    whole, folder = every.saved(tmp_path, model_type), str(tmp_path)
    ids = byte_level()(PROMPT)["input_ids"]
    expected = transformers_ids(whole, ids, 8)
    asked = ("-p", PROMPT, "--raw", "-n", "8", "--ignore-eos", "--json", "--no-stats")
    done = lade("generate", folder, *asked)
    assert done.json()["token_ids"] == expected

    model = ladecli.load(folder, dtype="float32")
    options: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True}
    for strategy in ("lookahead", "autoregressive"):
        assert text_ids(model.stream(PROMPT, strategy=strategy, **options)) == expected
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    prompt, mask = torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long)
    drafted = whole.generate(
        prompt, attention_mask=mask, custom_generate=ladecli.lookahead, **options
    )
    assert drafted[0, len(ids) :].tolist() == expected

    # No part for images or audio is in memory, and a line says so.
    decoder, head = whole.get_decoder(), whole.get_output_embeddings()
    parts = {id(part): part for one in (decoder, head) for part in one.parameters()}
    loaded = model.session.loaded
    held = sum(part.numel() for part in loaded.model.parameters())
    assert held <= loaded.spec.parameters <= 1.001 * sum(part.numel() for part in parts.values())
    assert not any("vision" in name or "audio" in name for name, _ in loaded.model.named_modules())
    assert ("image and audio" in done.err) == (loaded.config.get_text_config() is not loaded.config)
