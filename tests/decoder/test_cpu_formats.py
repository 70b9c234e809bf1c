"""Forms of weights on a CPU: which one is taken, what it computes, and what stays in memory."""

from __future__ import annotations

import copy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from ladecli.decoder.compat import packs_halves
from ladecli.decoder.config import Limits
from ladecli.decoder.load import load_decoder
from ladecli.decoder.model import cpu_formats, weights
from ladecli.decoder.model.cpu_formats import (
    ALIKE,
    alike_forms,
    computed_in,
    forms_of,
    packs,
    possible,
)
from ladecli.decoder.model.form_races import MANY, ONE, ROWS, Races, key
from ladecli.decoder.model.int8 import quantise
from ladecli.decoder.model.own_cache import OwnCacheModel
from ladecli.decoder.model.weights import CPU_TYPES, join_plain

from ..decoding import ids_of, run, transformers_ids
from ..families import model_of, new_model, prompt_for

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
SHAPE = 96, 64
TYPES = pytest.mark.parametrize("dtype", CPU_TYPES)


def bare_processor(monkeypatch: pytest.MonkeyPatch, halves: bool = False) -> None:
    """Pretend that libraries have no products for 16 bits here, but for `halves`."""
    monkeypatch.setattr(cpu_formats, "packs", lambda dtype: dtype == torch.float32)
    monkeypatch.setattr(cpu_formats, "packs_halves", lambda: halves)


class Decided(Races):
    """Races that one form wins for every weight."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def choose(self, *_weight: object) -> tuple[str, str]:
        return self._form, self._form


def known(dtype: torch.dtype, **others: dict[int, float]) -> Races:
    """Races of one shape in which all forms take a microsecond, and some others, by their rows."""
    return Races(
        {
            key(dtype, SHAPE, rows): {
                form: others.get(form, {}).get(rows, 1.0) for form in forms_of(dtype)
            }
            for rows in ROWS
        }
    )


@TYPES
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("small_weights_count")
def test_every_form_is_the_product(
    bias: bool, bare: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, and on a processor that has nothing for 16 bits."""
    if bare:
        bare_processor(monkeypatch)
    for form in forms_of(dtype):
        torch.manual_seed(0)
        parts = [nn.Linear(64, size, bias=bias).bfloat16().to(dtype) for size in (96, 32)]
        x, given = torch.randn(9, 64), [part.weight.detach().clone() for part in parts]
        expected = torch.cat([part.float()(x) for part in copy.deepcopy(parts)], dim=-1)
        multiplied_in = dtype if form in ("rows", "packed") else computed_in(dtype)
        product = join_plain(parts, pack=True, shared=False, races=Decided(form))
        with torch.inference_mode():
            for rows in (1, 2, 3, 4, 9):
                found = product(x[:rows].to(computed_in(dtype))).float()
                torch.testing.assert_close(found, expected[:rows], **NEAR[multiplied_in])
        assert all((part.weight.numel() == 0) == (form in ("packed", "halves")) for part in parts)
        weights.restore(nn.ModuleList(parts))
        for part, weight in zip(parts, given, strict=True):
            assert torch.equal(part.weight, weight)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(48, 64), (96, 576), (40, 1500)])
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
            torch.testing.assert_close(
                whole, torch.nn.functional.linear(x, weight, bias), **NEAR[dtype]
            )
            for rows in (*range(1, 70), 96, 97, 120, 121, 192, 193, 299):
                assert torch.equal(product(x[:rows], bias), whole[:rows])


@TYPES
def test_a_race_is_run_once_for_a_shape_and_within_its_time(dtype: torch.dtype) -> None:
    races = Races(seconds=1.0)
    forms = possible(torch.ones(SHAPE, dtype=dtype))
    first = races.choose(dtype, SHAPE, forms)
    assert {*first} <= {*forms}
    assert races.choose(dtype, SHAPE, forms) == first
    assert races.run == 1
    again = Races(races.known)
    assert (again.choose(dtype, SHAPE, forms), again.run) == (first, 0)
    other = {name: times | {"a form that is gone": 0.1} for name, times in races.known.items()}
    del other[key(dtype, SHAPE, ONE)]["rows"]
    version = Races(other, seconds=1.0)
    assert {*version.choose(dtype, SHAPE, forms)} <= {*forms}
    assert version.run == 1
    late = Races(seconds=0.0)
    assert {*late.choose(dtype, SHAPE, forms)} <= {*forms}
    assert (late.run, late.known) == (0, {})


@pytest.mark.parametrize(
    ("packed", "rows", "columns", "chosen"),
    [
        ((1.04, 1.0), (1.0, 3.0), (1.0, 2.0), ("packed", "packed")),
        ((1.2, 1.0), (1.1, 3.0), (1.0, 2.0), ("columns", "packed")),
        ((2.0, 2.0), (1.0, 1.0), (2.0, 2.0), ("rows", "rows")),
    ],
)
def test_one_form_is_taken_where_it_is_hardly_slower(
    packed: Any, rows: Any, columns: Any, chosen: tuple[str, str]
) -> None:
    """What each takes for one row and for more."""
    given = {"packed": packed, "rows": rows, "columns": columns, "halves": (0.5, 0.5)}
    races = known(
        torch.float32,
        **{form: dict.fromkeys(ROWS, more) | {ONE: one} for form, (one, more) in given.items()},
    )
    choose = partial(races.choose, torch.float32, SHAPE)
    assert choose(["rows", "columns", "packed"]) == chosen
    assert choose(["packed"]) == ("packed", "packed"), "there was no choice"
    if packs_halves():
        assert choose(["rows", "packed", "halves"]) == ("halves", "halves")


def test_weights_of_16_bits_are_held_once() -> None:
    """Also where another form is faster for a single row."""
    forms = forms_of(torch.bfloat16)
    for form in forms:
        races = known(torch.bfloat16, **{form: {ONE: 0.5}})
        assert len({*races.choose(torch.bfloat16, SHAPE, forms)}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("steps", "best"), [(1.05, "packed"), (1.3, "rows")])
def test_a_form_for_prompts_may_be_a_little_slower_in_steps(
    dtype: torch.dtype, steps: float, best: str
) -> None:
    packed = dict.fromkeys(ROWS, steps) | {MANY: 1.0}
    races = known(dtype, rows={MANY: 2.0}, packed=packed)
    if "packed" in forms_of(dtype):
        assert races.choose(dtype, SHAPE, ["rows", "packed"]) == (best, best)


@HALVES
@TYPES
def test_halves_are_for_weights_that_16_bits_hold(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for weight in (
        torch.randn(64, 64).half() * 1e-3,  # near the least that float16 holds, without its unit
        torch.randn(64, 64).bfloat16() * 1e4,
        torch.zeros(64, 64),
    ):
        assert "halves" in possible(weight.to(dtype))
    if dtype == torch.float32:
        assert "halves" not in possible(torch.randn(64, 64))
    for number in (torch.nan, torch.inf):
        assert "halves" not in possible(torch.full((64, 64), number, dtype=dtype))


@HALVES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "llama_tied", "gemma2", "qwen3"])
@pytest.mark.usefixtures("small_weights_count")
def test_a_processor_without_16_bits_gives_the_text_of_float32(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To hold weights in 16 bits costs it nothing but what they round."""
    bare_processor(monkeypatch, halves=True)
    prompt, model = prompt_for(family), copy.deepcopy(model_of(family)).to(dtype)
    expected = transformers_ids(copy.deepcopy(model).float(), prompt, 40)
    decoder = load_decoder(model)
    for strategy in ("autoregressive", "lookahead"):
        assert ids_of(run(decoder, prompt, strategy)) == expected


def test_what_more_rows_cost_is_summed_over_weights() -> None:
    assert Races().spread() == {}
    races = known(torch.float32, rows={8: 3.0})
    for _ in range(2):
        races.choose(torch.float32, SHAPE, ["rows"])
    races.choose(torch.float32, SHAPE, ["columns"])
    assert races.spread() == {4: 1.0, 8: (3.0 + 3.0 + 1.0) / 3, 16: 1.0}


def test_a_forward_that_is_not_ours_has_its_products_as_they_are() -> None:
    model = new_model("stablelm")
    linear = [each for each in model.modules() if isinstance(each, nn.Linear)]
    results = {
        key(torch.float32, each.weight.shape, rows): {
            "rows": 1.0 if rows == ONE else float(each.out_features)
        }
        for each, rows in product(linear, ROWS)
    }
    races = Races(results, seconds=0.0)
    decoder = load_decoder(model, races=races)
    assert isinstance(decoder.runner.model, OwnCacheModel)
    mean = sum(each.out_features for each in linear) / len(linear)
    assert races.spread() == dict.fromkeys(ROWS[1:], mean)
    timed = Races(seconds=5.0)
    load_decoder(model, races=timed)
    assert [*timed.spread()] == [4, 8, 16]
    quantise(model, torch.float32)
    load_decoder(model, races=races)
    assert races.spread() == {}, "the head alone is as it was"


@HALVES
@pytest.mark.skipif(not MAPS.exists(), reason="no /proc says what a process has mapped")
@TYPES
@pytest.mark.parametrize("family", ["llama_tied", "qwen2"])
@pytest.mark.usefixtures("small_weights_count")
def test_nothing_keeps_the_file_of_weights_that_have_another_form(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    copy.deepcopy(model_of(family)).bfloat16().to(dtype).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    assert str(tmp_path) in MAPS.read_text()
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    decoder = load_decoder(model.eval(), races=Decided("halves"))
    assert str(tmp_path) not in MAPS.read_text()
    assert tied == (model.lm_head.weight is model.get_input_embeddings().weight)
    assert run(decoder, prompt_for(family))


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("family", ["llama", "llama_tied", "gemma2", "qwen3"])
@pytest.mark.usefixtures("small_weights_count")
def test_a_model_that_holds_packed_weights_alone_gives_its_text_to_several_decoders(
    family: str, pack: bool
) -> None:
    model, prompt = copy.deepcopy(model_of(family)), prompt_for(family)
    expected = transformers_ids(model_of(family), prompt, 20)
    decoders = [load_decoder(model, pack=pack, races=Decided("packed")) for _ in range(2)]
    assert model.get_decoder().layers[0].mlp.down_proj.weight.numel() == 0
    for decoder, strategy in product(decoders, ("autoregressive", "lookahead")):
        assert ids_of(run(decoder, prompt, strategy, limits=Limits(20))) == expected


@HALVES
@pytest.mark.parametrize("form", ["rows", "packed", "halves"])
@pytest.mark.usefixtures("small_weights_count")
def test_what_is_between_products_of_16_bits_is_float32(form: str) -> None:
    """And what products round to is known to who asks what rounding explains."""
    if form not in forms_of(torch.bfloat16):
        pytest.skip("this processor has no products of bfloat16")
    model = copy.deepcopy(model_of("llama")).bfloat16()
    forward = load_decoder(model, races=Decided(form)).runner.model
    kinds = {forward.dtype, *(shape.dtype for shape in forward.layer_shapes)}
    assert kinds == {torch.float32}
    assert forward.rounding == (torch.float32 if form == "halves" else torch.bfloat16)
