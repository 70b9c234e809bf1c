"""The context that fits into memory, and the messages if it does not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.config import Limits, LookaheadConfig, chunk_on
from ladecli.decoder.strategies import make_strategy
from ladecli.errors import LoadError
from ladecli.models.describe import empty_model
from ladecli.models.fit import spec_of
from ladecli.models.memory import MemoryRequest, ModelSpec, format_bytes, room, spread
from tests.support.memory import MemoryCounter

pytestmark = pytest.mark.slow

LLAMA_7B = ModelSpec(
    6.74e9, 6.74e9, "bfloat16", 13.48e9, "bfloat16", 32, 4096, 11008, 32, 32, 128, 32000
)
SINGLE = replace(LLAMA_7B, weights="float32", compute="float32", weight_bytes=26.96e9)
GB = 1e9


def ask(free: float, spec: ModelSpec = LLAMA_7B, kind: str = "cuda", longest: int = 4096) -> Any:
    request = MemoryRequest(longest, width=64)
    return room("m", spec, free * GB, request, where="GPU", kind=kind)


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (8, 1)])
@pytest.mark.parametrize("attention", ["sdpa", "reference"])
def test_the_memory_that_a_decoder_uses(heads: int, kv_heads: int, attention: str) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "vocab_size": 200}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    config = transformers.LlamaConfig(**shape)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    decoder = load_decoder(model, max_context=2048, attention=attention)
    strategy = make_strategy("lookahead", LookaheadConfig(5, 3, 5, 24))
    prompt = torch.arange(2040).remainder(150).tolist()
    with MemoryCounter() as held:
        for start in (900, 2040):  # the cache grows with a text that goes on
            for _ in decoder.generate(prompt[:start], strategy, None, Limits(8)):
                pass
    spec = spec_of(empty_model(config, {}), torch.float32)
    need = MemoryRequest(2048, width=24, attention=attention, chunk=chunk_on("cpu")).need(spec)
    assert held.most / (need.cache + need.step) == pytest.approx(1, abs=0.1)


def test_a_long_context_is_cut_to_what_fits() -> None:
    context, notice = ask(20, longest=131_072)
    assert notice is not None
    assert 4096 < context < 10_000
    assert MemoryRequest(context, width=64).need(LLAMA_7B).total <= 0.97 * 20 * GB
    assert MemoryRequest(context + 64, width=64).need(LLAMA_7B).total > 0.97 * 20 * GB
    assert re.search(rf"13\.5 GB.*19\.4 GB.*at {context:,} tokens$", notice)


@pytest.mark.parametrize(
    ("free", "spec", "kind", "fix"),
    [
        (16, SINGLE, "cuda", r"--dtype bfloat16 needs 14\.\d GB"),
        (9, SINGLE, "cuda", "--quantize 4bit needs"),
        (9, LLAMA_7B, "cuda", "--quantize 8bit needs"),
        (6, LLAMA_7B, "cuda", "--quantize 4bit needs"),
        (6, LLAMA_7B, "cpu", "--quantize 4bit --dtype bfloat16 needs"),
        (2, LLAMA_7B, "cuda", "take a smaller model"),
        (6, LLAMA_7B, "mps", "take a smaller model"),  # bitsandbytes has nothing for it
        (6, replace(LLAMA_7B, weights="gptq", linear=0.0), "cuda", "take a smaller model"),
        # bitsandbytes does not pack experts.
        (40, replace(LLAMA_7B, parameters=46.7e9, weight_bytes=93.4e9, linear=1.3e9), "cuda",
         "take a smaller model"),
    ],
)  # fmt: skip
def test_the_first_form_that_fits(free: float, spec: ModelSpec, kind: str, fix: str) -> None:
    line = rf"^m needs .*, .* more than the {format_bytes(0.97 * free * GB)} .* on GPU; {fix}"
    with pytest.raises(LoadError, match=line):
        ask(free, spec, kind)


@pytest.mark.parametrize(
    ("gpus", "processor", "context", "words"),
    [
        ([10, 10], 8, 4096, None),
        ([8, 8], 8, None, r"2 GPUs: texts end at"),
        ([12], 64, 4096, r"13\.5 GB do not fit on 1 GPU: .* processor's memory or the disk, .*"),
        ([6, 6], 1, 4096, r"do not fit on 2 GPUs"),
        ([], 12, 4096, r"do not fit on this machine: .* the disk, which is slow"),
    ],
)
def test_spread_models(gpus: Any, processor: float, context: int | None, words: str | None) -> None:
    free = [size * GB for size in gpus]
    length, notice = spread("m", LLAMA_7B, free, processor * GB, MemoryRequest(4096, width=64))
    assert length == context if context else length < 4096
    assert notice is None if words is None else re.search(words, notice or "")


def test_a_rank_holds_its_share() -> None:
    half = LLAMA_7B.shard(2, whole=0.26e9)
    assert half.weight_bytes == pytest.approx(2 * (0.26e9 + 3.24e9))
    assert (half.heads, half.kv_heads, half.cache_bytes) == (16, 16, LLAMA_7B.cache_bytes // 2)
