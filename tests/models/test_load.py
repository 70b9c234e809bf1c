"""Loading: the model's own code, the placement of weights, and their types."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import ladecli
from ladecli.decoder.backends import int8
from ladecli.decoder.backends.compat import packs_halves
from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.model.transformer import Transformer
from ladecli.errors import LoadError, UsageError
from ladecli.generation_config import AnswerDefaults
from ladecli.models import memory
from ladecli.models.device import Device, detect
from ladecli.models.load import LoadedModel, load
from ladecli.options.model import ModelOptions, PlacementOptions
from ladecli.session.session import Session
from tests.support.decoding import ids_of, run, transformers_ids
from tests.support.hub import DEMO, copied, plan, stating, use_devices
from tests.support.models import prompt_for, saved

ON_CPU = PlacementOptions(device="cpu")
GPU = Device("cuda", "cuda:1", "Some GPU", 8 << 30)
OWN_CODE = """
from transformers import LlamaForCausalLM


class Mine(LlamaForCausalLM):
    pass
"""


def demo_with(folder: Path, **changes: Any) -> str:
    """Return a copy of the bundled model with another configuration."""
    return copied(DEMO, folder, stating("config.json", **changes))


def test_a_models_own_code_runs_only_if_it_is_trusted(tmp_path: Path, capsys: Any) -> None:
    name = demo_with(tmp_path / "own", auto_map={"AutoModelForCausalLM": "modeling_own.Mine"})
    (tmp_path / "own" / "modeling_own.py").write_text(OWN_CODE)
    trusted = load(plan(name, ModelOptions(trust_remote_code=True), ON_CPU))
    assert type(trusted.model).__name__ == "Mine"
    other = load(plan(name, place=ON_CPU))
    assert type(other.model).__name__ == "LlamaForCausalLM"
    assert other.spec == trusted.spec
    assert capsys.readouterr().out == "", "nothing is asked"


@pytest.mark.parametrize(
    ("stated", "held", "right"),
    [
        ("float16", torch.bfloat16, torch.float16),
        (None, torch.bfloat16, torch.bfloat16),
        (None, torch.float32, torch.float32),
        (None, None, torch.float32),
    ],
)
def test_a_gpu_gets_the_type_that_the_weights_have(
    stated: str | None, held: Any, right: torch.dtype, tmp_path: Path, monkeypatch: Any
) -> None:
    name = demo_with(tmp_path / "m", dtype=stated)
    path = tmp_path / "m" / "model.safetensors"
    if held is None:  # pickled weights do not say it
        torch.save(load_file(path), path.with_name("pytorch_model.bin"))
        path.unlink()
    else:
        save_file({key: x.to(held) for key, x in load_file(path).items()}, path)
    use_devices(monkeypatch, GPU)
    assert plan(name).dtype == right


@pytest.mark.parametrize("more", [-1e6, 1e6])
def test_a_cpu_computes_in_float32_if_that_fits(more: float, monkeypatch: Any) -> None:
    full = plan("demo", ModelOptions(dtype="float32"), ON_CPU).spec
    least = memory.MemoryRequest(memory.LEAST_CONTEXT).need(full).total
    use_devices(monkeypatch, detect("cpu"), free=least / (1 - memory.SPARE) + more)
    planned = plan("demo", place=ON_CPU)
    if more > 0:
        assert (planned.dtype, planned.notices) == (torch.float32, ())
    else:
        assert planned.dtype == torch.bfloat16
        assert f"float32 needs {memory.format_bytes(least)}" in planned.notices[0]


@pytest.fixture
def fp8(tmp_path: Path) -> str:
    """A checkpoint in FP8 with a scale for every block."""
    stated = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    name = demo_with(tmp_path / "fp8", quantization_config=stated)
    tensors = load_file(DEMO / "model.safetensors")
    for key in [key for key in tensors if "_proj" in key]:
        blocks = [-(-n // 64) for n in tensors[key].shape]
        tensors[key] = tensors[key].to(torch.float8_e4m3fn)
        tensors[key.replace("weight", "weight_scale_inv")] = torch.ones(blocks)
    save_file(tensors, tmp_path / "fp8" / "model.safetensors")
    return name


def test_fp8_becomes_plain_if_it_cannot_be_multiplied(fp8: str) -> None:
    loaded = load(plan(fp8, place=ON_CPU))
    assert loaded.spec.weights == "float32"
    assert loaded.spec.weight_bytes == sum(p.nbytes for p in loaded.model.parameters())
    (line,) = loaded.notices
    assert "FP8" in line


@pytest.mark.parametrize(("capability", "weights"), [((8, 0), "bfloat16"), ((8, 9), "fp8")])
def test_fp8_stays_if_supported(capability: Any, weights: str, fp8: str, monkeypatch: Any) -> None:
    use_devices(monkeypatch, GPU)
    answers = {"cuda:1": capability}
    monkeypatch.setattr(torch.cuda, "get_device_capability", answers.__getitem__)
    assert plan(fp8).spec.weights == weights


def in_16_bits(
    folder: Path, family: str, dtype: torch.dtype, change: Callable[[dict[str, Any]], object]
) -> str:
    """A small model whose weights are saved in a type of 16 bits, after a change to them."""
    name = saved(folder, family, vocab_size=300, hidden_size=64)
    weights = {key: x.to(dtype) for key, x in load_file(folder / "model.safetensors").items()}
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return name


def tie_twice(weights: dict[str, Any]) -> None:
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()


def widen_one(weights: dict[str, Any]) -> None:
    key = "model.layers.0.mlp.down_proj.weight"
    weights[key] = weights[key].float() * 1.001


@pytest.mark.skipif(not packs_halves(), reason="this processor packs no 16-bit weights")
@pytest.mark.parametrize(
    ("family", "dtype", "change", "stays"),
    [
        ("llama_tied", torch.bfloat16, dict.copy, True),
        ("qwen2", torch.float16, dict.copy, True),
        ("gemma3", torch.bfloat16, dict.copy, True),
        ("phi3", torch.bfloat16, dict.copy, True),
        ("llama_tied", torch.bfloat16, tie_twice, False),
        ("llama", torch.bfloat16, widen_one, False),
    ],
)
def test_weights_of_16_bits_stay_in_the_file_and_give_the_text_of_float32(
    family: str, dtype: torch.dtype, change: Any, stays: bool, tmp_path: Path
) -> None:
    name = in_16_bits(tmp_path, family, dtype, change)
    loaded = load(plan(name, place=ON_CPU))
    held = sum(parameter.nbytes for parameter in loaded.model.parameters())
    assert (held < loaded.spec.weight_bytes / 4) == stays
    session = Session(loaded)
    assert isinstance(session.decoder.executor.model, Transformer)
    stock = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    assert session.stock_model.dtype == torch.float32
    prompt = prompt_for(family)
    expected = transformers_ids(stock, prompt, 40)
    for strategy in ("autoregressive", "lookahead"):
        assert ids_of(run(session.decoder, prompt, strategy)) == expected


@pytest.mark.skipif(not packs_halves(), reason="this processor packs no 16-bit weights")
def test_weights_in_a_file_serve_the_forward_of_transformers_where_ours_is_wrong(
    tmp_path: Path, monkeypatch: Any
) -> None:
    name = in_16_bits(tmp_path, "llama", torch.bfloat16, dict.copy)
    forward = Transformer.forward
    monkeypatch.setattr(Transformer, "forward", lambda *args: forward(*args) + 1.0)
    session = Session(load(plan(name, place=ON_CPU)))
    assert not isinstance(session.decoder.executor.model, Transformer)
    stock = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    prompt = prompt_for("llama")
    assert ids_of(run(session.decoder, prompt)) == transformers_ids(stock, prompt, 40)


SAMPLES = {"do_sample": True}
GREEDY = {"do_sample": False}
UNSAID = SamplingConfig(temperature=0.7, top_p=0.9)
"""The sampling of chats if a model does not say whether to sample."""
TOP_50 = SamplingConfig(temperature=1.0, top_k=50)
"""transformers' defaults for missing or invalid values."""
GENERATION: list[tuple[dict[str, Any], SamplingConfig, set[int], list[str]]] = [
    ({}, UNSAID, {2}, []),
    ({"eos_token_id": 5, "temperature": "hot"}, UNSAID, {5}, ["temperature 'hot'"]),
    ({"temperature": 0.5, "top_k": 9}, replace(UNSAID, temperature=0.5, top_k=9), {2}, []),
    (GREEDY | {"temperature": 0.5}, SamplingConfig(), {2}, []),
    (SAMPLES | {"eos_token_id": [100, 99], "top_k": -5}, TOP_50, {99}, ["top_k -5"]),
    (
        SAMPLES | {"top_k": math.inf, "temperature": math.nan, "top_p": 10**400},
        *(TOP_50, {2}, ["temperature nan", "top_k inf", f"top_p {10**400}"]),
    ),
    (
        SAMPLES | {"min_p": 0.1, "top_p": None, "num_beams": 4},
        *(replace(TOP_50, min_p=0.1), {2}, ["num_beams"]),
    ),
    (GREEDY | {"repetition_penalty": 2}, SamplingConfig(repetition_penalty=2.0), {2}, []),
]


@pytest.mark.parametrize(("fields", "sampling", "ends", "ignored"), GENERATION)
def test_valid_fields_of_a_generation_config_are_used(
    fields: Any, sampling: SamplingConfig, ends: set[int], ignored: list[str]
) -> None:
    config = transformers.GenerationConfig()
    config.update(**fields)
    defaults = AnswerDefaults(config, SimpleNamespace(eos_token_id=2), 100)
    assert defaults.sampling == sampling
    assert defaults.without_samples.greedy
    assert defaults.without_samples.repetition_penalty == sampling.repetition_penalty
    assert defaults.stop_ids == ends
    assert defaults.ignored == ignored


def test_soft_caps_work_with_every_version_of_transformers(tmp_path: Path) -> None:
    """transformers before 5.21 took attention that leaves them out, so no trial step agreed."""
    assert ladecli.load(saved(tmp_path, "gemma2", vocab_size=300)).notices == ()


def test_unread_weights_are_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="check its num_hidden_layers"):
        ladecli.load(demo_with(tmp_path / "m", num_hidden_layers=1))


# Weights that bitsandbytes packs, on a CPU.


NEAR_TIE = 0.05
"""Quantised products round rows of one step and of several differently.  If the best two
logits are closer than this share of their spread, either may win."""
PROMPTS = ("def largest(items):\n", "What is lookahead decoding?")
PAPER = LookaheadConfig(7, 4, 7, sources=("trajectory",))


@pytest.fixture(scope="module", params=["4bit", "8bit"])
def packed(request: pytest.FixtureRequest) -> LoadedModel:
    with pytest.MonkeyPatch.context() as patch:
        # Else 8 bits on a CPU are ours (`test_int8`).
        patch.setattr(int8, "available", lambda: False)
        return load(plan("demo", ModelOptions(quantize=request.param), ON_CPU))


def answer(session: Session, prompt: str, config: LookaheadConfig | None = None) -> list[int]:
    """The ids of an answer, plain without a config."""
    strategy = "lookahead" if config else "autoregressive"
    ids = session.encode(prompt)
    return ids_of(run(session.decoder, ids, strategy, config or PAPER, limits=Limits(24)))


@pytest.mark.slow
def test_packed_weights_give_one_text_but_for_near_ties(packed: LoadedModel) -> None:
    """Our own forward calls their modules; transformers, plain decoding and lookahead agree."""
    session = Session(packed)
    assert isinstance(session.decoder.executor.model, Transformer)
    for prompt in PROMPTS:
        plain, ids = answer(session, prompt), session.encode(prompt)
        if prompt == PROMPTS[0]:
            assert transformers_ids(packed.model, ids, 24) == plain
        with torch.inference_mode():
            logits = packed.model(torch.tensor([ids + plain])).logits[0, len(ids) - 1 : -1].float()
        best = logits.topk(2).values
        leads = (best[:, 0] - best[:, 1]) / logits.std(-1)
        for config in (LookaheadConfig(5, 3, 5, 60), PAPER):
            other = answer(session, prompt, config)
            assert len(other) == len(plain) == 24
            apart = next((i for i in range(24) if other[i] != plain[i]), None)
            # The number of texts with a near-tie depends on the kernels of the machine.
            assert apart is None or leads[apart] < NEAR_TIE


@pytest.mark.slow
def test_the_plan_knows_the_size_of_packed_weights(packed: LoadedModel) -> None:
    assert packed.spec.weights in ("nf4", "int8")
    held = packed.model.get_memory_footprint()
    # transformers does not count scales.
    assert held <= packed.spec.weight_bytes * 1.001
    assert held > packed.spec.weight_bytes * 0.95


def test_shapes_that_kernels_refuse_give_one_line(tmp_path: Path, monkeypatch: Any) -> None:
    sizes = {"hidden_size": 60, "intermediate_size": 100, "num_attention_heads": 2}
    folder = saved(tmp_path, "llama", vocab_size=300, **sizes)
    # The refused shapes depend on the processor, so this simulates a refusal.
    refusal = Mock(side_effect=AssertionError("N must be divisible by block_n\nand more"))
    monkeypatch.setattr("bitsandbytes.nn.Linear4bit.forward", refusal)
    line = r"cannot be computed in nf4 on .*: N must be divisible by block_n; try another --"
    with pytest.raises(LoadError, match=line):
        load(plan(folder, ModelOptions(quantize="4bit"), ON_CPU))


def test_a_checkpoint_is_not_quantised_twice(tmp_path: Path) -> None:
    change = stating("config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    folder = copied(DEMO, tmp_path / "packed", change)
    line = r"is quantised already \(gptq\); leave --quantize out"
    with pytest.raises(UsageError, match=line):
        load(plan(folder, ModelOptions(quantize="4bit"), ON_CPU))


@pytest.mark.slow
def test_a_quantised_checkpoint_loads_as_it_is(packed: LoadedModel, tmp_path: Path) -> None:
    # That may change it: with AVX-512 in bfloat16 bitsandbytes packs weights, and rounds scales.
    packed.model.save_pretrained(tmp_path)
    packed.tokenizer.save_pretrained(tmp_path)
    again = load(plan(str(tmp_path), place=ON_CPU))
    assert again.spec.weights == packed.spec.weights
    assert answer(Session(again), PROMPTS[0]) == answer(Session(packed), PROMPTS[0])
