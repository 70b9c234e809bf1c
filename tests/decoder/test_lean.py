"""Lean forwards: the same function as the model's own, and nothing left behind."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import AutoModelForCausalLM

from ladecli.decoder import layout
from ladecli.decoder.attention import bound
from ladecli.decoder.engine import Decoder
from ladecli.decoder.errors import DeviceLostError
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.lean import PARTS, Lean, fused, gated, make_lean, turning
from ladecli.decoder.lean.joined import Joined, join, may_join
from ladecli.decoder.lean.rotary import Turned
from ladecli.decoder.lean.trial import difference
from ladecli.decoder.runner import Runner
from ladecli.decoder.tree import TokenTree

from ..decoding import ids_of, run, transformers_ids
from ..families import FAMILIES, model_of, prompt_for
from ..needs import TRITON

TORCH = PARTS[:-1]
"""All parts but Triton's kernels, which take their time in the interpreter."""


def fresh(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model that a test may change, without what decoders of the original made of it."""
    model = copy.deepcopy(model_of(family)).to(dtype)
    model.set_attn_implementation("eager")
    for module in model.modules():
        vars(module).pop("forward", None)
    # Norms that are all ones would not show what a norm does with its weight.
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=0.8, std=0.3)
    return model


def logits(model: Any, family: str) -> Tensor:
    """What a step of several tokens behind a prefix says, and what one token says."""
    prompt, cache = prompt_for(family), KVCache(model.config.num_hidden_layers)
    runner, tree = Runner(model, cache, "reference"), TokenTree()
    for candidate in ((5, 6, 7), (5, 8), (9,)):
        tree.add(candidate, "context", limit=9)
    with bound(model), torch.inference_mode():
        runner.forward(layout.build_chunk(prompt, 0))
        cache.keep(range(len(prompt)))
        drafts = layout.Draft(tree), layout.Draft()
        steps = [runner.forward(layout.build([4], len(prompt), draft)) for draft in drafts]
        return torch.cat(steps).float()


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def names(lean: Lean) -> set[str]:
    """Which kinds of replacements there are."""
    return {type(forward.__self__).__name__ for _, forward in lean._forwards}


@pytest.mark.parametrize("parts", [None, TORCH], ids=["default", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_says_the_same(family: str, parts: tuple[str, ...] | None) -> None:
    model = fresh(family)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    own = logits(model, family)
    lean = make_lean(model, parts)
    assert far(logits(model, family), own) < 1e-5
    lean.release()
    assert torch.equal(logits(model, family), own)
    assert not any("forward" in vars(module) for module in model.modules())
    assert [*model.state_dict()] == [*state]
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())


@TRITON
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_kernels_differ_by_last_bits_in_half_precision(family: str) -> None:
    # In bfloat16 the interpreter rounds towards zero, which no GPU does.
    model = fresh(family, torch.float16)
    own = logits(model, family)
    lean = make_lean(model, PARTS)
    assert far(logits(model, family), own) < 1e-3
    lean.release()
    assert torch.equal(logits(model, family), own)


@TRITON
def test_what_is_replaced_in_a_llama() -> None:
    lean = make_lean(fresh("llama"), PARTS)
    assert names(lean) == {"Kernel", "_Layer", "_Fused", "Joined", "_Later", "Turned", "_Angles"}
    # Of two layers: 5 norms, the sums, 2 gated blocks, 2 times 3 products, 2 rotary embeddings;
    # and the angles of all.
    assert len(lean) == 5 + 2 + 2 + 6 + 2 + 1
    assert names(make_lean(fresh("llama"))) == {"_Plain", "_Apart"}
    assert len(make_lean(fresh("gpt2"), PARTS)) == 0


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "mixtral"])
def test_texts_are_those_of_transformers(family: str) -> None:
    model = fresh(family)
    prompt = prompt_for(family)
    expected = transformers_ids(model, prompt, 40)
    make_lean(model, TORCH)
    assert ids_of(run(Decoder(model), prompt)) == expected
    assert ids_of(run(Decoder(model), prompt, "lookahead")) == expected


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2"])
def test_bfloat16_is_no_farther_from_the_truth(family: str) -> None:
    truth = logits(fresh(family), family)
    model = fresh(family, torch.bfloat16)
    stock = far(logits(model, family), truth)
    make_lean(model, TORCH)
    assert far(logits(model, family), truth) < 1.5 * stock


def linears(*outs: int, bias: bool = True) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(8, out, bias=bias) for out in outs]


@torch.inference_mode()
def test_layers_answer_in_any_order_and_keep_nothing() -> None:
    with torch.inference_mode(False):
        module = nn.Module()
        module.q_proj, module.k_proj, module.v_proj = layers = linears(6, 4, 4)
        own = [copy.deepcopy(layer) for layer in layers]
        make_lean(module, ["products"])
    joined = layers[0].forward.__self__
    assert isinstance(joined, Joined)

    def check(x: Tensor, *order: int) -> None:
        for index in order:
            torch.testing.assert_close(layers[index](x), own[index](x))

    x, y = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0), (0, 1, 1, 2, 2), (1, 2)):
        check(x, *order)
    check(x, 0)
    check(y, 1, 2)
    check(x, 1, 2)
    assert joined._kept is None
    # Nobody asks for the other parts: they go with the input.
    check(y, 0)
    gone = weakref.ref(y)
    del y
    assert gone() is None
    assert joined._kept is None


def test_joined_weights_take_no_more_memory_and_are_joined_once() -> None:
    module = nn.Module()
    module.q_proj, module.k_proj, module.v_proj = layers = linears(6, 4, 4)
    before = [layer.weight for layer in layers]
    make_lean(module, ["products"]).release()
    assert [layer.weight for layer in layers] == before
    storages = {layer.weight.untyped_storage().data_ptr() for layer in layers}
    assert len(storages) == 1
    assert layers[0].weight.untyped_storage().nbytes() == 14 * 8 * 4
    make_lean(module, ["products"])
    assert {layer.weight.untyped_storage().data_ptr() for layer in layers} == storages


def test_parts_of_one_tensor_in_another_order_are_joined_anew() -> None:
    first, second = (nn.Parameter(part) for part in torch.arange(12.0).view(4, 3).split(2))
    expected = torch.cat([second, first]).clone()
    assert torch.equal(join([second, first]), expected)
    assert torch.equal(torch.cat([second, first]), expected)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("parts", [TORCH, PARTS])
def test_norms_leave_other_types_to_the_modules_own(family: str, parts: tuple[str, ...]) -> None:
    norm = fresh(family).model.norm
    x = torch.randn(1, 3, 32).bfloat16()
    own = norm(x)
    assert len(make_lean(norm, parts)) == 1
    assert norm(x).dtype == own.dtype
    assert torch.equal(norm(x), own)


def test_two_decoders_share_one_models_forwards() -> None:
    model = fresh("llama")
    first, second = make_lean(model, TORCH), make_lean(model, TORCH)
    assert len(first) == len(second)
    first.release()
    assert not any("forward" in vars(module) for module in model.modules())
    second.bind()
    first.bind()
    second.release()
    assert not any("forward" in vars(module) for module in model.modules())


def test_forwards_of_others_are_left_to_them() -> None:
    model = fresh("llama")
    norm, attention, behind = (
        model.model.norm,
        *[getattr(model.model.layers[0], name) for name in ("self_attn", "mlp")],
    )
    for module in (norm, attention):
        module.forward = module.forward
    theirs = [vars(module)["forward"] for module in (norm, attention)]
    lean = make_lean(model, PARTS)
    assert not {norm, attention} & {module for module, _ in lean._forwards}
    behind.forward = wrapper = lambda x: x
    lean.release()
    assert [vars(module)["forward"] for module in (norm, attention)] == theirs
    assert vars(behind)["forward"] is wrapper


def test_a_trial_takes_nothing_for_granted() -> None:
    x = torch.randn(3, 4)
    assert difference(torch.sin, torch.sin, x) == 0.0
    assert 0.009 < difference(torch.sin, lambda x: 1.01 * torch.sin(x), x) < 0.011

    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("no kernel")

    for other in (
        broken,
        lambda x: torch.sin(x)[:1],
        lambda x: torch.sin(x).double(),
        lambda x: torch.sin(x) * torch.nan,
        lambda x: torch.sin(x) / 0.0,
        lambda x: (torch.sin(x), torch.sin(x)),
        lambda x: (torch.sin(x), None),
        lambda x: {"sin": torch.sin(x)},
        lambda x: None,
    ):
        assert difference(torch.sin, other, x) == difference(other, torch.sin, x) == float("inf")


def test_a_trial_finds_every_difference() -> None:
    x = torch.randn(3, 4)
    assert difference(lambda x: (x, x), lambda x: (1.01 * x, x), x) > 0.009
    assert difference(lambda x: (x, x), lambda x: (x, 1.01 * x), x) > 0.009


def test_a_trial_tells_of_a_lost_gpu() -> None:
    def lost(x: Tensor) -> Tensor:
        raise DeviceLostError("the GPU has met a fault")

    with pytest.raises(DeviceLostError):
        difference(torch.sin, lost, torch.randn(3))


def test_a_model_made_lean_in_inference_mode_can_be_used_outside_of_it() -> None:
    model = fresh("llama")
    with torch.inference_mode():
        make_lean(model, TORCH)
    assert not any(parameter.is_inference() for parameter in model.parameters())
    model(input_ids=torch.tensor([[5, 6]]), use_cache=False)


def test_layers_that_are_left_alone() -> None:
    class Other(nn.Linear):
        """As quantised layers are."""

    assert may_join(linears(6, 4))
    assert not may_join([linears(6)[0], None])
    assert not may_join([*linears(6), Other(8, 4)])
    assert not may_join([*linears(6), nn.Linear(9, 4)])
    assert not may_join([*linears(6), *linears(4, bias=False)])
    assert not may_join([*linears(6), nn.Linear(8, 4).half()])
    assert not may_join([*linears(6), nn.Linear(8, 4, device="meta")])
    hooked = linears(6, 4)
    hooked[1].register_forward_hook(lambda *_: None)
    assert not may_join(hooked)
    wrapped = linears(6, 4)
    wrapped[0].forward = wrapped[0].forward
    assert not may_join(wrapped)
    transposed = linears(6, 8)
    transposed[1].weight = nn.Parameter(transposed[1].weight.data.t())
    assert not may_join(transposed)
    with torch.inference_mode():
        assert not may_join(linears(6, 4))
    shared = linears(6, 4)
    assert not may_join(shared, {id(shared[0].weight)})


class WrongRMSNorm(nn.Module):
    """Subtracts the mean, and should not be called what it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (8,), self.weight, None, self.eps)


class WrongGate(nn.Module):
    """A gated block that adds where others multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linears(6, 6)
        self.down_proj = nn.Linear(6, 8)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) + self.up_proj(x))
        return out


class Gate(nn.Module):
    """A gated block as models have it."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linears(6, 6)
        self.down_proj = nn.Linear(6, 8)
        self.act_fn = act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return out


@TRITON
def test_blocks_of_one_class_may_have_other_activations() -> None:
    acts = [nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")]
    blocks, x = [Gate(act) for act in acts[:2]], torch.randn(1, 3, 8)
    with torch.no_grad():
        own = [block(x) for block in blocks]
        lean = make_lean(nn.Sequential(*blocks), PARTS)
        assert names(lean) == {"_Fused", "_Together"}
        assert names(make_lean(Gate(acts[2]), PARTS)) == {"_FusedGelu"}
        for block, expected in zip(blocks, own, strict=True):
            torch.testing.assert_close(block(x), expected)


class Merged(nn.Module):
    """A gated block whose gate and up are one layer; the second half is the gate, if asked."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        (self.gate_up_proj,) = linears(12)
        self.down_proj = nn.Linear(6, 8)
        self.turned = turned

    def forward(self, x: Tensor) -> Tensor:
        parts = self.gate_up_proj(x).chunk(2, dim=-1)
        gate, up = reversed(parts) if self.turned else parts
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


@TRITON
def test_blocks_of_one_product_from_the_start() -> None:
    block, x = Merged(turned=False), torch.randn(1, 3, 8)
    with torch.no_grad():
        own = block(x)
        lean = make_lean(block, PARTS)
        assert names(lean) == {"_Merged"}
        torch.testing.assert_close(block(x), own)
    assert not len(make_lean(Merged(turned=False), TORCH))
    assert not len(make_lean(Merged(turned=True), PARTS))


def test_without_memory_to_join_gates_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, tries = [Gate(nn.SiLU()), Gate(nn.SiLU())], iter([True, False, False])
    monkeypatch.setattr(gated, "attempt", lambda make: make() if next(tries) else None)
    assert names(make_lean(nn.Sequential(*blocks), TORCH)) == {"_Apart"}
    storages = [block.gate_proj.weight.untyped_storage().data_ptr() for block in blocks]
    assert len(make_lean(nn.Sequential(*blocks), [])) == len({*storages}) == 2


class UnsafeRMSNorm(WrongRMSNorm):
    """Says that it keeps small rows small, and does not."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.pow(2).mean(-1, keepdim=True).sqrt() * self.weight


@pytest.mark.parametrize("kind", [WrongRMSNorm, UnsafeRMSNorm, WrongGate])
@pytest.mark.parametrize("parts", [TORCH, PARTS])
def test_modules_that_do_something_else_stay(
    kind: Callable[[], nn.Module], parts: tuple[str, ...]
) -> None:
    assert len(make_lean(nn.Sequential(kind()), parts)) == 0


def test_a_lean_model_can_be_saved(tmp_path: Path) -> None:
    model = fresh("qwen2")
    make_lean(model, TORCH)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_a_lean_model_can_be_copied_and_let_go() -> None:
    model = fresh("llama")
    make_lean(model, TORCH)
    other = copy.deepcopy(model)
    nn.init.zeros_(other.model.layers[0].self_attn.k_proj.weight)
    assert far(logits(other, "llama"), logits(model, "llama")) > 1e-3
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_lean_layers_can_be_traced() -> None:
    layer = fresh("llama").model.layers[0]
    attention = layer.self_attn
    parts = [attention.q_proj, attention.k_proj, attention.v_proj, layer.mlp, layer.input_layernorm]

    def all_of_it(x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in parts], dim=-1)

    x, y = torch.randn(2, 1, 3, 32)
    with torch.no_grad():
        own = all_of_it(y)
        make_lean(layer, TORCH)
        torch.testing.assert_close(make_fx(all_of_it)(x)(y), own)


@TRITON
@pytest.mark.parametrize("shape", [(1, 5, 24), (1, 2, 5, 24), (1, 1, 24)])
@pytest.mark.parametrize("form", fused.FORMS)
def test_normalise(shape: tuple[int, ...], form: fused.Form) -> None:
    # A slice of something larger, with heads and tokens in the other order.
    x = torch.randn(*shape[:-1], 40)[..., 3:27]
    x = x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim == 4 else x
    weight = torch.rand(24)
    exact = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * (weight + form.offset)
    assert fused.may_normalise(x)
    torch.testing.assert_close(fused.normalise(x, weight, 1e-3, form), exact)


def test_kernels_refuse_what_they_would_get_wrong() -> None:
    q, k, cos = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 3, 8)
    assert turning.may_rotate(q, k, cos, cos)
    assert not turning.may_rotate(q, k.half(), cos, cos)
    assert turning.may_rotate(q, k, cos[..., :4], cos[..., :4])
    assert turning.may_rotate(q.half(), k.half(), cos, cos)
    assert not turning.may_rotate(q, k, cos[..., :3], cos[..., :3])
    assert not turning.may_rotate(q, k, cos, cos[..., :4])
    assert not turning.may_rotate(q[..., :4], k[..., :4], cos, cos)
    assert not turning.may_rotate(q, k, cos.half(), cos.half())
    assert not turning.may_rotate(q.half(), k.half(), cos, cos.half())
    assert not turning.may_rotate(q[..., :7], k[..., :7], cos[..., :7], cos[..., :7])
    assert not turning.may_rotate(q[..., ::2], k[..., ::2], cos[..., ::2], cos[..., ::2])
    assert not turning.may_rotate(q.expand(2, -1, -1, -1), k.expand(2, -1, -1, -1), cos, cos)
    assert not turning.may_rotate(q, k, cos.expand(2, -1, -1), cos.expand(2, -1, -1))
    assert not turning.may_rotate(q[0], k[0], cos, cos)
    # One angle for all tokens, and keys of other tokens than the queries'.
    assert not turning.may_rotate(q, k, cos[:, :1], cos)
    assert not turning.may_rotate(q, k, cos, cos[:, :1])
    assert not turning.may_rotate(q, k[:, :, :2], cos, cos)
    assert not turning.may_rotate(q[:, :, :2], k, cos, cos)
    x = torch.randn(1, 3, 8)
    assert fused.may_normalise(x)
    assert not fused.may_normalise(x[0])
    assert not fused.may_normalise(x.expand(2, -1, -1))
    assert not fused.may_normalise(x[..., ::2])
    assert not fused.may_normalise(torch.empty(1, 1, 16385))
    assert fused.may_gate(x)
    assert not fused.may_gate(x[..., :4])


@TRITON
@pytest.mark.parametrize(("family", "found"), [("llama3", True), ("llama_dynamic", False)])
def test_angles(family: str, found: bool) -> None:
    module = fresh(family).model.rotary_emb
    x, positions = torch.zeros(1, 1, 1), torch.tensor([[3, 0, 900, 4]])
    own, own_half = (module(each, positions) for each in (x, x.half()))
    lean = make_lean(nn.Sequential(nn.Linear(1, 1), module), PARTS)
    assert (names(lean) == {"_Angles"}) is found
    torch.testing.assert_close(module(x, positions), own, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(module(x.half(), position_ids=positions), own_half)
    # Padded texts are not ours.
    both = positions.expand(2, -1)
    assert [each.shape for each in module(x, both)] == [(2, 4, 8)] * 2


@TRITON
def test_angles_are_scaled() -> None:
    positions, frequencies = torch.tensor([[3, 0, 77]]), torch.rand(4)
    angles = (positions[..., None] * frequencies).repeat(1, 1, 2)
    cos, sin = fused.angles(positions, frequencies, 0.5, torch.float32)
    torch.testing.assert_close(cos, 0.5 * angles.cos())
    torch.testing.assert_close(sin, 0.5 * angles.sin())


@TRITON
def test_arguments_that_a_module_refuses_are_refused() -> None:
    model = fresh("llama")
    assert "_Angles" in names(make_lean(model, ["kernels"]))
    with pytest.raises(TypeError):
        model.model.rotary_emb(torch.zeros(1), torch.tensor([[3]]), layer_type="full_attention")


@TRITON
def test_attention_of_quantised_weights_is_turned() -> None:
    model = fresh("llama")
    for layer in model.model.layers:
        for weight in layer.self_attn.parameters():
            weight.requires_grad_(False)
            weight.data = weight.data.byte()
    assert "Turned" in names(make_lean(model, ["kernels"]))


@TRITON
def test_a_kernel_that_does_not_write_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def writes() -> set[bool]:
        lean = make_lean(fresh("llama"), ["kernels"])
        owners = (forward.__self__ for _, forward in lean._forwards)
        return {owner.turn._writes for owner in owners if isinstance(owner, Turned)}

    assert writes() == {True}
    rotate = turning.rotate
    monkeypatch.setattr(turning, "rotate", lambda *args, room=None, **_: rotate(*args))
    assert writes() == {False}


@TRITON
@pytest.mark.parametrize("width", [1, 48, 1500])
def test_gate(width: int) -> None:
    both = 2.0 * torch.randn(1, 3, 2 * width)
    gate, up = both.chunk(2, dim=-1)
    torch.testing.assert_close(fused.gate(both), F.silu(gate) * up)
    gelu = F.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(fused.gate(both, gelu=True), gelu, atol=1e-5, rtol=1e-5)


def test_a_lean_model_can_be_compiled() -> None:
    model, ids = fresh("llama"), torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits
        make_lean(model, PARTS)
        whole = torch.compile(model, backend="eager")
        torch.testing.assert_close(whole(input_ids=ids, use_cache=False).logits, own)
