"""Folders with more than plain weights: each feature is supported, refused by name, or reported."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import ladecli
from tests.support.decoding import transformers_ids
from tests.support.hub import copied, renaming, stating
from tests.support.models import prompt_for

pytestmark = pytest.mark.slow

PROMPT = "the cat sat on"
WEIGHTS = "model.safetensors"
BLOCK = (32, 32)
"""The size of a block; no size of the small model's MLP is a multiple of it."""


def adding(make: Callable[[str, Tensor], Mapping[str, Tensor]]) -> Callable[[Path], None]:
    """Return a function that replaces each matrix of the layers by the result of `make`."""

    def change(folder: Path) -> None:
        tensors: dict[str, Tensor] = {}
        for name, weight in load_file(folder / WEIGHTS).items():
            tensors |= make(name, weight) if "_proj" in name else {name: weight}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return change


def answer(lade: Any, folder: str, *options: str) -> tuple[list[int], str]:
    """Return the token ids of an answer, and the text on stderr."""
    asked = ("-p", PROMPT, "--raw", "-n", "16", "--ignore-eos", "--json", "--no-stats")
    result = lade("generate", folder, *asked, *options)
    return result.json()["token_ids"], result.err


def expected(folder: str, state: Mapping[str, Tensor] | None = None) -> list[int]:
    """Return the text of transformers' `generate`, with some weights replaced."""
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(state or {}, strict=False)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(PROMPT)["input_ids"]
    return transformers_ids(model, ids, 16)


# Weights without a place in the model.


def biased(value: float) -> Callable[[Path], None]:
    def bias(name: str, weight: Tensor) -> dict[str, Tensor]:
        return {name: weight, name.replace("weight", "bias"): torch.full(weight.shape[:1], value)}

    return adding(bias)


def with_one(name: str, *shape: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS) | {name: torch.ones(shape)}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return change


def without_prefix(folder: Path) -> None:
    biased(0.5)(folder)
    renaming(WEIGHTS, lambda name: [name.removeprefix("model.")])(folder)


NO_PLACE: dict[str, tuple[Callable[[Path], None], str]] = {
    "biases": (biased(0.5), "layers.0.mlp.down_proj.bias and 13 more weights"),
    "biases without a prefix": (without_prefix, "layers.0.mlp.down_proj.bias and 13 more"),
    "a norm in a layer": (with_one("model.layers.1.self_attn.q_norm.weight", 8), "q_norm.weight"),
    "a bias of the last norm": (with_one("model.norm.bias", 32), "model.norm.bias"),
    "a bias of the head": (with_one("lm_head.bias", 300), "lm_head.bias"),
    "sinks": (with_one("model.layers.0.self_attn.sinks", 4), "self_attn.sinks"),
    "a scale": (with_one("model.layers.0.mlp.up_proj.weight_scale", 1), "up_proj.weight_scale"),
    "a zero point": (with_one("model.layers.0.mlp.up_proj.zeros", 4), "up_proj.zeros"),
}


@pytest.mark.parametrize("case", NO_PLACE)
def test_weights_that_change_the_text_are_refused(case: str, lade: Any, model_with: Any) -> None:
    change, words = NO_PLACE[case]
    copy = model_with(change)
    line = lade("generate", copy, "-p", "a").refused(1)
    assert (copy in line, words in line, "download" in line) == (True, True, False), line


HARMLESS: dict[str, tuple[Callable[[Path], None], str]] = {
    "biases of zeros": (biased(0.0), ""),
    "a table of frequencies": (with_one("model.layers.0.self_attn.rotary_emb.inv_freq", 4), ""),
    "a mask": (with_one("model.layers.0.self_attn.bias", 1, 1, 9, 9), ""),
    "a value head": (with_one("v_head.summary.weight", 1, 32), "v_head.summary.weight"),
    "more layers": (with_one("model.layers.2.mlp.up_proj.weight", 48, 32), "num_hidden_layers"),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_harmless_weights(case: str, lade: Any, model_folder: str, model_with: Any) -> None:
    change, words = HARMLESS[case]
    ids, notices = answer(lade, model_with(change))
    assert ids == expected(model_folder)
    assert (words in notices, bool(notices)) == (True, bool(words))


# Quantised weights.


def in_fp8(
    scale_of: Callable[[Tensor], Tensor], ending: str = "_scale_inv", **others: Tensor
) -> Callable[[str, Tensor], dict[str, Tensor]]:
    """Return a function that converts a matrix to FP8, with scales from its absolute values."""

    def make(name: str, weight: Tensor) -> dict[str, Tensor]:
        scale = scale_of(weight.abs())
        packed = (weight / spread(scale, weight)).to(torch.float8_e4m3fn)
        more = {name.replace("weight", end): tensor.clone() for end, tensor in others.items()}
        return {name: packed, name + ending: scale, **more}

    return make


def spread(scale: Tensor, weight: Tensor) -> Tensor:
    """Return a scale for each number of a matrix."""
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    grid = scale if scale.ndim == 2 else scale.reshape(len(scale), -1)
    rows, columns = weight.shape
    if grid.shape == tuple(math.ceil(n / b) for n, b in zip(weight.shape, BLOCK, strict=True)):
        wide = grid.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
        return wide[:rows, :columns]
    return grid.repeat_interleave(rows // len(grid), 0)


def by_block(weight: Tensor) -> Tensor:
    rows = weight.split(BLOCK[0], 0)
    return torch.tensor([[part.max() / 448 for part in row.split(BLOCK[1], 1)] for row in rows])


def by_head(weight: Tensor) -> Tensor:
    return torch.stack([part.max() / 448 for part in weight.chunk(4)])[:, None]


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
SCALES: dict[str, tuple[Callable[[Tensor], Tensor], str, dict[str, Any] | None]] = {
    "blocks": (by_block, "_scale_inv", FP8 | {"weight_block_size": BLOCK}),
    "a tensor": (lambda w: w.max() / 448, "_scale_inv", FP8),
    "a tensor with a shape": (lambda w: (w.max() / 448).reshape(1, 1), "_scale", FP8),
    "heads": (by_head, "_scale_inv", FP8),
    "rows": (lambda w: w.amax(1, keepdim=True) / 448, "_scale", {"quant_method": "fbgemm_fp8"}),
    "rows in a line": (lambda w: w.amax(1) / 448, "_scale_inv", FP8),
    "ModelOpt": (
        *(lambda w: w.max() / 448, "_scale"),
        {"quant_method": "modelopt"} | {"quant_algo": "FP8"},
    ),
    "no word of it": (lambda w: w.amax(1) / 448, "_scale", None),
}


@pytest.mark.parametrize("case", SCALES)
def test_fp8_scales_are_applied(case: str, lade: Any, model_folder: str, model_with: Any) -> None:
    scale_of, ending, config = SCALES[case]
    copy = model_with(adding(in_fp8(scale_of, ending, input_scale=torch.tensor(0.01))))
    if config is not None:
        stating("config.json", quantization_config=config)(Path(copy))
    tensors = load_file(Path(copy) / WEIGHTS)
    packed = {name: x for name, x in tensors.items() if x.dtype == torch.float8_e4m3fn}
    plain = {name: x.float() * spread(tensors[name + ending], x) for name, x in packed.items()}
    with pytest.warns(UserWarning, match="FP8"):
        model = ladecli.load(copy, dtype="bfloat16").session.stock_model
    for name, values in plain.items():
        assert torch.equal(model.get_parameter(name), values.bfloat16()), name
    if case == "blocks":
        assert answer(lade, copy)[0] == expected(model_folder, plain) != expected(model_folder)


def test_fp8_described_by_modelopts_own_file(lade: Any, model_with: Any) -> None:
    copy = model_with(adding(in_fp8(lambda w: w.max() / 448, "_scale")))
    stated = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (Path(copy) / "hf_quant_config.json").write_text(json.dumps(stated))
    assert "NVFP4" in lade("generate", copy, "-p", "a").refused(1)
    stating("hf_quant_config.json", quantization={"quant_algo": "FP8"})(Path(copy))
    assert "FP8" in answer(lade, copy)[1]


def test_a_scale_that_does_not_fit_is_refused(lade: Any, model_with: Any) -> None:
    def make(name: str, weight: Tensor) -> dict[str, Tensor]:
        return {name: weight.to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(7, 1)}

    refusal = lade("generate", model_with(adding(make)), "-p", "a").refused(1)
    assert "the scale of model.layers.0" in refusal


def packed(*endings: str) -> Callable[[Path], None]:
    """Return a function that stores matrices as integers under other names."""

    def make(name: str, weight: Tensor) -> dict[str, Tensor]:
        stem, rows = name.removesuffix("weight"), len(weight)
        return {stem + ending: torch.ones(rows, 4, dtype=torch.int32) for ending in endings}

    return adding(make)


NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
PACKED: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "MLX": ({"group_size": 64, "bits": 4}, ("weight", "scales", "biases"), "MLX"),
    "MLX, copied": ({"group_size": 64, "bits": 4}, ("weight", "scales", "biases"), "MLX"),
    "MLX in mxfp4": (None, ("weight", "scales"), "MLX"),
    "EXL2": ({"quant_method": "exl2", "bits": 4.0}, ("q_weight", "q_scale"), "exl2"),
    "EXL2 without a word": (None, ("q_weight", "q_invperm", "q_scale"), "EXL2"),
    "EXL3": (None, ("trellis", "suh", "svh"), "EXL3"),
    "GPTQ without a word": (None, ("qweight", "qzeros", "scales", "g_idx"), "GPTQ"),
    "HQQ without a word": (None, ("W_q", "scale", "zero"), "HQQ"),
    "AQLM without a word": (None, ("codes", "codebooks", "scales"), "AQLM"),
    "bitsandbytes without a word": (None, ("weight", "weight.absmax"), "config.json does not say"),
    "NVFP4": (NVFP4, ("weight", "weight_scale", "weight_scale_2"), "NVFP4"),
    "anything": ({"quant_method": "new"}, ("weight",), "new"),
    "nameless": ({"bits": 3}, ("weight",), "does not name"),
    "a text": ("int4", ("weight",), "quantization_config is 'int4'"),
    "a list": ({"quant_method": ["a"]}, ("weight",), "quantization_config"),
}


@pytest.mark.parametrize("case", PACKED)
def test_the_error_names_the_quantisation_method(case: str, lade: Any, model_with: Any) -> None:
    stated, endings, words = PACKED[case]
    key = "quantization" if case == "MLX" else "quantization_config"
    copy = model_with(packed(*endings), stating("config.json", **{key: stated} if stated else {}))
    assert words in lade("generate", copy, "-p", "a").refused(1)
    assert lade("doctor", copy).code == 1
    assert lade("models").code == 0


# Configurations.


def without_metadata(folder: Path, **more: Any) -> None:
    (folder / WEIGHTS).rename(folder / "x.safetensors")
    index = {"weight_map": {"a": "x.safetensors"}, **more}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def test_unreadable_formats(lade: Any, model_folder: str, tmp_path: Path) -> None:
    for number, (change, named) in enumerate(
        (
            (without_metadata, 'add "metadata"'),
            (partial(without_metadata, metadata=None), 'add "metadata"'),
        )
    ):
        copy = copied(model_folder, tmp_path / str(number), change)
        assert named in lade("generate", copy, "-p", "a").refused(1)


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "eager"])
def test_a_config_that_names_attention(
    attention: str, lade: Any, model_folder: str, tmp_path: Path
) -> None:
    change = stating("config.json", _attn_implementation=attention)
    copy = copied(model_folder, tmp_path / "copy", change)
    assert answer(lade, copy, "--attention", "sdpa") == (expected(model_folder), "")
    assert answer(lade, copy)[0] == expected(model_folder)


def test_a_model_without_text_generation(lade: Any, model_folder: str, tmp_path: Path) -> None:
    copy = copied(model_folder, tmp_path / "copy")
    stating("config.json", model_type="clip", architectures=None)(tmp_path / "copy")
    assert "family 'clip' are not supported" in lade("generate", copy, "-p", "a").refused(1)


@pytest.mark.parametrize("part", ["", "snapshots"])
def test_a_path_into_the_cache(part: str, lade: Any, model_folder: str, tmp_path: Path) -> None:
    root = tmp_path / "models--acme--bear"  # without refs, the last commit is the newest
    for number, commit in enumerate(("b" * 40, "a" * 40)):
        copied(model_folder, root / "snapshots" / commit)
        os.utime(root / "snapshots" / commit, (number, number))
    stating("config.json", num_hidden_layers=0)(root / "snapshots" / ("b" * 40))
    assert answer(lade, str(root / part))[0] == expected(model_folder)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("b" * 40)
    assert "num_hidden_layers" in lade("generate", str(root / part), "-p", "a").refused(1)


class UnpackingLinear(nn.Linear):
    """A layer that keeps a tensor from its first forward, and changes it in place in each."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "calls"):
            self.calls = x.new_zeros(())
        self.calls.add_(1)
        return super().forward(x)


def test_a_module_may_change_its_own_tensors(model_folder: str) -> None:
    """compressed-tensors does this, which torch forbids for tensors of inference mode."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    for layer in model.model.layers:
        layer.mlp.up_proj.__class__ = UnpackingLinear
    ids, settings = torch.tensor([prompt_for("llama")]), {"do_sample": False, "max_new_tokens": 9}
    texts = [
        model.generate(ids, custom_generate=way, eos_token_id=None, pad_token_id=0, **settings)
        for way in (ladecli.lookahead, None, ladecli.lookahead)
    ]
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[1], texts[2])
