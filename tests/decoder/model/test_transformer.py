"""Our own forward: equality with the model's, joined and restored weights, and fallbacks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ladecli.decoder import layout
from ladecli.decoder.backends import cpu_layers
from ladecli.decoder.backends.compat import script
from ladecli.decoder.backends.cpu_layers import CpuLayers
from ladecli.decoder.backends.facts import model_facts
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.backends.transformers_forward import StockModel
from ladecli.decoder.config import Limits
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.errors import NaNLogitsError, UnsupportedModelError
from ladecli.decoder.model import families
from ladecli.decoder.model.families import Family
from ladecli.decoder.model.transformer import Transformer
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import TokenTree
from tests.support.decoding import ids_of, run, transformers_ids, use
from tests.support.models import OWN, model_of, new_model, prompt_for

pytestmark = pytest.mark.slow

LLAMA = prompt_for("llama")


def logits_of(decoder: Decoder, text: list[int]) -> Tensor:
    """Logits after each token of a text, which is fed as one chain of candidates."""
    tree = TokenTree()
    tree.add(text[1:], "text", len(text))
    decoder.forget()
    return decoder.executor.run(layout.build(text[:1], 0, Draft(tree))).clone()


def own_logits(model: Any, text: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([text]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize(
    ("dtype", "packed"), [(torch.float32, True), (torch.bfloat16, False), (torch.bfloat16, True)]
)
@pytest.mark.parametrize("family", OWN)
def test_logits_are_those_of_the_model(
    family: str, dtype: torch.dtype, packed: bool, request: pytest.FixtureRequest
) -> None:
    """Up to rounding, which for bfloat16 is the model's own difference from float32."""
    if packed:
        request.getfixturevalue("small_weights_count")
    model = copy.deepcopy(model_of(family)).to(dtype)
    text = prompt_for(
        family, 40
    )  # scaled queries and sliding windows have an effect before its end
    exact, own = own_logits(model_of(family), text), own_logits(model, text).float()
    decoder = load_decoder(model)
    assert isinstance(decoder.executor.model, Transformer)
    assert not decoder.executor.notices
    assert not decoder.keeps_weights
    logits = logits_of(decoder, text).float()
    if dtype == torch.float32:
        torch.testing.assert_close(logits, own, rtol=1e-4, atol=1e-4)
    else:
        allowed = 2.0 * float((own - exact).square().mean().sqrt())
        assert float((logits - exact).square().mean().sqrt()) <= allowed


def test_without_torchscript_python_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(script(CpuLayers()), torch.jit.ScriptModule)
    for family in ("gemma3", "granite"):
        decoder, text = load_decoder(copy.deepcopy(model_of(family))), prompt_for(family, 30)
        for attention in ("invariant", "sdpa"):
            use(decoder, attention)
            expected = logits_of(decoder, text)
            with monkeypatch.context() as patch:
                patch.setattr(cpu_layers, "script", lambda module: module)
                use(decoder, attention)
            assert torch.equal(logits_of(decoder, text), expected)


def storages(modules: list[nn.Linear]) -> set[int]:
    return {module.weight.untyped_storage().data_ptr() for module in modules}


def test_joined_weights_are_held_once() -> None:
    model = copy.deepcopy(model_of("llama_bias"))
    load_decoder(model)
    layer = model.get_decoder().layers[0]
    attention = layer.self_attn
    assert len(storages([attention.q_proj, attention.k_proj, attention.v_proj])) == 1
    assert len(storages([layer.mlp.gate_proj, layer.mlp.up_proj])) == 1


@pytest.mark.parametrize(
    ("family", "row"),
    [
        ("gemma", Family()),  # norms multiply by 1 + weight
        ("glm", Family()),  # neighbours are turned
        ("ministral3", Family(window_in_config=True)),  # queries grow
        ("olmo2", Family()),  # no such norms
        ("llama", Family(families.FAMILIES["gemma2"].norms)),
    ],
)
@pytest.mark.usefixtures("small_weights_count")
def test_a_wrong_family_row_is_detected_and_the_models_own_forward_used(
    family: str, row: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(model_of(family))
    if family == "ministral3":  # within the few tokens of the trial
        model = new_model(family, rope_parameters=SOON_GROWING)
    model.bfloat16().float()  # so that weights are detached from the modules, in 16 bits
    expected = transformers_ids(model, prompt_for(family), 20)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    monkeypatch.setitem(families.FAMILIES, model.config.model_type, row)
    decoder = load_decoder(model)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert isinstance(decoder.executor.model, StockModel)
    (notice,) = decoder.executor.notices
    assert model.config.model_type in notice
    assert "transformers' forward" in notice
    events = run(decoder, prompt_for(family), "lookahead", limits=Limits(20))
    assert ids_of(events) == expected


SOON_GROWING = OWN["ministral3"][1]["rope_parameters"] | {"original_max_position_embeddings": 4}


def test_a_model_of_another_form_runs_on_its_own_forward() -> None:
    """A model with another activation, or with the hooks of a device map."""
    relu = new_model("llama", hidden_act="relu")
    hooked = copy.deepcopy(model_of("llama"))
    hooked.model.layers[0]._hf_hook = None
    assert not model_facts(relu.config).ours
    for model in (relu, hooked):
        decoder = load_decoder(model)
        assert isinstance(decoder.executor.model, StockModel)
        assert not decoder.executor.notices
        expected = transformers_ids(model, LLAMA, 20)
        assert ids_of(run(decoder, LLAMA, "lookahead", limits=Limits(20))) == expected


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_damaged_weights_are_found_at_load(family: str) -> None:
    model = copy.deepcopy(model_of(family))
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    with pytest.raises(NaNLogitsError, match="the weights are damaged"):
        load_decoder(model)


def test_a_model_that_fails_is_refused_in_one_line() -> None:
    model = copy.deepcopy(model_of("gpt2"))

    def broken(*_: Any) -> None:
        raise ValueError("no cable\nsecond line")

    model.transformer.h[0].register_forward_pre_hook(broken)
    with pytest.raises(UnsupportedModelError, match=r"'gpt2' are not supported: .* no cable$"):
        load_decoder(model)
