"""GGUF files: chatted with as they are, unpacked by transformers; those that cannot be read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from .hub_files import add_model, use_cache

pytest.importorskip("gguf")

from .gguf_here import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file, small.gguf."""
    made = tmp_path_factory.mktemp("files")
    write(made / "small.gguf")
    return made


def test_the_text_is_that_of_transformers(
    folder: Path, lade: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"pretrained_model_name_or_path": folder, "gguf_file": "small.gguf"}
    model = AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(**given)("the cat sat on", return_tensors="pt")["input_ids"]
    mask = torch.ones_like(ids)
    told: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "do_sample": False}
    text = model.generate(ids, attention_mask=mask, max_new_tokens=30, **told)[0, ids.shape[1] :]
    capsys.readouterr()  # bars of its own
    asked = ("-p", "the cat sat on", "--raw", "-n", "30", "--ignore-eos", "--json")
    for name in (folder / "small.gguf", folder):
        done = lade("generate", str(name), *asked)
        answer = done.json()
        assert answer["token_ids"] == text.tolist()
        assert answer["decode"]["strategy"] == "lookahead", "its drafts are verified"
        told = r"small.gguf is unpacked to float32, which takes .*; --quantize 8bit takes less than"
        assert re.search(told, done.err)
        assert len(done.err.splitlines()) <= 2, "no bars of the libraries"


def test_one_of_several_is_named(folder: Path, lade: Any, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(folder / "small.gguf", tmp_path / name)
    asked = ("generate", str(tmp_path), "-p", "the", "-n", "2", "-q")
    told = lade(*asked).refused(1)
    assert "holds 2 GGUF files: name one with --gguf-file, of a.gguf, b.gguf" in told
    assert "holds no c.gguf; it has a.gguf, b.gguf" in lade(
        *asked, "--gguf-file", "c.gguf"
    ).refused(1)
    assert lade(*asked, "--gguf-file", "b.gguf").out


def test_one_in_the_cache_is_found_by_the_name_of_its_model(
    folder: Path, lade: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(monkeypatch, tmp_path, offline=False)
    contents = (folder / "small.gguf").read_bytes()
    add_model(tmp_path, "a/b-GGUF", None, {"b.gguf": contents}, tokenizer=False)
    (row,) = (m for m in lade("models", "--json").json()["models"] if m["name"] != "demo")
    assert (row["name"], row["dtype"]) == ("a/b-GGUF", "gguf")
    assert "b.gguf" in row["notes"][0]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (cut, "is damaged or cut off ("),
    "only its first bytes": (lambda p: p.write_bytes(b"GGUF\3\0\0\0"), "is damaged or cut off ("),
    "something else": (lambda p: p.write_bytes(b"hello there"), "is no GGUF file; download"),
    "images": (lambda p: write(p, "flux"), "transformers cannot read this GGUF file ("),
}


@pytest.mark.parametrize("case", BROKEN)
def test_files_that_cannot_be_read(case: str, folder: Path, lade: Any, tmp_path: Path) -> None:
    change, message = BROKEN[case]
    path = tmp_path / "broken.gguf"
    shutil.copy(folder / "small.gguf", path)
    change(path)
    told = lade("generate", str(path), "-p", "the").refused(1)
    assert str(path) in told
    assert message in told
