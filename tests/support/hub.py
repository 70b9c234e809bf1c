"""A Hugging Face cache with models that weigh nothing, and machines to run them on."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

import ladecli
from ladecli.models import device, placement
from ladecli.models.describe import describe
from ladecli.models.device import Device
from ladecli.models.find import find
from ladecli.models.fit import PlannedModel, fit
from ladecli.options.model import ModelOptions, PlacementOptions

CPU = Device("cpu", "cpu", "Some Processor", int(32e9), 2)
DEMO = Path(ladecli.__file__).with_name("demo")
"""The folder of the bundled model."""
LLAMA_7B: dict[str, Any] = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "float16"},
    **{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000},
    "max_position_embeddings": 4096,
}
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n"
"""The pointer that a clone without Git LFS has in place of a file."""
SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "vocab_size": 1000}


def plan(
    name: str,
    options: ModelOptions | None = None,
    place: PlacementOptions | None = None,
    split: int = 1,
) -> PlannedModel:
    """Return a model that is ready to load, by its name and options."""
    return fit(describe(find(replace(options or ModelOptions(), model=name))), place, split)


def stating(file: str, **values: Any) -> Callable[[Path], object]:
    """Return a function that changes keys of a JSON file in a folder."""

    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def holding(name: str, data: str | bytes) -> Callable[[Path], object]:
    """Return a function that writes a file of a folder."""
    content = data if isinstance(data, bytes) else data.encode()
    return lambda folder: (folder / name).write_bytes(content)


def renaming(file: str, names: Callable[[str], Iterable[str]]) -> Callable[[Path], object]:
    """Return a function that saves each weight in a file under other names, none or several."""

    def change(folder: Path) -> None:
        path = folder / file
        tensors = {new: x.clone() for name, x in load_file(path).items() for new in names(name)}
        save_file(tensors, path, metadata={"format": "pt"})

    return change


def without(*names: str) -> Callable[[Path], object]:
    """Return a function that deletes files."""
    return lambda folder: [(folder / name).unlink() for name in names]


def copied(folder: str | Path, copy: Path, *changes: Callable[[Path], object]) -> str:
    """Copy a model's folder with some changes."""
    shutil.copytree(folder, copy)
    for change in changes:
        change(copy)
    return str(copy)


def weights(*tensors: tuple[str, tuple[int, ...]], missing: int = 0) -> tuple[bytes, int]:
    """Return the head of a safetensors file of types and shapes, and the size of the whole; the
    file lacks `missing` bytes at its end."""
    sizes = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "U8": 1, "F8_E4M3": 1}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for number, (kind, shape) in enumerate(tensors):
        begin, end = end, end + math.prod(shape) * sizes[kind]
        header[f"t{number}"] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + end - missing


def add_model(
    cache: Path,
    name: str,
    config: Mapping[str, Any] | str | None,
    files: Mapping[str, tuple[bytes, int] | bytes | None] | None = None,
    *,
    tokenizer: bool = True,
    revision: str = "a" * 40,
    main: bool = True,
) -> Path:
    """Put a model into a cache, and return the folder of its files.

    Args:
        cache: the folder of all models.
        name: OWNER/NAME.
        config: as a dictionary, or the text of its file; None for none.
        files: contents by name; a header and a size, the rest a hole; None for a dangling link.
        tokenizer: True for a model with a tokenizer.
        revision: the commit.
        main: True if main points to this revision.
    """
    root = cache / ("models--" + name.replace("/", "--"))
    snapshot = root / "snapshots" / revision
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True)
    if main:
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / "main").write_text(revision)
    all_files: dict[str, tuple[bytes, int] | bytes | None] = dict(files or {})
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        all_files["config.json"] = text.encode()
    if tokenizer:
        all_files["tokenizer.json"] = b"{}"
    for number, (path, contents) in enumerate(sorted(all_files.items())):
        blob = root / "blobs" / f"{revision[0]}{number:039d}"
        if contents is not None:
            head, size = contents if isinstance(contents, tuple) else (contents, len(contents))
            blob.write_bytes(head)
            os.truncate(blob, size)
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).symlink_to(os.path.relpath(blob, (snapshot / path).parent))
    return snapshot


def use_cache(monkeypatch: pytest.MonkeyPatch, folder: Path, *, offline: bool = True) -> None:
    """Use a folder as the Hugging Face cache; it may be empty, or missing."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)


def use_devices(
    monkeypatch: pytest.MonkeyPatch,
    *devices: Device,
    free: float = 16e9,
    capability: str | None = None,
) -> None:
    """Pretend that the machine has these devices, the preferred one first and a processor last,
    with `free` bytes on each, and a compute capability of the first one."""
    driver = "550.54.15" if devices[0].kind == "cuda" else None
    known = device.Details(driver, capability, 8)
    for module in (device, placement):
        monkeypatch.setattr(module, "present", lambda: list(devices))
    monkeypatch.setattr(device, "details", lambda _: known)
    monkeypatch.setattr(device, "detect", lambda name="auto": devices[-1 if name == "cpu" else 0])
    monkeypatch.setattr(device, "predict_device", lambda name="auto": device.detect(name))
    monkeypatch.setattr(device, "gpu_build", lambda: None)
    for module in (device, placement):
        monkeypatch.setattr(module, "free_memory", lambda _: int(free))
