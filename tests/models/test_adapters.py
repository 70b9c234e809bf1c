"""LoRA adapters: found beside their base, merged at load, exact, and refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from ladecli.decoder.backends import int8
from ladecli.models import adapters
from ladecli.models.model_files import ADAPTER
from tests.support.adapters import make
from tests.support.hub import (
    POINTER,
    add_model,
    copied,
    holding,
    renaming,
    stating,
    use_cache,
    without,
)

pytestmark = pytest.mark.slow

PROMPT = "the cat sat on"
WEIGHTS = "adapter_model.safetensors"
FORMS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"use_dora": True},
    "rslora with a bias": {"use_rslora": True, "bias": "lora_only"},
    "a whole module": {"modules_to_save": ["lm_head"]},
    "all of a kind": {"target_modules": "all-linear"},
    "some tokens": {"trainable_token_indices": [*range(100)]},
}
"""Kinds of adapters, by their settings."""


@cache
def expected(base: str, *folders: Path) -> list[int]:
    """Return the text of transformers' `generate` after peft has merged adapters."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    for folder in folders:
        model = peft.PeftModel.from_pretrained(model, folder).merge_and_unload()
    ids = transformers.AutoTokenizer.from_pretrained(base)(PROMPT, return_tensors="pt").input_ids
    return continued(model, ids)


def continued(model: Any, ids: torch.Tensor) -> list[int]:
    """Return transformers' continuation of a prompt."""
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    return [*map(int, model.generate(input_ids=ids, **options)[0, ids.shape[1] :])]


@pytest.fixture(scope="module")
def adapter(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(model_folder, tmp_path_factory.mktemp("adapters") / "first")


def answer(lade: Any, *arguments: str, prompt: str = PROMPT) -> tuple[list[int], str]:
    """Return the token ids of an answer, and the text on stderr."""
    options = ("-p", prompt, "-n", "24", "--ignore-eos", "--json", "--no-stats")
    result = lade("generate", *arguments, *options)
    return result.json()["token_ids"], result.err


@pytest.mark.skipif(not int8.available(), reason="this processor has no products of integers")
def test_merged_before_8_bits(lade: Any, model_folder: str, adapter: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    peft.PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(model_folder).save_pretrained(tmp_path)
    merged, _ = answer(lade, str(tmp_path), "--quantize", "8bit")
    plain, _ = answer(lade, model_folder, "--quantize", "8bit")
    assert answer(lade, str(adapter), "--quantize", "8bit")[0] == merged != plain


@pytest.mark.parametrize("form", FORMS)
def test_an_adapter_gives_what_the_merged_model_gives(
    form: str, lade: Any, model_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(model_folder, tmp_path / "adapter", **FORMS[form])
    right = expected(model_folder, folder)
    assert right != expected(model_folder)
    capsys.readouterr()  # progress bars of the loads above
    ids, notice = answer(lade, str(folder))
    assert ids == right
    line = rf"lade: adapter {folder} \(LoRA of rank 4\) is merged into {model_folder}, which takes "
    assert re.fullmatch(f"{line}.* as float32\n", notice)


NEW_TOKENS: dict[str, dict[str, Any]] = {
    "saved": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "adapted": {"target_modules": ["q_proj", "embed_tokens"]},
    "trained": {"trainable_token_indices": [5, 300]},
}
"""Kinds of adapters with additional tokens."""


@pytest.mark.parametrize("form", NEW_TOKENS)
def test_an_adapter_with_tokens_of_its_own(
    form: str, lade: Any, model_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|over|>"]})
    tokenizer.chat_template = "<|user|>{{ messages[-1].content }}<|over|>"
    folder = make(model_folder, tmp_path / "adapter", rows=len(tokenizer), **NEW_TOKENS[form])
    tokenizer.save_pretrained(folder)
    messages = [{"role": "user", "content": PROMPT}]
    ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=False)
    right = continued(peft.AutoPeftModelForCausalLM.from_pretrained(folder), ids)
    capsys.readouterr()
    assert answer(lade, str(folder))[0] == right


def test_adapters_on_a_model(lade: Any, model_folder: str, adapter: Path, tmp_path: Path) -> None:
    second = make(model_folder, tmp_path / "second", seed=1)
    copy = copied(model_folder, tmp_path / "copy")
    right = expected(model_folder, adapter, second)
    ids, notices = answer(lade, copy, "--adapter", str(adapter), "--adapter", str(second))
    assert ids == right
    assert notices.count(f"is merged into {copy}, which takes ") == 2
    assert notices.count(f"; it was made for {model_folder}\n") == 2
    assert answer(lade, str(adapter), "--adapter", str(second))[0] == right


def test_its_tokenizer_is_used(lade: Any, model_folder: str, adapter: Path, tmp_path: Path) -> None:
    """Chat adapters are trained with their own template."""
    copy = copied(adapter, tmp_path / "chat")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    tokenizer.chat_template = "{{ messages[-1].content }}: "
    tokenizer.save_pretrained(copy)
    assert answer(lade, copy)[0] == answer(lade, str(adapter), prompt=f"{PROMPT}: ")[0]


def test_the_bases_generation_config_is_used(lade: Any, model_folder: str, tmp_path: Path) -> None:
    plain = expected(model_folder, make(model_folder, tmp_path / "plain"))
    asks = {"no_repeat_ngram_size": 2, "suppress_tokens": plain[:1]}
    base = copied(model_folder, tmp_path / "base", stating("generation_config.json", **asks))
    folder = make(base, tmp_path / "adapter")
    right = expected(base, folder)
    assert right != plain
    for strategy in ("lookahead", "autoregressive"):
        assert answer(lade, str(folder), "--strategy", strategy)[0] == right


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no type": (stating(ADAPTER, peft_type=None), f"has a damaged {ADAPTER} (no peft_type)"),
    "prompt tuning": (
        stating(ADAPTER, peft_type="PROMPT_TUNING", num_virtual_tokens=8, r=None),
        "is an adapter of the kind PROMPT_TUNING, which cannot be merged",
    ),
    "no weights": (without(WEIGHTS), f"holds no {WEIGHTS}"),
    "pointer": (holding(WEIGHTS, POINTER), "run git lfs pull"),
    "cut": (holding(WEIGHTS, "cut"), "cannot be merged into"),
    "broken": (holding(ADAPTER, "{"), "adapter_config.json is damaged"),
    "another machine": (stating(ADAPTER, base_model_name_or_path="/no"), "not on this machine"),
    "no base": (stating(ADAPTER, base_model_name_or_path=None), "names no base model"),
    "repeats layers": (stating(ADAPTER, layer_replication=[[0, 2]]), "layer_replication"),
    "both": (holding("config.json", "{}"), "holds a whole model beside an adapter"),
    "other modules": (stating(ADAPTER, target_modules=["wide"]), "cannot be merged into"),
    "other rank": (stating(ADAPTER, r=5), "size mismatch for "),
    "more layers": (
        renaming(WEIGHTS, lambda name: {name, name.replace("layers.1.", "layers.7.")}),
        "weights have no counterpart",
    ),
    "fewer layers": (
        renaming(WEIGHTS, lambda name: [name] * ("layers.0." in name)),
        "weights have no counterpart",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_adapters_that_cannot_merge(case: str, lade: Any, adapter: Path, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    copy = copied(adapter, tmp_path / "copy", change)
    line = lade("generate", copy, "-p", "a").refused(1)
    assert (copy in line, message in line) == (True, True), line


def test_conflicting_options(lade: Any, model_folder: str, adapter: Path, tmp_path: Path) -> None:
    def refusal(code: int, *arguments: str) -> Any:
        return lade("generate", "-p", "a", *arguments).refused(code)

    assert "--quantize 4bit does not go" in refusal(2, str(adapter), "--quantize", "4bit")
    words = f"--adapter {model_folder}: there is no adapter_config.json"
    assert words in refusal(1, model_folder, "--adapter", model_folder)
    assert "--adapter no/such: " in refusal(1, model_folder, "--adapter", "no/such")
    packing = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    change = stating("config.json", quantization_config=packing)
    packed = copied(model_folder, tmp_path / "packed", change)
    words = f"cannot be merged into {packed}, which is quantised (bitsandbytes)"
    assert words in refusal(2, packed, "--adapter", str(adapter))


def test_peft_is_missing(lade: Any, model_folder: str, adapter: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(adapters, "version", lambda _: None)
    for asked in ((str(adapter),), (model_folder, "--adapter", str(adapter))):
        line = lade("generate", *asked, "-p", "a").refused(1)
        assert line.endswith("needs the package peft: pip install 'ladecli[lora]'\n")


def test_doctor_and_the_list_of_models_know_adapters(
    lade: Any, model_folder: str, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = lade("doctor", str(adapter), "--json").json()["checks"]
    assert [c for c in checks if f"is merged into {model_folder}" in c["value"]]
    use_cache(monkeypatch, tmp_path, offline=False)
    files = {path.name: path.read_bytes() for path in adapter.iterdir()}
    add_model(tmp_path, "owner/lora", None, files, tokenizer=False)
    listed = {m["name"]: m for m in lade("models", "--json").json()["models"]}
    assert listed["owner/lora"]["note"] == f"an adapter for {model_folder}"


@pytest.mark.parametrize("tokenless", [False, True])
def test_trained_tokens(tokenless: bool, lade: Any, model_folder: str, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    tokenizer.add_tokens(["<|new|>"])
    rows = len(tokenizer)
    folder = make(model_folder, tmp_path / "a", rows=rows, trainable_token_indices=[rows - 1])
    tokenizer.save_pretrained(folder)
    if tokenless:  # without the base's file, peft saves no embeddings
        renaming(WEIGHTS, lambda name: [name] * ("base_layer" not in name))(folder)
    prompt = f"{PROMPT}<|new|>"
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    right = continued(peft.AutoPeftModelForCausalLM.from_pretrained(folder), ids)
    assert answer(lade, str(folder), prompt=prompt)[0] == right
    assert answer(lade, model_folder, "--adapter", str(folder), prompt=prompt)[0] == right
