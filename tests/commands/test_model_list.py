"""`lade models`: the models in the cache, their sizes and faults."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ladecli.errors import LoadError
from ladecli.models.find import find
from ladecli.options.model import ModelOptions
from tests.support.hub import CPU, LLAMA_7B, SMALL, add_model, use_cache, use_devices, weights

ONE = {"model.safetensors": weights(("F16", (1000, 1000)))}
SEVEN = {"model.safetensors": weights(("F16", (6_738_415_616,)))}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
STATED = {"metadata": {}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
INDEX = {"model.safetensors.index.json": json.dumps(STATED).encode()}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder as the Hugging Face cache, on a machine with 16 GB."""
    use_devices(monkeypatch, CPU)
    use_cache(monkeypatch, tmp_path / "hub", offline=False)
    return tmp_path / "hub"


@pytest.fixture
def listed(lade: Any) -> Any:
    """Return the output of `lade models --json` by model name."""

    def call() -> dict[str, dict[str, Any]]:
        done = lade("models", "--json")
        assert (done.code, done.err) == (0, "")
        return {model["name"]: model for model in done.json()["models"]}

    return call


def test_json(cache: Path, lade: Any) -> None:
    folder = add_model(cache, "z/last", LLAMA_7B, SEVEN)
    listing = lade("models", "--json").json()
    assert listing.keys() == {"schema", "cache", "device", "context", "models"}
    assert (listing["schema"], listing["cache"], listing["context"]) == (2, str(cache), 4096)
    assert listing["device"] == {"name": "cpu", "label": "Some Processor", "free_bytes": int(16e9)}
    demo, last = listing["models"]
    assert (demo["name"], demo["fits"], demo["note"]) == ("demo", True, None)
    assert (last["name"], last["path"]) == ("z/last", str(folder))
    assert demo.keys() == last.keys()


@pytest.mark.parametrize(("free", "fits"), [(15e9, False), (17e9, True)])
def test_a_sharded_model_fits_with_room_for_a_context(
    cache: Path, listed: Any, monkeypatch: pytest.MonkeyPatch, free: float, fits: bool
) -> None:
    sizes = zip(SHARDS, (3_000_000_000, 3_738_415_616), strict=True)
    files = INDEX | {name: weights(("F16", (size,))) for name, size in sizes}
    use_devices(monkeypatch, CPU, free=free)
    add_model(cache, "meta-llama/Llama-2-7b-hf", LLAMA_7B, files)
    model = listed()["meta-llama/Llama-2-7b-hf"]
    assert model["size_bytes"] == pytest.approx(13.48e9, rel=0.01)
    assert model["needs_bytes"] == pytest.approx(13.48e9 + 2.15e9, rel=0.01)
    assert (model["fits"], model["note"]) == (fits, None)


def family(name: str, **more: Any) -> dict[str, Any]:
    return {**SMALL, "model_type": name, **more}


ODD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "whisper": (family("whisper", is_encoder_decoder=True), ONE, "encoder-decoder"),
    "bert": (family("bert", architectures=["BertForMaskedLM"]), ONE, "a BertForMaskedLM"),
    "diffusion": (None, {"model_index.json": b"{}"}, "diffusion pipeline"),
    "adapter": (None, {"adapter_config.json": b"{}"}, "adapter"),
    "gguf": (None, {"x.Q4_K_M.gguf": b"GGUF"}, ""),  # the fault depends on the installed packages
    "broken": ('{"model_type": ', ONE, "config.json is damaged"),
    "config-only": (LLAMA_7B, {}, "holds no weights"),
    "shards": (LLAMA_7B, INDEX | {SHARDS[0]: ONE["model.safetensors"]}, "1 of 2 files"),
    "dangling": (LLAMA_7B, INDEX | dict.fromkeys(SHARDS), "hf download a/dangling"),
    "index": (LLAMA_7B, dict.fromkeys(INDEX, b"[]"), "index.json is damaged"),
    "cut": (LLAMA_7B, dict.fromkeys(ONE, weights(("F16", (10,)), missing=1)), "is damaged or cut"),
    "nonsense": (family("llama", num_attention_heads="many"), ONE, "heads is 'many'"),
    "billion": (family("llama", num_hidden_layers=10**9), ONE, "layers is 1000000000"),
    "nameless": (SMALL, ONE, "no model_type"),
}


def test_a_reason_for_each_model_that_does_not_work(cache: Path, listed: Any) -> None:
    for name, (config, files, _) in ODD.items():
        add_model(cache, f"a/{name}", config, files)
    (cache / "models--a--gated" / "refs").mkdir(parents=True)
    begun = add_model(cache, "a/begun", None, {}, tokenizer=False)
    (begun.parents[1] / "blobs" / "0123.incomplete").write_bytes(bytes(5000))
    (cache / "datasets--a--d" / "snapshots" / "0").mkdir(parents=True)
    (cache / "models--file").write_text("no folder")
    expected = {f"a/{name}": note for name, (_, _, note) in ODD.items()}
    expected |= {name: f"hf download {name}" for name in ("a/gated", "a/begun")}
    models = listed()
    assert models.keys() == {"demo", *expected}
    assert models["a/begun"]["size_bytes"] >= 5000
    for name, note in expected.items():
        model = models[name]
        assert model["fits"] is None, name
        assert note in model["note"], name
        assert str(cache) not in model["note"], name


def test_the_revision_of_main_is_listed(cache: Path, listed: Any) -> None:
    add_model(cache, "a/b", family("mistral"), ONE, revision="b" * 40)
    other = add_model(cache, "a/b", family("llama"), ONE, revision="c" * 40, main=False)
    for path in other.iterdir():
        os.utime(path, (2e9, 2e9))
    assert listed()["a/b"]["path"].endswith("b" * 40)
    (cache / "models--a--b" / "refs" / "main").unlink()
    assert listed()["a/b"]["path"].endswith("c" * 40), "the newest, where nothing is main"


def test_a_pipe_gets_one_line_for_each_model(cache: Path, lade: Any) -> None:
    long = "owner/" + "a-very-long-name-" * 8
    add_model(cache, long, family("whisper", is_encoder_decoder=True), ONE)
    add_model(cache, "A/first", family("llama", model_type="\x1b[31mx"), ONE)
    done = lade("models")
    _, head, _, *lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["A/first", "demo", long]
    assert head.split() == ["model", "size", "fits", "path"]
    assert lines[1].split()[:4] == ["demo", "6.57", "MB", "yes"]
    assert lines[-1].startswith(f"{long}: not supported")
    assert "\x1b" not in done.out
    assert "3 models" in done.err


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


def test_missing_files_are_downloaded(cache: Path) -> None:
    folder = add_model(cache, "acme/half", LLAMA_7B | SMALL)  # all but its weights
    # Loading downloads the rest; only a user's own folder must be complete.
    assert find(ModelOptions(model="acme/half")).folder == folder
    with pytest.raises(LoadError, match="holds no weights"):
        find(ModelOptions(model=str(folder)))
