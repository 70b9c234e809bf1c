"""`lade models`: what is in the cache, whether it fits, and what is wrong with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ladecli.errors import LoadError
from ladecli.specs import hub
from ladecli.specs.device import Device
from ladecli.specs.model_files import missing_packages

from .hub_files import CPU, LLAMA_7B, SMALL, add_model, use_cache, use_devices, weights

GPU = Device("cuda", "cuda:0", "Some GPU", int(80e9))
ONE = {"model.safetensors": weights(("F16", (1000, 1000)))}
SEVEN = {"model.safetensors": weights(("F16", (6_738_415_616,)))}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = json.dumps({"metadata": {}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the Hugging Face cache, on a machine of 16 GB."""
    use_devices(monkeypatch, CPU)
    use_cache(monkeypatch, tmp_path / "hub", offline=False)
    return tmp_path / "hub"


@pytest.fixture
def listed(lade: Any) -> Any:
    """What `lade models --json` says of each model, by its name."""

    def call() -> dict[str, dict[str, Any]]:
        done = lade("models", "--json")
        assert (done.code, done.err) == (0, "")
        return {model["name"]: model for model in done.json()["models"]}

    return call


def test_json(cache: Path, lade: Any) -> None:
    add_model(cache, "z/last", {**SMALL, "model_type": "mamba"}, ONE)
    found = lade("models", "--json").json()
    assert found.keys() == {"schema", "cache", "device", "context", "models"}
    assert (found["schema"], found["cache"], found["context"]) == (1, str(cache), 4096)
    assert found["device"] == {"name": "cpu", "label": "Some Processor", "free_bytes": int(16e9)}
    demo, mamba = found["models"]
    assert (demo["name"], demo["supported"], demo["tested"]) == ("demo", True, True)
    assert (demo["family"], demo["dtype"], demo["fits"]) == ("llama", "bfloat16", "float32")
    assert (mamba["name"], mamba["supported"], mamba["family"]) == ("z/last", True, "mamba")
    assert demo.keys() == mamba.keys()
    assert (demo["drafts"], mamba["drafts"]) == ("trees", "none")
    assert "recurrent state" in mamba["notes"][0]


def test_a_sharded_model(cache: Path, listed: Any) -> None:
    files = {
        "model.safetensors.index.json": INDEX,
        SHARDS[0]: weights(("F16", (3_000_000_000,))),
        SHARDS[1]: weights(("F16", (3_738_415_616,))),
    }
    folder = add_model(cache, "meta-llama/Llama-2-7b-hf", LLAMA_7B, files)
    model = listed()["meta-llama/Llama-2-7b-hf"]
    assert (model["path"], model["parameters"]) == (str(folder), 6_738_415_616)
    assert model["size_bytes"] == pytest.approx(13.48e9, rel=0.01)
    assert (model["family"], model["dtype"], model["context"]) == ("llama", "float16", 4096)
    assert (model["supported"], model["tested"], model["notes"]) == (True, True, [])


@pytest.mark.parametrize(
    ("device", "free", "fits"),
    [
        (CPU, 40e9, "float32"),
        (CPU, 24e9, "bfloat16"),
        (CPU, 15e9, "8bit"),
        (CPU, 11e9, "4bit"),  # 8 bits have keys and values in float32
        (CPU, 9e9, "4bit"),
        (CPU, 4e9, None),
        (GPU, 24e9, "float16"),
        (GPU, 9e9, "4bit"),
        (Device("mps", "mps", "Apple M2"), 13e9, None),
    ],
)
def test_the_first_setting_that_fits(
    cache: Path,
    listed: Any,
    monkeypatch: pytest.MonkeyPatch,
    device: Device,
    free: float,
    fits: str | None,
) -> None:
    use_devices(monkeypatch, device, free=free)
    add_model(cache, "a/7b", LLAMA_7B, SEVEN)
    model = listed()["a/7b"]
    assert (model["fits"], model["supported"]) == (fits, True)
    assert (model["needs_bytes"] <= free) == (fits is not None)
    assert any("can be used" in note for note in model["notes"]) == (fits is None)


def family(name: str, **more: Any) -> dict[str, Any]:
    return {**SMALL, "model_type": name, **more}


ODD: dict[str, tuple[Any, dict[str, Any], bool | None, str]] = {
    "whisper": (family("whisper", is_encoder_decoder=True), ONE, False, "encoder-decoder"),
    "bert": (family("bert", architectures=["BertForMaskedLM"]), ONE, False, "a BertForMaskedLM"),
    "diffusion": (None, {"model_index.json": b"{}"}, None, "diffusion pipeline"),
    "adapter": (None, {"adapter_config.json": b"{}"}, None, "adapter"),
    "gguf": (None, {"x.Q4_K_M.gguf": b"GGUF"}, None, "GGUF"),
    "broken": ('{"model_type": ', ONE, None, "config.json is damaged"),
    "config-only": (LLAMA_7B, {}, None, "holds no weights"),
    "shards": (
        LLAMA_7B,
        {"model.safetensors.index.json": INDEX, SHARDS[0]: ONE["model.safetensors"]},
        None,
        "1 of 2 files",
    ),
    "dangling": (
        LLAMA_7B,
        {"model.safetensors.index.json": INDEX, SHARDS[0]: None, SHARDS[1]: None},
        None,
        "hf download a/dangling",
    ),
    "index": (LLAMA_7B, {"model.safetensors.index.json": b"[]"}, None, "index.json is damaged"),
    "cut": (
        LLAMA_7B,
        {"model.safetensors": weights(("F16", (10,)), missing=1)},
        None,
        "model.safetensors is damaged or cut off",
    ),
    "own-code": (
        {"model_type": "mine", "auto_map": {"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"}}
        | {"architectures": ["MineModel"]},
        ONE,
        None,
        "--trust-remote-code",
    ),
    "nonsense": (family("llama", num_attention_heads="many"), ONE, None, "heads is 'many'"),
    "billion": (family("llama", num_hidden_layers=10**9), ONE, None, "layers is 1000000000"),
    "nameless": (SMALL, ONE, None, "no model_type"),
}


def test_a_reason_for_each_model_that_does_not_work(cache: Path, listed: Any) -> None:
    for name, (config, files, _, _) in ODD.items():
        add_model(cache, f"a/{name}", config, files)
    (cache / "models--a--gated" / "refs").mkdir(parents=True)
    begun = add_model(cache, "a/begun", None, {}, tokenizer=False)
    (begun.parents[1] / "blobs" / "0123.incomplete").write_bytes(bytes(5000))
    (cache / "datasets--a--d" / "snapshots" / "0").mkdir(parents=True)
    (cache / "models--file").write_text("no folder")
    expected = {f"a/{name}": (supported, note) for name, (_, _, supported, note) in ODD.items()}
    for name in ("a/gated", "a/begun"):
        expected[name] = (None, f"hf download {name}")
    found = listed()
    assert found.keys() == {"demo", *expected}
    assert found["a/begun"]["size_bytes"] >= 5000
    for name, (supported, note) in expected.items():
        model = found[name]
        assert (model["supported"], model["fits"]) == (supported, None), name
        assert note in model["notes"][0], name
        assert str(cache) not in model["notes"][0], name


def test_main_is_the_revision_that_counts(cache: Path, listed: Any) -> None:
    add_model(cache, "a/b", family("mistral"), ONE, revision="b" * 40)
    other = add_model(cache, "a/b", family("llama"), ONE, revision="c" * 40, main=False)
    for path in other.iterdir():
        os.utime(path, (2e9, 2e9))
    assert listed()["a/b"]["family"] == "mistral"
    (cache / "models--a--b" / "refs" / "main").unlink()
    assert listed()["a/b"]["family"] == "llama", "the newest, where nothing is main"


@pytest.mark.parametrize(
    ("given", "tensors", "dtype"),
    [
        ({"quant_method": "gptq", "bits": 4}, ("I32", (1000, 1000)), "gptq 4bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("U8", (4_000_000, 1)), "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("U8", (8_000_000, 1)), "int8"),
    ],
)
def test_quantized_checkpoints(
    cache: Path, listed: Any, given: dict[str, Any], tensors: Any, dtype: str
) -> None:
    config = {**LLAMA_7B, "quantization_config": given}
    add_model(cache, "a/q", config, {"model.safetensors": weights(tensors)})
    model = listed()["a/q"]
    assert (model["dtype"], model["parameters"]) == (dtype, 8_000_000)
    if lacking := missing_packages(dtype):
        assert f"pip install {' '.join(lacking)}" in model["notes"][0]


def test_a_family_without_tests_is_called_so(cache: Path, listed: Any) -> None:
    add_model(cache, "a/arcee", family("arcee", pad_token_id=1), ONE)
    model = listed()["a/arcee"]
    assert (model["supported"], model["tested"], len(model["notes"])) == (True, False, 1)


def test_a_pipe_gets_one_line_for_each_model(cache: Path, lade: Any) -> None:
    long = "owner/" + "a-very-long-name-" * 8
    add_model(cache, long, family("mamba"), ONE)
    add_model(cache, "A/first", family("llama", pad_token_id=1, model_type="\x1b[31mx"), ONE)
    done = lade("models")
    _, head, _, *lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["A/first", "demo", long]
    assert " ".join(head.split()) == "model size params type dtype ctx fits lookahead"
    assert " ".join(lines[1].split()) == "demo 6.57 MB 3.1M llama bf16 2048 fp32 yes"
    assert lines[-1].startswith(f"{long}: ")
    assert "recurrent" in lines[-1]
    assert "\x1b" not in done.out
    assert "3 models" in done.err


def test_a_narrow_screen_keeps_names_and_what_fits(
    cache: Path, lade: Any, wide_screen: Any
) -> None:
    wide_screen(40)
    add_model(cache, "a-lab/tiny", family("llama"), ONE)
    shown = lade("models").out
    assert "a-lab/tiny" in shown
    assert "fits" in shown
    assert "dtype" not in shown


def test_an_empty_cache_names_a_model_to_try(lade: Any) -> None:
    done = lade("models")
    assert [line.split()[0] for line in done.out.splitlines()[3:]] == ["demo"]
    assert "lade chat " in done.err


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/owner/name",
        "huggingface.co/owner/name/tree/main",
        "https://hf.co/owner/name?library=transformers#usage",
        "hf.co/owner/name:Q4_K_M",
    ],
)
def test_the_address_of_a_model_on_the_hub(address: str, cache: Path, lade: Any) -> None:
    add_model(cache, "owner/name", family("t5", is_encoder_decoder=True), ONE)
    assert "'t5' are not supported" in lade("generate", address, "-p", "x").refused(1)


def test_what_the_cache_lacks_is_downloaded(cache: Path) -> None:
    folder = add_model(cache, "acme/half", LLAMA_7B | SMALL)  # all but its weights
    # Loading asks the hub for the rest; a folder of the user's is complete, or wrong.
    assert hub.check("acme/half", None, None, offline=False) == folder
    with pytest.raises(LoadError, match="holds no weights"):
        hub.check(str(folder), None, None, offline=False)
