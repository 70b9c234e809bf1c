"""Loading: the model's own code, where weights go, and the type that they have there."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ladecli import device, memory, model_files, models, placement, trial
from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.errors import UnsupportedModelError
from ladecli.device import Device
from ladecli.errors import LoadError
from ladecli.options import LoadOptions

DEMO = Path(models.__file__).with_name("demo")
GPU = Device("cuda", "cuda:1", "Some GPU", 8 << 30)
OWN_CODE = """
from transformers import LlamaForCausalLM

class Mine(LlamaForCausalLM):
    pass
"""


def demo_with(folder: Path, **changes: Any) -> str:
    """A copy of the bundled model with another configuration; None removes a key."""
    shutil.copytree(DEMO, folder, dirs_exist_ok=True)
    config = json.loads((DEMO / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_code_of_the_model_runs_where_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = demo_with(tmp_path / "own", auto_map={"AutoModelForCausalLM": "modeling_own.Mine"})
    (tmp_path / "own" / "modeling_own.py").write_text(OWN_CODE)
    trusted = models.load(name, LoadOptions(device="cpu", trust_remote_code=True))
    assert type(trusted.model).__name__ == "Mine"
    other = models.load(name, LoadOptions(device="cpu"))
    assert type(other.model).__name__ == "LlamaForCausalLM"
    assert other.shape == trusted.shape
    assert capsys.readouterr().out == "", "nothing is asked"


@pytest.mark.parametrize("quantize", ["4bit", "8bit"])
def test_a_gpu_that_is_there_gets_nothing_that_is_for_the_processor(
    quantize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def where(planned: models.Plan) -> str | None:
        place = placement.keywords(planned.options, planned.device, planned.config, planned.dtype)
        return place.get("device_map")

    planned = models.plan("demo", LoadOptions(device="cpu", quantize=quantize))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert where(planned) == "cpu"
    packed = models.plan("demo", LoadOptions(device="cpu"))
    assert where(packed) is None
    packed.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    assert where(packed) == "cpu"


@pytest.mark.parametrize(
    ("told", "held", "expected"),
    [
        ("float16", torch.bfloat16, torch.float16),
        (None, torch.bfloat16, torch.bfloat16),
        (None, torch.float16, torch.float16),
        (None, torch.float32, torch.float32),
        (None, None, torch.float32),
    ],
)
def test_a_gpu_gets_the_type_that_the_weights_have(
    told: str | None,
    held: torch.dtype | None,
    expected: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = demo_with(tmp_path / "m", dtype=told)
    path = tmp_path / "m" / "model.safetensors"
    if held is None:
        path.unlink()
    else:
        save_file({key: x.to(held) for key, x in load_file(path).items()}, path)
    monkeypatch.setattr(models, "detect", lambda _: GPU)
    assert models.plan(name).dtype == expected
    assert model_files.stored_type(tmp_path / "m") == (str(held)[6:] if held else None)


@pytest.mark.parametrize("more", [-1e6, 1e6])
def test_float32_is_chosen_where_it_can_be_used_only(
    more: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = models.plan("demo", LoadOptions(device="cpu", dtype="float32")).shape
    least = memory.estimate(full, context=memory.LEAST_CONTEXT).total
    free = least / (1 - memory.SPARE) + more
    monkeypatch.setattr(models, "free_memory", lambda _: int(free))
    planned = models.plan("demo", LoadOptions(device="cpu"))
    context, _ = memory.room("demo", planned.shape, free, memory.Asked(2048))
    assert context >= memory.LEAST_CONTEXT
    if more > 0:
        assert (planned.dtype, planned.notices) == (torch.float32, ())
    else:
        assert planned.dtype == torch.bfloat16
        numbers = f"{memory.told(least)}, and {memory.told(memory.usable(free))}"
        assert planned.notices == (f"float32 needs {numbers} can be used: using bfloat16",)


@pytest.fixture
def fp8(tmp_path: Path) -> str:
    """A checkpoint in FP8 with a scale for every block."""
    name = demo_with(
        tmp_path / "fp8",
        quantization_config={"quant_method": "fp8", "weight_block_size": [64, 64]},
    )
    tensors = {}
    for key, weight in load_file(DEMO / "model.safetensors").items():
        tensors[key] = weight
        if "_proj" in key:
            blocks = [-(-n // 64) for n in weight.shape]
            tensors[key] = weight.to(torch.float8_e4m3fn)
            tensors[key.replace("weight", "weight_scale_inv")] = torch.ones(blocks)
    save_file(tensors, tmp_path / "fp8" / "model.safetensors")
    return name


def test_fp8_becomes_plain_where_it_cannot_be_multiplied(fp8: str) -> None:
    loaded = models.load(fp8, LoadOptions(device="cpu"))
    assert loaded.shape.weights == "bfloat16"
    assert loaded.shape.weight_bytes == sum(p.nbytes for p in loaded.model.parameters())
    processor = device.detect("cpu").label
    line = f"{processor} does not multiply in FP8: the weights become plain ones"
    assert loaded.notices == (line,)


@pytest.mark.parametrize(
    ("capability", "weights"), [((8, 0), "bfloat16"), ((8, 9), "fp8"), ((9, 0), "fp8")]
)
def test_fp8_stays_where_it_can(
    capability: tuple[int, int], weights: str, fp8: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(models, "detect", lambda _: GPU)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda name: asked.append(name) or capability
    )
    assert models.plan(fp8).shape.weights == weights
    assert asked == ["cuda:1"]


def test_no_memory_to_compute_with_is_no_reason_for_wider_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", fail)
    planned = models.plan("demo", LoadOptions(device="cpu", quantize="4bit"))
    model = transformers.AutoModelForCausalLM.from_config(planned.config)
    with pytest.raises(LoadError, match=r"^demo leaves no memory on .* or free some memory$"):
        trial.check("demo", planned.options, planned.device, planned.shape, model)


@pytest.mark.parametrize(("layers", "told"), [(1, True), (None, False)])
def test_layers_that_the_configuration_does_not_know_are_told(
    tmp_path: Path, layers: int | None, *, told: bool
) -> None:
    known = json.loads((DEMO / "config.json").read_text())["num_hidden_layers"]
    name = demo_with(tmp_path / "copy", num_hidden_layers=layers or known)
    weights = tmp_path / "copy" / "model.safetensors"
    # What has no place at all is no trouble: many checkpoints hold such.
    save_file({**load_file(weights), "other.9": torch.ones(2)}, weights, {"format": "pt"})
    line = f"the weights are of {known} layers and config.json has 1: the rest is not used"
    assert models.load(name, LoadOptions(device="cpu")).notices == ((line,) if told else ())


@pytest.mark.parametrize(
    ("keys", "most"),
    [
        (["model.layers.2.mlp.up_proj.weight", "lm_head.weight"], None),
        (["model.layers.3.mlp.up_proj.weight", "model.layers.4.a.weight"], 5),
        (["transformer.h.3.attn.weight"], 4),
        (
            [
                "visual.blocks.31.attn.qkv.weight",
                "model.vision_tower.layers.26.a",
                "mtp.layers.7.b",
            ],
            None,
        ),
        ([], None),
    ],
)
def test_only_whole_layers_that_are_not_used_are_told_of(keys: list[str], most: int | None) -> None:
    told = models._unused(keys, 3)
    if most is None:
        assert told == ()
    else:
        (line,) = told
        assert line.startswith(f"the weights are of {most} layers and config.json has 3:")


@pytest.mark.parametrize("name", ["foo bar", "a--b", "x..y", "ä/b"])
def test_what_is_no_name_of_a_model_is_told(name: str) -> None:
    with pytest.raises(LoadError, match=r"is no name of a model; use OWNER/NAME or a folder$"):
        models.plan(name, LoadOptions(device="cpu"))


@pytest.mark.parametrize("layers", [0, -1])
def test_a_model_without_layers_is_refused(tmp_path: Path, layers: int) -> None:
    name = demo_with(tmp_path / "copy", num_hidden_layers=layers)
    with pytest.raises(UnsupportedModelError, match=f"{layers} layers"):
        models.plan(name, LoadOptions(device="cpu"))


GENERATION = [
    ({}, SamplingConfig(), {2}, []),
    ({"eos_token_id": 5, "temperature": "hot"}, SamplingConfig(), {5}, []),
    (
        {"eos_token_id": [5, "x", 7], "do_sample": True, "temperature": "hot", "top_k": -5},
        SamplingConfig(temperature=1.0),
        {5, 7},
        ["eos_token_id [5, 'x', 7]", "temperature 'hot'", "top_k -5"],
    ),
    (
        {"eos_token_id": "x", "do_sample": True, "temperature": 2, "top_k": 7.0, "top_p": 0.5},
        SamplingConfig(temperature=2.0, top_k=7, top_p=0.5),
        {2},
        ["eos_token_id 'x'"],
    ),
    (
        {"eos_token_id": [True, -1, 100, 99], "do_sample": True, "top_k": 50.5},
        SamplingConfig(temperature=1.0),
        {99},
        ["eos_token_id [True, -1, 100, 99]", "top_k 50.5"],
    ),
    (
        {"do_sample": True, "top_k": math.inf, "temperature": math.nan, "top_p": 10**400},
        SamplingConfig(temperature=1.0),
        {2},
        ["temperature nan", "top_k inf", f"top_p {10**400}"],
    ),
    (
        {"do_sample": True, "min_p": 0.1, "top_p": None, "num_beams": 4},
        SamplingConfig(temperature=1.0, min_p=0.1),
        {2},
        ["num_beams"],
    ),
]


@pytest.mark.parametrize(("said", "sampling", "ends", "ignored"), GENERATION)
def test_a_generation_config_counts_as_far_as_it_makes_sense(
    said: dict[str, Any], sampling: SamplingConfig, ends: set[int], ignored: list[str]
) -> None:
    config = transformers.GenerationConfig()
    config.update(**said)
    model = SimpleNamespace(generation_config=config)
    tokenizer = SimpleNamespace(eos_token_id=2)
    shape: Any
    shape = SimpleNamespace(vocabulary=100)
    loaded = models.LoadedModel("x", model, tokenizer, GPU, shape, shape, (), 0.0)
    assert loaded.sampling == sampling
    assert loaded.stop_ids == ends
    assert loaded.ignored_settings == ignored


@pytest.mark.parametrize(
    ("said", "applied", "ignored"),
    [
        (1.2, 1.2, []),
        (2, 2.0, []),
        ("abc", 1.0, ["repetition_penalty 'abc'"]),
        (-1, 1.0, ["repetition_penalty -1"]),
        (0, 1.0, ["repetition_penalty 0"]),
        (True, 1.0, ["repetition_penalty True"]),
    ],
)
def test_a_penalty_of_a_file_that_makes_no_sense_is_told_and_left(
    tmp_path: Path, said: object, applied: float, ignored: list[str]
) -> None:
    name = demo_with(tmp_path / "copy")
    wanted = {"repetition_penalty": said, "do_sample": False}
    (tmp_path / "copy" / "generation_config.json").write_text(json.dumps(wanted))
    loaded = models.load(name, LoadOptions(device="cpu"))
    assert (loaded.repetition_penalty, loaded.sampling.repetition_penalty) == (applied, applied)
    assert loaded.ignored_settings == ignored
