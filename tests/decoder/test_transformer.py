"""Our own forward: against the model's, its weights joined and handed back, and fallbacks."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ladecli.decoder import layout
from ladecli.decoder.compat import script
from ladecli.decoder.config import Limits
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.errors import NaNLogitsError, UnsupportedModelError
from ladecli.decoder.kv_cache import KVCache, Target
from ladecli.decoder.load import load_decoder
from ladecli.decoder.model import cpu_layers, families, weights
from ladecli.decoder.model.cpu_layers import CpuLayers
from ladecli.decoder.model.families import Family, model_facts
from ladecli.decoder.model.stock import StockModel
from ladecli.decoder.model.transformer import Transformer
from ladecli.decoder.run.runner import Runner
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import TokenTree

from ..decoding import ids_of, run, transformers_ids
from ..families import OWN, model_of, new_model, prompt_for

pytestmark = pytest.mark.slow

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
LLAMA = prompt_for("llama")


@cache
def joined(family: str, dtype: torch.dtype, packed: bool) -> Decoder:
    """A decoder with joined weights, as they are or in the forms of large ones; tests share it."""
    with pytest.MonkeyPatch.context() as patch:
        if packed:
            patch.setattr(weights, "SMALL", 1)
        return load_decoder(copy.deepcopy(model_of(family)).to(dtype))


def logits_of(decoder: Decoder, text: list[int]) -> Tensor:
    """Logits after each token of a text, which is fed as one chain of candidates."""
    tree = TokenTree()
    tree.add(text[1:], "text", len(text))
    decoder.forget()
    return decoder.runner.run(layout.build(text[:1], 0, Draft(tree))).clone()


def own_logits(model: Any, text: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([text]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("packed", [False, True])
@DTYPES
@pytest.mark.parametrize("family", OWN)
def test_logits_are_those_of_the_model(family: str, dtype: torch.dtype, packed: bool) -> None:
    """To rounding, which for bfloat16 is measured by the model's own distance from float32."""
    model = copy.deepcopy(model_of(family)).to(dtype)
    text = prompt_for(family, 30)
    exact, own = own_logits(model_of(family), text), own_logits(model, text).float()
    decoder = joined(family, dtype, packed)
    assert isinstance(decoder.runner.model, Transformer)
    assert not decoder.runner.notices
    assert not decoder.runner.model.keeps_weights
    found = logits_of(decoder, text).float()
    if dtype == torch.float32:
        torch.testing.assert_close(found, own, rtol=1e-4, atol=1e-4)
    else:
        allowed = 2.0 * float((own - exact).square().mean().sqrt())
        assert float((found - exact).square().mean().sqrt()) <= allowed


class OnDevice(KVCache):
    """A cache whose length the host does not know, so that TorchScript is not for it."""

    def target(self, index: int, count: int) -> Target:
        """Where a step goes."""
        return super().target(index, count)._replace(start=torch.tensor([self.length]))


@DTYPES
@pytest.mark.parametrize("family", OWN)
def test_torchscript_computes_what_python_does(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, a prompt, a plain step and one with rivals: the functions that it runs, without
    it, and the loop that it stands in for."""
    assert isinstance(script(CpuLayers()), torch.jit.ScriptModule)
    text, rivals = prompt_for(family, 30), TokenTree()
    for tokens in ([3, 4, 5], [3, 6], [7]):
        rivals.add(tokens, "text", len(tokens))

    model = joined(family, dtype, False).runner.model

    def logits(make_cache: type[KVCache]) -> Tensor:
        runner = Runner(model, make_cache(model.layer_shapes))
        found = [runner.run(layout.build(text, 0, Draft(TokenTree())))]
        runner.cache.keep(range(len(text)))
        found += [runner.run(layout.build([2], 30, Draft(each))) for each in (TokenTree(), rivals)]
        return torch.cat(found)

    for attention in ("invariant", "sdpa"):
        model.use(attention)
        expected = logits(KVCache)
        assert torch.equal(logits(OnDevice), expected)
        monkeypatch.setattr(cpu_layers, "script", lambda module: module)
        model.use(attention)
        assert torch.equal(logits(KVCache), expected)
        monkeypatch.undo()
    model.use("sdpa")


# Weights.


def storages(modules: list[nn.Linear]) -> set[int]:
    return {module.weight.untyped_storage().data_ptr() for module in modules}


@pytest.mark.parametrize("pack", [False, True])
@DTYPES
@pytest.mark.parametrize("family", ["llama_bias", "llama_tied", "gemma2", "phi3"])
def test_a_model_with_joined_weights_still_works(
    family: str, dtype: torch.dtype, pack: bool
) -> None:
    """Its modules use views of the joined weights: nothing is held twice, nothing has changed."""
    model = copy.deepcopy(model_of(family)).to(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = transformers_ids(model, prompt_for(family), 20)
    decoder = load_decoder(model, join=True, pack=pack)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert transformers_ids(model, prompt_for(family), 20) == expected
    if family != "phi3":  # which comes with joined weights
        layer = model.get_decoder().layers[0]
        attention = layer.self_attn
        assert len(storages([attention.q_proj, attention.k_proj, attention.v_proj])) == 1
        assert len(storages([layer.mlp.gate_proj, layer.mlp.up_proj])) == 1
    if family == "llama_tied":
        assert model.lm_head.weight is model.get_input_embeddings().weight
    if dtype == torch.float32:
        assert ids_of(run(decoder, prompt_for(family), limits=Limits(20))) == expected


class Adapted(nn.Module):
    """What an adapter makes of a linear layer."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """More than the inner layer."""
        self.calls += 1
        return self.inner(x) + 0.5 * x.sum(dim=-1, keepdim=True)


def test_modules_that_are_no_plain_layers_are_called() -> None:
    model = copy.deepcopy(model_of("llama"))
    attention, mlp = (getattr(model.model.layers[0], name) for name in ("self_attn", "mlp"))
    attention.k_proj = Adapted(attention.k_proj)
    hooked: list[int] = []
    mlp.up_proj.register_forward_hook(lambda *_: hooked.append(1))
    expected = transformers_ids(model, LLAMA, 20)
    assert expected != transformers_ids(model_of("llama"), LLAMA, 20)
    decoder = load_decoder(model)
    assert isinstance(decoder.runner.model, Transformer)
    calls, hooked[:] = attention.k_proj.calls, []
    assert ids_of(run(decoder, LLAMA, limits=Limits(20))) == expected
    assert (attention.k_proj.calls - calls, len(hooked)) == (20, 20)


# Which forward runs a model.


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
def test_a_wrong_row_is_noticed_and_the_models_own_forward_taken(
    family: str, row: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(model_of(family))
    if family == "ministral3":  # within the few tokens of the trial
        model = new_model(family, rope_parameters=SOON_GROWING)
    expected = transformers_ids(model, prompt_for(family), 20)
    monkeypatch.setitem(families.FAMILIES, model.config.model_type, row)
    decoder = load_decoder(model)
    assert isinstance(decoder.runner.model, StockModel)
    (notice,) = decoder.runner.notices
    assert model.config.model_type in notice
    assert "transformers' forward" in notice
    events = run(decoder, prompt_for(family), "lookahead", limits=Limits(20))
    assert ids_of(events) == expected


SOON_GROWING = OWN["ministral3"][1]["rope_parameters"] | {"original_max_position_embeddings": 4}


def test_a_model_of_another_form_runs_on_its_own_forward() -> None:
    """Another activation, or a device map's hooks."""
    relu = new_model("llama", hidden_act="relu")
    hooked = copy.deepcopy(model_of("llama"))
    hooked.model.layers[0]._hf_hook = None
    assert not model_facts(relu.config).ours
    for model in (relu, hooked):
        decoder = load_decoder(model)
        assert isinstance(decoder.runner.model, StockModel)
        assert not decoder.runner.notices
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
