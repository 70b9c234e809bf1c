"""Forms of weights on a CPU: the choice of a form, its results, and its memory."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from ladecli.decoder.backends import cpu_layouts, weights
from ladecli.decoder.backends.compat import packs_halves
from ladecli.decoder.backends.cpu_layouts import (
    ALIKE,
    alike_forms,
    choose_form,
    computed_in,
    forms_of,
    packs,
    possible,
)
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.backends.rescoring import rounding_of
from ladecli.decoder.backends.weights import CPU_TYPES, join_plain
from ladecli.decoder.config import Limits
from tests.support.decoding import ids_of, run, transformers_ids
from tests.support.models import model_of, prompt_for

pytestmark = pytest.mark.slow

HALVES = pytest.mark.skipif(
    not packs_halves(), reason="torch has no products with weights in float16 on this processor"
)
MAPS = Path("/proc/self/maps")
NEAR = {
    torch.float32: {"atol": 1e-4, "rtol": 1e-5},
    torch.bfloat16: {"atol": 0.03, "rtol": 0.02},
    torch.float16: {"atol": 4e-3, "rtol": 3e-3},
}
TYPES = pytest.mark.parametrize("dtype", CPU_TYPES)


def bare_processor(monkeypatch: pytest.MonkeyPatch, halves: bool = False) -> None:
    """Pretend that libraries have no products in 16 bits, except for `halves`."""
    monkeypatch.setattr(cpu_layouts, "packs", lambda dtype: dtype == torch.float32)
    monkeypatch.setattr(cpu_layouts, "packs_halves", lambda: halves)


def prefer(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Use one form for every weight."""
    monkeypatch.setattr(weights, "choose_form", lambda *_: form)


@TYPES
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("small_weights_count")
def test_every_form_is_the_product(
    bias: bool, bare: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this processor, and one without instructions for 16 bits."""
    if bare:
        bare_processor(monkeypatch)
    for form in forms_of(dtype):
        torch.manual_seed(0)
        parts = [nn.Linear(64, size, bias=bias).bfloat16().to(dtype) for size in (96, 32)]
        x, before = torch.randn(9, 64), [part.weight.detach().clone() for part in parts]
        expected = torch.cat([part.float()(x) for part in copy.deepcopy(parts)], dim=-1)
        near = NEAR[dtype if form in ("rows", "packed") else computed_in(dtype)]
        prefer(monkeypatch, form)
        product = join_plain(parts, pack=True, shared=False)
        with torch.inference_mode():
            for rows in (1, 2, 3, 4, 9):
                out = product(x[:rows].to(computed_in(dtype))).float()
                torch.testing.assert_close(out, expected[:rows], **near)
        assert all((part.weight.numel() == 0) == (form in ("packed", "halves")) for part in parts)
        weights.restore(nn.ModuleList(parts))
        assert all(map(torch.equal, [part.weight for part in parts], before))


@pytest.mark.parametrize(
    ("shape", "threads"), [((48, 64), 1), ((96, 576), 1), ((40, 1500), 1), ((96, 576), 2)]
)
@TYPES
def test_rows_of_alike_forms_do_not_depend_on_one_another(
    dtype: torch.dtype, shape: tuple[int, int], threads: int, request: pytest.FixtureRequest
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape).bfloat16().to(dtype)
    x, bias = torch.randn(300, shape[1], dtype=dtype), torch.randn(shape[0], dtype=dtype)
    names = alike_forms(weight)
    assert names or not (packs(dtype) or packs_halves())
    request.addfinalizer(lambda: torch.set_num_threads(1))
    torch.set_num_threads(threads)
    with torch.inference_mode():
        for product in [ALIKE[name](weight) for name in names]:
            whole = product(x, bias)
            expected = torch.nn.functional.linear(x, weight, bias)
            torch.testing.assert_close(whole, expected, **NEAR[dtype])
            for rows in (*range(1, 70), 96, 97, 120, 121, 192, 193, 299):
                assert torch.equal(product(x[:rows], bias), whole[:rows])


@pytest.mark.parametrize(
    ("dtype", "forms", "expected"),
    [
        (torch.float32, ["rows", "packed", "halves"], "halves"),
        (torch.float32, ["rows", "packed"], "packed"),
        (torch.bfloat16, ["rows", "packed", "halves"], "packed"),
        (torch.bfloat16, ["rows", "halves"], "halves"),
        (torch.float16, ["rows"], "rows"),
    ],
)
def test_the_rule_by_which_a_form_is_chosen(
    dtype: torch.dtype, forms: list[str], expected: str
) -> None:
    assert choose_form(dtype, forms) == expected


def test_oneDNN_packs_bfloat16_where_the_processor_multiplies_in_it(monkeypatch: Any) -> None:
    for name in ("_is_avx2_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: "avx2" in name)
    assert not packs(torch.bfloat16)


@HALVES
@TYPES
def test_halves_are_only_for_weights_that_16_bits_hold_exactly(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 64)
    # Near the smallest float16, near the largest, and zero.
    for holds in (weight.half() * 1e-3, weight.bfloat16() * 1e4, torch.zeros(64, 64)):
        assert "halves" in possible(holds.to(dtype))
    assert dtype != torch.float32 or "halves" not in possible(weight)
    for number in (torch.nan, torch.inf):
        assert "halves" not in possible(torch.full((64, 64), number, dtype=dtype))


@HALVES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "llama_tied", "gemma2", "qwen3"])
@pytest.mark.usefixtures("small_weights_count")
def test_a_processor_without_16_bits_gives_the_text_of_float32(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights in 16 bits change the text only by their own rounding."""
    bare_processor(monkeypatch, halves=True)
    prompt, model = prompt_for(family), copy.deepcopy(model_of(family)).to(dtype)
    expected = transformers_ids(copy.deepcopy(model).float(), prompt, 40)
    decoder = load_decoder(model)
    for strategy in ("autoregressive", "lookahead"):
        assert ids_of(run(decoder, prompt, strategy)) == expected


@HALVES
@pytest.mark.skipif(not MAPS.exists(), reason="no /proc says what a process has mapped")
@TYPES
@pytest.mark.parametrize("family", ["llama_tied", "qwen2"])
@pytest.mark.usefixtures("small_weights_count")
def test_the_file_of_converted_weights_is_closed(
    family: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "halves")
    copy.deepcopy(model_of(family)).bfloat16().to(dtype).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    assert str(tmp_path) in MAPS.read_text()
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    decoder = load_decoder(model.eval())
    assert str(tmp_path) not in MAPS.read_text()
    assert tied == (model.lm_head.weight is model.get_input_embeddings().weight)
    assert run(decoder, prompt_for(family))


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("family", ["llama", "llama_tied", "gemma2", "qwen3"])
@pytest.mark.usefixtures("small_weights_count")
def test_a_model_that_holds_packed_weights_alone_gives_its_text_to_several_decoders(
    family: str, pack: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "packed")
    model, prompt = copy.deepcopy(model_of(family)), prompt_for(family)
    expected = transformers_ids(model_of(family), prompt, 20)
    decoders = [load_decoder(model, pack=pack) for _ in range(2)]
    assert model.get_decoder().layers[0].mlp.down_proj.weight.numel() == 0
    for decoder, strategy in product(decoders, ("autoregressive", "lookahead")):
        assert ids_of(run(decoder, prompt, strategy, limits=Limits(20))) == expected


@HALVES
@pytest.mark.parametrize("form", ["rows", "packed", "halves"])
@pytest.mark.usefixtures("small_weights_count")
def test_operations_between_products_in_16_bits_use_float32(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounding of products is known to the code that explains divergences."""
    if form not in forms_of(torch.bfloat16):
        pytest.skip("this processor has no products of bfloat16")
    model = copy.deepcopy(model_of("llama")).bfloat16()
    prefer(monkeypatch, form)
    forward = load_decoder(model).executor.model
    kinds = {forward.dtype, *(shape.dtype for shape in forward.layer_shapes)}
    assert kinds == {torch.float32}
    assert rounding_of(forward) == (torch.float32 if form == "halves" else torch.bfloat16)
