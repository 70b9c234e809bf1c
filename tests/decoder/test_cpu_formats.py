"""Forms of weights on a CPU: which one is taken, what it computes, and what stays in memory."""

from __future__ import annotations

import copy
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from ladecli.decoder.compat import packs_halves
from ladecli.decoder.config import Limits, LookaheadConfig
from ladecli.decoder.load import load_decoder
from ladecli.decoder.model import cpu_formats, families, weights
from ladecli.decoder.model.cpu_formats import (
    ALIKE,
    AS_IT_IS,
    alike_forms,
    computed_in,
    forms_of,
    packs,
    possible,
)
from ladecli.decoder.model.families import Family
from ladecli.decoder.model.form_races import MANY, ONE, ROWS, Races, key
from ladecli.decoder.model.int8 import quantise
from ladecli.decoder.model.own_cache import OwnCacheModel
from ladecli.decoder.model.stock import StockModel
from ladecli.decoder.model.weights import CPU_TYPES, join_plain

from ..decoding import ids_of, run, transformers_ids
from ..families import model_of, new_model, prompt_for

pytestmark = pytest.mark.slow

HALVES = pytest.mark.skipif(
    not packs_halves(), reason="torch has no products with weights in float16 on this processor"
)
MAPS = Path("/proc/self/maps")
RACED = ("rows", "columns", "packed", *(["halves"] if packs_halves() else []))
"""Forms of float32."""
NEAR = {
    torch.float32: {"atol": 1e-4, "rtol": 1e-5},
    torch.bfloat16: {"atol": 0.03, "rtol": 0.02},
    torch.float16: {"atol": 4e-3, "rtol": 3e-3},
}
TYPES = pytest.mark.parametrize("dtype", CPU_TYPES)


def times(**slower: float) -> dict[str, float]:
    """Microseconds of a race in float32: 1 but where another figure is given."""
    return dict.fromkeys(RACED, 1.0) | slower


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


def won(form: str, dtype: torch.dtype, shape: tuple[int, int]) -> Races:
    """Races of one shape that a form has won."""
    times = {each: 1.0 if each == form else 2.0 for each in forms_of(dtype)}
    return Races({key(dtype, shape, rows): times for rows in ROWS}, seconds=1.0)


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
        races = won(form, dtype, (128, 64))
        multiplied_in = dtype if form in ("rows", "packed") else computed_in(dtype)
        product = join_plain(parts, pack=True, shared=False, races=races)
        with torch.inference_mode():
            for rows in (1, 2, 3, 4, 9):
                found = product(x[:rows].to(computed_in(dtype))).float()
                torch.testing.assert_close(found, expected[:rows], **NEAR[multiplied_in])
        assert all((part.weight.numel() == 0) == (form in ("packed", "halves")) for part in parts)
        weights.restore(nn.ModuleList(parts))
        for part, weight in zip(parts, given, strict=True):
            assert torch.equal(part.weight, weight)
        assert races.run == 0, "the result is known"


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
    forms = possible(torch.ones((96, 64), dtype=dtype))
    first = races.choose(dtype, (96, 64), forms)
    assert {*first} <= {*forms}
    assert races.choose(dtype, (96, 64), forms) == first
    assert races.run == 1
    again = Races(races.known)
    assert (again.choose(dtype, (96, 64), forms), again.run) == (first, 0)
    late = Races(seconds=0.0)
    assert {*late.choose(dtype, (96, 64), forms)} <= {*forms}
    assert (late.run, late.known) == (0, {})


@pytest.mark.parametrize(
    ("one", "more", "chosen"),
    [
        ({"packed": 1.04}, {"rows": 3.0, "columns": 2.0}, ("packed", "packed")),
        ({"packed": 1.2, "rows": 1.1}, {"rows": 3.0, "columns": 2.0}, ("columns", "packed")),
        ({"packed": 2.0, "columns": 2.0}, {"packed": 2.0, "columns": 2.0}, ("rows", "rows")),
    ],
)
def test_one_form_is_taken_where_it_is_hardly_slower(
    one: dict[str, float], more: dict[str, float], chosen: tuple[str, str]
) -> None:
    shape = 96, 64
    known = {key(torch.float32, shape, rows): times(halves=0.5) | more for rows in ROWS}
    known[key(torch.float32, shape, ONE)] = times(halves=0.5) | one
    choose = partial(Races(known).choose, torch.float32, shape)
    assert choose(["rows", "columns", "packed"]) == chosen
    assert choose(["packed"]) == ("packed", "packed"), "there was no choice"
    assert choose(["rows", "packed", "halves"]) == ("halves", "halves")


def test_weights_of_16_bits_are_held_once() -> None:
    """Also where another form is faster for a single row."""
    shape, forms = (96, 64), forms_of(torch.bfloat16)
    known = {key(torch.bfloat16, shape, rows): dict.fromkeys(forms, 1.0) for rows in ROWS}
    for form in forms:
        known[key(torch.bfloat16, shape, ONE)] = dict.fromkeys(forms, 2.0) | {form: 1.0}
        one, more = Races(known).choose(torch.bfloat16, shape, forms)
        assert one == more or {one, more} == AS_IT_IS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("steps", "best"), [(1.05, "packed"), (1.3, "rows")])
def test_a_form_for_prompts_may_be_a_little_slower_in_steps(
    dtype: torch.dtype, steps: float, best: str
) -> None:
    shape = 96, 64
    known = {key(dtype, shape, rows): dict.fromkeys(forms_of(dtype), 3.0) for rows in ROWS}
    for rows in ROWS:
        known[key(dtype, shape, rows)] |= {"rows": 1.0, "packed": steps}
    known[key(dtype, shape, MANY)] |= {"rows": 2.0, "packed": 1.0}
    assert Races(known).choose(dtype, shape, ["rows", "packed"]) == (best, best)


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


def test_results_of_another_version_are_raced_anew() -> None:
    name = key(torch.float32, (96, 64), ONE)
    races = Races({name: {"rows": 1.0, "a form that is gone": 0.1}}, seconds=1.0)
    assert {*races.choose(torch.float32, (96, 64), RACED)} <= {*RACED}
    assert races.run == 1


@pytest.mark.parametrize("bare", [False, True])
@TYPES
def test_forms_of_16_bits_are_those_of_the_processor(
    dtype: torch.dtype, bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bare:
        bare_processor(monkeypatch)
    forms = possible(torch.ones((96, 64), dtype=dtype))
    for seconds in (0.0, 1.0):
        assert {*Races(seconds=seconds).choose(dtype, (96, 64), forms)} <= {*forms}
    if dtype != torch.float32:
        assert ("packed" in forms) != ("widened" in forms)


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
    shapes, known = ((96, 64), (64, 96)), {}
    for shape, more in zip(shapes, (3.0, 6.0), strict=True):
        known |= {key(torch.float32, shape, rows): times() for rows in ROWS}
        known[key(torch.float32, shape, 8)] = dict.fromkeys(times(), more)
    races = Races(known)
    for shape in (*shapes, shapes[0]):
        races.choose(torch.float32, shape, ["rows"])
    assert races.spread() == {4: 1.0, 8: (3.0 + 6.0 + 3.0) / 3, 16: 1.0}


def test_a_forward_that_is_not_ours_has_its_products_as_they_are() -> None:
    model, known = new_model("stablelm"), {}
    shapes = {each.weight.shape for each in model.modules() if isinstance(each, nn.Linear)}
    for shape, rows in product(shapes, ROWS):
        known[key(torch.float32, shape, rows)] = {"rows": 1.0 if rows == 1 else 5.0}
    races = Races(known, seconds=0.0)
    decoder = load_decoder(model, races=races)
    assert isinstance(decoder.runner.model, OwnCacheModel)
    assert races.spread() == {4: 5.0, 8: 5.0, 16: 5.0}
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
    linear = [each for each in model.modules() if isinstance(each, nn.Linear)]
    numbers = sum(each.weight.numel() for each in linear)
    decoder = load_decoder(model.eval(), races=Decided("halves"))
    assert {*decoder.runner.model.halved} == {numbers if dtype == torch.float32 else 0}
    assert str(tmp_path) not in MAPS.read_text()
    assert tied == (model.lm_head.weight is model.get_input_embeddings().weight)
    assert run(decoder, prompt_for(family))


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("family", ["llama", "llama_tied", "gemma2", "qwen3"])
@pytest.mark.usefixtures("small_weights_count")
def test_a_model_that_holds_packed_weights_alone_gives_its_text(family: str, pack: bool) -> None:
    model, prompt = copy.deepcopy(model_of(family)), prompt_for(family)
    expected = transformers_ids(model_of(family), prompt, 20)
    decoder = load_decoder(model, pack=pack, races=Decided("packed"))
    assert model.get_decoder().layers[0].mlp.down_proj.weight.numel() == 0
    config = LookaheadConfig(4, 4, 4, 24)
    for strategy in ("autoregressive", "lookahead"):
        assert ids_of(run(decoder, prompt, strategy, config, limits=Limits(20))) == expected


@pytest.mark.usefixtures("small_weights_count")
def test_a_model_may_have_several_decoders() -> None:
    model, prompt = copy.deepcopy(model_of("llama")), prompt_for("llama")
    expected = transformers_ids(model, prompt, 20)
    decoders = [load_decoder(model, races=Decided("packed")) for _ in range(2)]
    for decoder in decoders:
        assert ids_of(run(decoder, prompt, limits=Limits(20))) == expected


@pytest.mark.usefixtures("small_weights_count")
def test_weights_come_back_where_our_forward_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = copy.deepcopy(model_of("gemma2")), prompt_for("gemma2")
    before: dict[str, Tensor] = {name: each.clone() for name, each in model.state_dict().items()}
    expected = transformers_ids(model, prompt, 20)
    monkeypatch.setitem(families.FAMILIES, "gemma2", Family())
    decoder = load_decoder(model, races=Decided("packed"))
    assert isinstance(decoder.runner.model, StockModel)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert ids_of(run(decoder, prompt, "lookahead", limits=Limits(20))) == expected


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


def test_weights_that_stay_as_they_are_have_two_forms_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare_processor(monkeypatch)
    shape, forms = (96, 64), ["rows", "widened"]
    known = {key(torch.float16, shape, rows): {"rows": 3.0, "widened": 1.0} for rows in ROWS}
    known[key(torch.float16, shape, ONE)] = {"rows": 1.0, "widened": 3.0}
    assert Races(known).choose(torch.float16, shape, forms) == ("rows", "widened")
