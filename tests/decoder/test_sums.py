"""Sums of layers in one kernel with the norms next to them, and how many kernels that leaves."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ladecli.decoder import layout
from ladecli.decoder.attention import BACKENDS, STEP_KEYWORD, bound
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.lean import PARTS, fused, make_lean, slots
from ladecli.decoder.lean.fused import FORMS, Form, Weighing
from ladecli.decoder.lean.norms import Kernel
from ladecli.decoder.lean.sums import kernel_of
from ladecli.decoder.runner import Runner
from ladecli.decoder.static_step import StaticCache, StaticStep, StepInputs
from ladecli.decoder.tree import TokenTree
from ladecli.profiles.derive import SMALL_KERNELS

from ..families import prompt_for
from .counting import Counting
from .test_lean import far, fresh, names

pytest.importorskip("triton")
SUMS = ("norms", "kernels")
LLAMA = ["linear", "rotate", "attention", "linear", "add", "linear", "gate", "linear", "add"]
KERNELS = {
    # 4 products, attention, and what lies between them.
    "llama": 9,
    "qwen2": 9,
    "phi3": 9,
    "gemma2": 9,
    # Norms of queries and keys, left to the rotary embedding.
    "qwen3": 9,
    "gemma3": 9,
    # Sums of what is multiplied by something, pairs of neighbours and heads that turn by half.
    "granite": 9,
    "glm4": 9,
    # Norms over all heads, so values do not lie behind the keys any more.
    "olmo2": 12,
}
OUTSIDE = {
    # Scaled embeddings, and logits that are capped by three more.
    "gemma2": 10,
    # Angles for two kinds of layers.
    "gemma3": 13,
    # Scaled embeddings and logits.
    "granite": 8,
}


def static_step(model: Any, family: str, wrap: Callable[[Any], Any]) -> tuple[Tensor, KVCache]:
    """Logits of a step of fixed shape, some padding among it, and the cache afterwards."""
    prompt, tree = prompt_for(family, 6), TokenTree()
    cache = KVCache(model.config.num_hidden_layers)
    for candidate in ((5, 6, 7), (5, 8)):
        tree.add(candidate, "trial", limit=9)
    inputs = StepInputs(8, torch.device("cpu"))
    with bound(model), torch.inference_mode():
        Runner(model, cache, "reference").forward(layout.build_chunk(prompt, 0))
        cache.keep(range(len(prompt)))
        cache.reserve(64)
        inputs.fill(layout.build([4], len(prompt), layout.Draft(tree)), len(prompt), None, ())
        inputs.send()
        return wrap(lambda attend: _forward(model, cache, inputs, attend)), cache


def _forward(model: Any, cache: KVCache, inputs: StepInputs, attend: Any) -> Tensor:
    fixed = StaticCache(cache, inputs, 64)
    fixed.move()
    step = StaticStep(attend, inputs, fixed, 64)
    logits: Tensor = model(
        input_ids=inputs.tokens.long()[None],
        position_ids=step.positions[None],
        past_key_values=fixed,
        use_cache=True,
        **{STEP_KEYWORD: step},
    ).logits
    return logits


@pytest.mark.parametrize("family", KERNELS)
def test_kernels_of_a_layer(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = BACKENDS["reference"]
    own, expected = static_step(fresh(family), family, lambda run: run(attend))
    model = fresh(family)
    lean = make_lean(model, PARTS)
    monkeypatch.setattr(slots, "DEVICES", ("cpu",))
    monkeypatch.setattr(slots, "work", lambda *_: True)
    counting = Counting(model.model.layers)

    def counted(run: Callable[[Any], Tensor]) -> Tensor:
        with counting.on(monkeypatch):
            return run(counting.backend(attend))

    found, cache = static_step(model, family, counted)
    assert far(found, own) < 1e-5
    for one, other in ((cache.keys, expected.keys), (cache.values, expected.values)):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other)
    # The first layer's norm has no sum before it.
    first, last = counting.layers
    assert len(first) - (0 if family == "olmo2" else 1) == len(last) == KERNELS[family]
    assert len(counting.outside) == OUTSIDE.get(family, 6)
    assert "normalise" not in counting.outside
    if KERNELS[family] == len(LLAMA):
        assert last == LLAMA
    lean.release()
    assert torch.equal(static_step(model, family, lambda run: run(attend))[0], own)


def test_derived_profiles_count_the_same_kernels() -> None:
    small = [name for name in LLAMA if name not in ("linear", "attention")]
    assert len(small) + 1 == SMALL_KERNELS, "these, and one that joins the splits of attention"


@pytest.mark.parametrize("ahead", [None, *FORMS[:3]])
@pytest.mark.parametrize("behind", [None, *FORMS[1:]])
def test_add(behind: fused.Form | None, ahead: fused.Form | None) -> None:
    x, said = torch.randn(2, 1, 5, 24)
    norms = [form and Weighing(torch.rand(24), 1e-3, form) for form in (behind, ahead)]

    def normed(x: Tensor, norm: Weighing | None) -> Tensor:
        return x if norm is None else fused.normalise(x, *norm)

    assert fused.may_add(x, said)
    total, after = fused.add(x, said, norms[0] or None, norms[1] or None, 0.22)
    torch.testing.assert_close(total, x + 0.22 * normed(said, norms[0] or None))
    torch.testing.assert_close(after, normed(total, norms[1] or None))


def test_each_norm_rounds_in_its_own_form() -> None:
    x, said = torch.randn(2, 1, 5, 256).half()
    weight = torch.randn(256).half()
    early, late = (Weighing(weight, 1e-3, Form(0.0, each)) for each in (True, False))
    assert not torch.equal(fused.normalise(said, *early), fused.normalise(said, *late))
    for behind, ahead in ((early, late), (late, early)):
        total, normed = fused.add(x, said, behind, ahead)
        assert torch.equal(total, x + fused.normalise(said, *behind))
        assert torch.equal(normed, fused.normalise(total, *ahead))


def test_what_is_multiplied_is_rounded_before_it_is_added() -> None:
    x, said = torch.randn(2, 1, 5, 256).half()
    total, _ = fused.add(x, said, None, None, 0.22)
    assert torch.equal(total, x + said * 0.22)
    assert not torch.equal(total, (x.float() + said.float() * 0.22).half())


def test_a_kernel_stands_for_a_norm_of_its_own_type_only() -> None:
    norm, x = fresh("llama").model.norm, torch.randn(1, 2, 32)
    assert kernel_of(norm, x) is None
    make_lean(norm, SUMS)
    assert kernel_of(norm, x) is norm.forward.__self__
    assert kernel_of(norm, x.half()) is None
    assert kernel_of(None, x) is None


def test_tensors_that_are_added_by_torch() -> None:
    class Late(Tensor):
        """As what another rank is still sending."""

    x = torch.randn(1, 3, 8)
    assert fused.may_add(x, x)
    assert not fused.may_add(x, x.as_subclass(Late))
    assert not fused.may_add(x, x.half())
    assert not fused.may_add(x, x[:, :1])
    assert not fused.may_add(x, torch.randn(1, 3, 16)[..., ::2])
    assert not fused.may_add(x[0], x[0])
    assert not fused.may_add(*torch.randn(2, 2, 3, 8))
    assert not fused.may_add(*torch.empty(2, 1, 1, 16385))


IDS = torch.tensor([[5, 6, 7, 8]])


@torch.no_grad()
def said(model: Any) -> Tensor:
    out: Tensor = model(input_ids=IDS, use_cache=False).logits
    return out


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "olmo2", "glm4", "mixtral"])
def test_states_between_layers_stay_what_they_are(family: str) -> None:
    model, other = fresh(family), fresh(family)
    with torch.no_grad():
        own = other(input_ids=IDS, use_cache=False, output_hidden_states=True)
        lean = make_lean(model, SUMS)
        assert "_Layer" in names(lean)
        found = model(input_ids=IDS, use_cache=False, output_hidden_states=True)
    assert far(found.logits, own.logits) < 1e-5
    for one, other in zip(found.hidden_states, own.hidden_states, strict=True):
        assert far(one, other) < 1e-5


def test_states_that_were_asked_for_once_do_not_end_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sums = fresh("llama"), []
    make_lean(model, SUMS)
    add = fused.add
    monkeypatch.setattr(fused, "add", lambda *args: sums.append(1) or add(*args))
    own = said(model)
    assert len(sums) == 4
    with torch.no_grad():
        model(input_ids=IDS, use_cache=False, output_hidden_states=True)
    # Somebody listens to layers, so these have their own sums.
    assert len(sums) == 4
    assert model.model.layers[0]._forward_hooks
    assert torch.equal(said(model), own)
    assert len(sums) == 8


def test_hooks_may_change_what_comes_by() -> None:
    def change(module: nn.Module, args: Any, *out: Tensor) -> None:
        (out or args)[0][..., :8].mul_(2.0)

    model = fresh("llama")
    first, second = model.model.layers
    make_lean(model, SUMS)
    plain = said(model)
    for module, pre in (
        *((first, False), (second, False), (first.post_attention_layernorm, False)),
        *((model.model.norm, False), (second.post_attention_layernorm, True)),
    ):
        install = module.register_forward_pre_hook if pre else module.register_forward_hook
        hook = install(change)
        changed = said(model)
        assert far(changed, plain) > 1e-2
        other = copy.deepcopy(model)
        for each in other.modules():
            vars(each).pop("forward", None)
        assert far(changed, said(other)) < 1e-5
        hook.remove()
        assert torch.equal(said(model), plain)


def wrapped(layer: nn.Module, before: bool) -> Callable[[], None]:
    """Put a forward of somebody else's around a layer's, which changes states in place."""
    own = layer.forward

    def theirs(x: Tensor, **kwargs: Any) -> Any:
        if before:
            x[..., :8].mul_(2.0)
        out = own(x, **kwargs)
        if not before:
            out[..., :8].mul_(2.0)
        return out

    layer.forward = theirs
    return lambda: setattr(layer, "forward", own)


def hooked_with_all(layer: nn.Module, before: bool) -> Callable[[], None]:
    """Change states in place in a hook of all modules."""

    def change(module: nn.Module, args: Any, *out: Tensor) -> None:
        if module is layer:
            (out or args)[0][..., :8].mul_(2.0)

    if before:
        return register_module_forward_pre_hook(change).remove
    return register_module_forward_hook(change).remove


def test_others_around_layers_may_change_what_comes_by() -> None:
    model, other = fresh("llama"), fresh("llama")
    assert "_Layer" in names(make_lean(model, SUMS))
    plain = said(other)
    for change in (wrapped, hooked_with_all):
        for index, before in ((0, False), (1, True)):
            found: list[Tensor] = []
            for each in (model, other):
                undo = change(each.model.layers[index], before)
                try:
                    found.append(said(each))
                finally:
                    undo()
            assert far(found[0], found[1]) < 1e-5
            assert far(found[1], plain) > 1e-2


def test_a_norm_that_somebody_else_replaced_is_theirs() -> None:
    model = fresh("gemma2")
    make_lean(model, SUMS)
    layer = model.model.layers[0]
    for name in ("post_attention_layernorm", "pre_feedforward_layernorm"):
        before = said(model)
        norm = getattr(layer, name)
        theirs = norm.forward
        norm.forward = lambda x, theirs=theirs: 3.0 * theirs(x)
        assert far(said(model), before) > 1e-2
        norm.forward = theirs
        assert torch.equal(said(model), before)


def test_what_is_expected_is_said_once_and_of_that_tensor_only() -> None:
    norm = fresh("llama").model.norm
    make_lean(norm, SUMS)
    kernel = norm.forward.__self__
    assert isinstance(kernel, Kernel)
    x, other, normed = torch.randn(3, 1, 2, 32)
    with torch.no_grad():
        own = norm(x)
        kernel.expect(x, normed)
        assert norm(x) is normed
        assert torch.equal(norm(x), own)
        kernel.expect(x, normed)
        assert norm(other) is not normed
        assert torch.equal(norm(x), own)
    # Nobody asks for it: it goes with its input.
    x = x.clone()
    kernel.expect(x, normed)
    assert copy.deepcopy(norm).forward.__self__._ready is None
    del x
    gc.collect()
    assert kernel._ready is None


def test_a_copy_has_layers_of_its_own() -> None:
    model = fresh("gemma2")
    make_lean(model, SUMS)
    own, other = said(model), copy.deepcopy(model)
    assert torch.equal(said(other), own)
    nn.init.zeros_(other.model.layers[0].post_attention_layernorm.weight)
    assert far(said(other), own) > 1e-2
    assert torch.equal(said(model), own)


class Layered(nn.Module):
    """A layer by the first plan, as a test changes it."""

    def __init__(self) -> None:
        super().__init__()
        model = fresh("llama").model.layers[0]
        self.self_attn, self.mlp = model.self_attn, model.mlp
        self.input_layernorm = model.input_layernorm
        self.post_attention_layernorm = model.post_attention_layernorm

    def forward(self, hidden_states: Tensor, position_ids: Any = None, **kwargs: Any) -> Any:
        said = self.attend(self.input_layernorm(hidden_states), position_ids, kwargs)
        hidden_states = hidden_states + self.scaled(said)
        said = self.mlp(self.post_attention_layernorm(hidden_states))
        return self.result(hidden_states + self.scaled(said))

    def attend(self, x: Tensor, position_ids: Any, others: dict[str, Any]) -> Tensor:
        """What attention says."""
        out: Tensor = self.self_attn(hidden_states=x, position_ids=position_ids, **others)[0]
        return out

    def scaled(self, x: Tensor) -> Tensor:
        """What of it is added."""
        return x

    def result(self, x: Tensor) -> Any:
        """What the layer returns."""
        return x


class Late(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.mlp.down_proj.register_forward_hook(lambda *_: None)


class Scaled(Layered):
    def scaled(self, x: Tensor) -> Tensor:
        return 0.9 * x


class Several(Layered):
    def result(self, x: Tensor) -> Any:
        return (x,)


class Chosen(Layered):
    def attend(self, x: Tensor, position_ids: Any, others: dict[str, Any]) -> Tensor:
        out: Tensor = self.self_attn(hidden_states=x, **others)[0]
        return out


class Parallel(Layered):
    def forward(self, hidden_states: Tensor, position_ids: Any = None, **kwargs: Any) -> Any:
        x = self.input_layernorm(hidden_states)
        said = self.attend(x, position_ids, kwargs)
        return hidden_states + said + self.mlp(self.post_attention_layernorm(x))


@pytest.mark.parametrize("kind", [Layered, Late, Scaled, Several, Chosen, Parallel])
def test_layers_that_do_something_else_stay(kind: type[Layered]) -> None:
    assert ("_Layer" in names(make_lean(kind(), SUMS))) is (kind is Layered)


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.bfloat16, 0.98), (torch.float16, 0.997)], ids=str
)
def test_a_factor_is_no_rounding(dtype: torch.dtype, factor: float) -> None:
    class Slightly(Layered):
        def scaled(self, x: Tensor) -> Tensor:
            return factor * x

    assert "_Layer" in names(make_lean(Layered().to(dtype), SUMS))
    assert "_Layer" not in names(make_lean(Slightly().to(dtype), SUMS))


def test_what_a_layer_is_handed_by_position_arrives() -> None:
    heard: dict[str, Any] = {}

    class Attention(nn.Module):
        def forward(self, hidden_states: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
            heard.update(kwargs)
            return hidden_states, None

    layer = Layered()
    assert "_Layer" in names(make_lean(layer, SUMS))
    layer.self_attn = Attention()
    with torch.no_grad():
        layer(torch.randn(1, 4, 32), IDS)
    assert heard["position_ids"] is IDS


@pytest.mark.parametrize("family", ["cohere", "phi", "gpt_neox"])
def test_families_of_other_layers(family: str) -> None:
    assert "_Layer" not in names(make_lean(fresh(family), SUMS))


def test_without_kernels_layers_stay() -> None:
    assert "_Layer" not in names(make_lean(fresh("llama"), PARTS[:-1]))
