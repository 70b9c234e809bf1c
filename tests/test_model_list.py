"""`lade models`: every state that a cache can be in is told, and none of them ends the program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ladecli import model_list
from ladecli.device import Device
from ladecli.library import hub
from ladecli.library.hub_cache import Entry, entries
from ladecli.library.model import Model
from ladecli.library.model_table import table
from ladecli.model_list import examine, run
from ladecli.program import entry

from .hub_files import LLAMA_7B, SMALL, add_model, weights

CPU = Device("cpu", "cpu", "Some Processor", int(32e9), 2)
GPU = Device("cuda", "cuda:0", "Some GPU", int(8e9))
ONE = {"model.safetensors": weights(("F16", (1000, 1000)))}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = json.dumps({"metadata": {}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode()
BINARY = json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}).encode()


def looked_at(cache: Path, device: Device = CPU, free: float = 16e9) -> dict[str, Model]:
    return {e.name: examine(e, device, int(free)) for e in entries(cache)}


def family(name: str, **more: Any) -> dict[str, Any]:
    return {**SMALL, "model_type": name, **more}


def test_a_sharded_model_is_read_from_its_heads(tmp_path: Path) -> None:
    files = {
        "model.safetensors.index.json": INDEX,
        SHARDS[0]: weights(("F16", (3_000_000_000,))),
        SHARDS[1]: weights(("F16", (3_738_415_616,))),
    }
    add_model(tmp_path, "meta-llama/Llama-2-7b-hf", LLAMA_7B, files)
    model = looked_at(tmp_path)["meta-llama/Llama-2-7b-hf"]
    assert model.parameters == 6_738_415_616
    assert model.size_bytes == pytest.approx(13.48e9, rel=0.01)
    assert (model.family, model.dtype, model.context) == ("llama", "float16", 4096)
    assert (model.supported, model.tested, model.notes) == (True, True, ())


@pytest.mark.parametrize(
    ("device", "free", "fits"),
    [
        (CPU, 40e9, "float32"),
        (CPU, 24e9, "bfloat16"),
        (CPU, 13e9, "8bit"),
        (CPU, 9e9, "4bit"),
        (CPU, 4e9, None),
        (GPU, 24e9, "float16"),
        (GPU, 13e9, "8bit"),
        (GPU, 9e9, "4bit"),
        (GPU, 2e9, None),
        (Device("mps", "mps", "Apple M2"), 13e9, None),
    ],
)
def test_the_first_setting_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device, free: float, fits: str | None
) -> None:
    from ladecli import models

    monkeypatch.setattr(models, "detect", lambda _: device)
    monkeypatch.setattr(models, "free_memory", lambda _: free)
    add_model(tmp_path, "a/7b", LLAMA_7B, ONE)
    model = looked_at(tmp_path, device, free)["a/7b"]
    assert model.fits == fits
    assert model.supported
    assert model.needs_bytes is not None
    assert (model.needs_bytes <= free) == (fits is not None)
    if fits is None:
        assert model.notes[0].startswith("needs ")


ODD: list[tuple[str, Any, dict[str, Any], bool | None, str]] = [
    ("mamba", family("mamba", architectures=["MambaForCausalLM"]), ONE, False, "recurrent state"),
    ("whisper", {"model_type": "whisper"}, ONE, False, "'whisper' are not supported"),
    (
        "bert",
        family("bert", architectures=["BertForMaskedLM"]),
        ONE,
        False,
        "is no causal language model but a BertForMaskedLM",
    ),
    ("clip", {"model_type": "clip", "architectures": ["CLIPModel"]}, ONE, False, "but a CLIPModel"),
    ("diffusion", None, {"model_index.json": b"{}"}, None, "is a diffusion pipeline"),
    ("adapter", None, {"adapter_config.json": b"{}"}, None, "is an adapter for another model"),
    ("gguf", None, {"x.Q4_K_M.gguf": b"GGUF"}, None, "holds GGUF files"),
    ("empty", None, {"README.md": b"hello"}, None, "holds no config.json"),
    ("broken", '{"model_type": ', ONE, None, "config.json cannot be read: Expecting value"),
    ("list", "[1]", ONE, None, "its config.json is no JSON object"),
    ("binary", b"\xff\xfe", ONE, None, "cannot be read"),
    ("config-only", LLAMA_7B, {}, None, "only the configuration was downloaded"),
    (
        "shards",
        LLAMA_7B,
        {"model.safetensors.index.json": INDEX, SHARDS[0]: ONE["model.safetensors"]},
        None,
        "1 of 2 files of weights are missing",
    ),
    (
        "dangling",
        LLAMA_7B,
        {"model.safetensors.index.json": INDEX, SHARDS[0]: None, SHARDS[1]: None},
        None,
        "2 of 2 files of weights are missing",
    ),
    (
        "index",
        LLAMA_7B,
        {"model.safetensors.index.json": b"[]"},
        None,
        "model.safetensors.index.json cannot be read; download it again",
    ),
    (
        "cut",
        LLAMA_7B,
        {"model.safetensors": weights(("F16", (10,)), missing=1)},
        None,
        "model.safetensors is cut off; download it again",
    ),
    ("noise", LLAMA_7B, {"model.safetensors": b"\xff" * 99}, None, "model.safetensors is damaged"),
    ("short", LLAMA_7B, {"model.safetensors": b"\x02"}, None, "model.safetensors is damaged"),
    (
        "variant",
        LLAMA_7B,
        {"model.fp16.safetensors": ONE["model.safetensors"]},
        None,
        "holds no model.safetensors but model.fp16.safetensors",
    ),
    (
        "own-code",
        {"model_type": "mine", "auto_map": {"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"}}
        | {"architectures": ["MineModel"]},
        ONE,
        None,
        "needs code of its own; read it, then allow it with --trust-remote-code",
    ),
    ("nonsense", family("llama", num_attention_heads="many"), ONE, None, "cannot be loaded: "),
    ("unknown", {"model_type": "unheard_of"}, ONE, None, "unheard_of"),
]


@pytest.mark.parametrize(("name", "config", "files", "supported", "note"), ODD)
def test_what_is_odd_is_told(
    tmp_path: Path,
    name: str,
    config: Any,
    files: dict[str, Any],
    supported: bool | None,
    note: str,
) -> None:
    if isinstance(config, bytes):
        files, config = {**files, "config.json": config}, None
    add_model(tmp_path, f"a/{name}", config, files)
    model = looked_at(tmp_path)[f"a/{name}"]
    assert model.supported is supported
    assert model.fits is None
    assert note in model.notes[0]
    assert str(tmp_path) not in model.notes[0]


def test_entries_without_files(tmp_path: Path) -> None:
    (tmp_path / "models--meta-llama--Gated" / "refs").mkdir(parents=True)
    broken_off = tmp_path / "models--a--b" / "blobs"
    broken_off.mkdir(parents=True)
    (broken_off / "0123.incomplete").write_bytes(b"12345")
    (tmp_path / "datasets--a--d" / "snapshots" / "0").mkdir(parents=True)
    (tmp_path / "spaces--a--s").mkdir()
    (tmp_path / ".locks").mkdir()
    (tmp_path / "models--file").write_text("no folder")
    found = looked_at(tmp_path)
    assert list(found) == ["a/b", "meta-llama/Gated"]
    assert found["a/b"].notes == ("the download broke off; `hf download a/b` finishes it",)
    assert found["a/b"].size_bytes == 5
    assert "a gated model needs `hf auth login` first" in found["meta-llama/Gated"].notes[0]


def test_main_is_the_revision_that_counts(tmp_path: Path) -> None:
    main = add_model(tmp_path, "a/b", family("mistral"), ONE, revision="b" * 40)
    other = add_model(tmp_path, "a/b", family("llama"), ONE, revision="c" * 40, main=False)
    os.utime(other, (2e9, 2e9))
    assert looked_at(tmp_path)["a/b"].family == "mistral"
    (tmp_path / "models--a--b" / "refs" / "main").unlink()
    assert looked_at(tmp_path)["a/b"].family == "llama", "the newest, where nothing is main"
    os.utime(main, (3e9, 3e9))
    assert looked_at(tmp_path)["a/b"].family == "mistral"


@pytest.mark.parametrize(
    ("given", "tensors", "dtype"),
    [
        ({"quant_method": "gptq", "bits": 4}, ("I32", (100, 100)), "gptq 4bit"),
        ({"quant_method": "awq", "w_bit": 4}, ("I32", (100, 100)), "awq 4bit"),
        ({"quant_method": "fp8"}, ("F8_E4M3", (100, 100)), "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("U8", (100, 1)), "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("U8", (100, 1)), "int8"),
    ],
)
def test_quantised_checkpoints(
    tmp_path: Path, given: dict[str, Any], tensors: tuple[str, tuple[int, ...]], dtype: str
) -> None:
    config = {**LLAMA_7B, "quantization_config": given}
    add_model(tmp_path, "a/q", config, {"model.safetensors": weights(tensors)})
    model = looked_at(tmp_path)["a/q"]
    assert model.dtype == dtype
    # Packed weights cannot be counted; the shape tells how many there are.
    assert model.parameters == 6_738_415_616
    # A CPU unpacks FP8, for which there is no room; and what is quantised is not packed again.
    assert (model.fits is None) == (dtype == "fp8")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_list.parts, "version", lambda _: None)
    config = {**LLAMA_7B, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    add_model(tmp_path, "a/q", config, {"model.safetensors": weights(("I32", (10,)))})
    assert looked_at(tmp_path)["a/q"].notes == (
        "needs gptqmodel and optimum: pip install gptqmodel optimum",
    )


def test_old_weights_and_old_names(tmp_path: Path) -> None:
    files = {
        "pytorch_model.bin.index.json": BINARY,
        "pytorch_model-00001-of-00001.bin": (b"", 4_000_000),
    }
    config = {"model_type": "gpt2", "n_positions": 1024, "architectures": ["GPT2LMHeadModel"]}
    add_model(tmp_path, "gpt2", {**config, "torch_dtype": "float32", "is_decoder": "?"}, files)
    found = model_list.checkpoint.read(entries(tmp_path)[0].folder or tmp_path)
    assert (found.parameters, found.context, found.dtype) == (1_000_000, 1024, "float32")
    assert found.problem is None


def test_an_untested_family_is_called_so(tmp_path: Path) -> None:
    add_model(tmp_path, "a/exaone", family("olmo", pad_token_id=1), ONE)
    model = looked_at(tmp_path)["a/exaone"]
    assert (model.supported, model.tested) == (True, False)
    assert model.notes == ("a family without tests here: tried before the first answer",)


LONG = "meta-llama/Llama-2-7b-chat-hf-with-a-long-name"
ROWS = [
    Model("demo", "/x", 6_569_619, "llama", "bfloat16", 3148224, 2048, "float32", 10, True, True),
    Model(LONG, "/x", int(13.5e9), "llama", "float16", 6738415616, 131072, "4bit", 1, True, False),
    Model("a/q", "/x", int(35e9), "llama", "gptq 4bit", int(7e10), 32768, None, 1, True, True),
    Model("a/m", None, 0, notes=("one note that is so long that it must wrap; " * 2 + "\x1b[31m",)),
]


def test_the_table_at_80_columns() -> None:
    assert [line.plain.rstrip() for line in table(ROWS, 80)] == [
        "model                          size  params  type   dtype   ctx  fits  lookahead",
        "demo                        6.57 MB    3.1M  llama  bf16   2048  fp32  yes",
        LONG,
        "                            13.5 GB    6.7B  llama  fp16   128k  4bit  untested",
        "a/q                           35 GB     70B  llama  gptq    32k  no    yes",
        "a/m                         0 bytes       -  -      -         -  -     -",
        "    one note that is so long that it must wrap; one note that is so long that it",
        "    must wrap; [31m",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_its_screen(width: int) -> None:
    least = max(len(LONG), 61)
    for line in table(ROWS, width):
        assert line.cell_len <= max(width, least)


def test_a_pipe_gets_one_line_for_each_model() -> None:
    lines = [line.plain for line in table(ROWS, None)]
    assert len(lines) == 1 + len(ROWS)
    assert lines[2].startswith(f"{LONG}  13.5 GB")
    assert "\x1b" not in "".join(lines)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the hub's cache."""
    monkeypatch.setattr(model_list.hub_cache, "location", lambda: tmp_path / "hub")
    return tmp_path / "hub"


def test_the_command(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(cache, "z/last", family("mamba"), ONE)
    add_model(cache, "A/first", family("llama", pad_token_id=1), ONE)
    assert entry(["models", "--color", "never"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["model", "A/first", "demo", "z/last"]
    assert err.startswith("lade: 3 models; fits: with 4096 tokens of context in the ")
    assert "\x1b" not in out


def test_json(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(cache, "z/last", family("mamba"), ONE)
    assert entry(["models", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["schema"], found["cache"], err) == (1, str(cache), "")
    demo, mamba = found["models"]
    assert (demo["name"], demo["supported"], demo["fits"]) == ("demo", True, "float32")
    assert (mamba["name"], mamba["supported"], mamba["family"]) == ("z/last", False, "mamba")


def test_an_empty_cache_says_what_to_do(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("auto") == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["model", "demo"]
    assert f"no models in {cache} yet; `lade chat " in err


def test_slips_are_met_with_names_from_the_cache(cache: Path) -> None:
    add_model(cache, "owner/tiny-llama", SMALL, ONE)
    (cache / "models--owner--tiny-lama-gated" / "refs").mkdir(parents=True)
    assert hub.suggest("./tiny-llama") == "; did you mean: owner/tiny-llama"


def test_an_entry_may_vanish_while_it_is_read(tmp_path: Path) -> None:
    model = examine(Entry("a/b", tmp_path / "gone", 1), CPU, 10)
    assert "holds no config.json" in model.notes[0]
