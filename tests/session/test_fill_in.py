"""Fill-in-the-middle: the prompt with the special tokens of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.scripts import FakeModel

FORMS = {
    "qwen": ("<|fim_prefix|>", "def f():", "<|fim_suffix|>", "x", "<|fim_middle|>"),
    "starcoder": ("<fim_prefix>", "def f():", "<fim_suffix>", "x", "<fim_middle>"),
    "codellama": ("\u2581<PRE>", "def f():", "\u2581<SUF>", "x", "\u2581<MID>"),
    "codestral": ("[SUFFIX]", "x", "[PREFIX]", "def f():"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_prompt_is_that_of_the_model(form: str, lade: Any, tmp_path: Path) -> None:
    parts = FORMS[form]
    marks = [part for part in parts if part not in ("def f():", "x")]
    cue = parts[-1]
    new = [mark for mark in marks if mark != cue]
    folder = FakeModel("", ("return", " 1", *new[:1], "lost"), new, cue).write(tmp_path / "model")
    (tmp_path / "after").write_text("x")
    asked = ("generate", folder, "-p", "def f():", "--suffix-file", str(tmp_path / "after"))
    answer = lade(*asked, "--json").json()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    right = [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False)]
    assert answer["usage"]["prompt_tokens"] == len(right)
    assert (answer["text"], answer["finish_reason"]) == ("return 1", "stop")


def test_a_model_without_fill_in_the_middle(lade: Any, tmp_path: Path) -> None:
    (tmp_path / "after").write_text("x")
    asked = ("generate", "demo", "-p", "def f():", "--suffix-file", str(tmp_path / "after"))
    assert "fill in the middle" in lade(*asked).refused()
    assert "--system" in lade(*asked, "-s", "be brief").refused()
    assert lade("generate", "-p", "a", "--suffix-file", str(tmp_path / "none")).code == 2
