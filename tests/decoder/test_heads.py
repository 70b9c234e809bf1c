"""Norms of queries and keys that are left to the rotary embedding, and those that are not."""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from ladecli.decoder.lean import PARTS, fused, make_lean, turning
from ladecli.decoder.lean.heads import lean_heads
from ladecli.decoder.lean.norms import lean_norms
from ladecli.decoder.lean.rotary import Turn, Turned, _lean_forward

from .test_lean import far, fresh, names

pytest.importorskip("triton")
HEADS = ("norms", "kernels")


def inputs(count: int = 3) -> dict[str, Any]:
    """What attention of the small models is given."""
    x, cos, sin = torch.randn(1, count, 32), *torch.randn(2, 1, count, 8)
    return {"hidden_states": x, "position_embeddings": (cos, sin), "attention_mask": None}


def attention_of(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A layer's attention, of which no two norms are alike."""
    return fresh(family, dtype).model.layers[0].self_attn


@torch.no_grad()
def said(attention: nn.Module, given: dict[str, Any]) -> Tensor:
    out: Tensor = attention(**given)[0]
    return out


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that are launched from now on."""
    launched: list[str] = []
    launch = fused.launch

    def noted(name: str, *args: Any, **constants: Any) -> None:
        launched.append(name)
        launch(name, *args, **constants)

    monkeypatch.setattr(fused, "launch", noted)
    return launched


@pytest.mark.parametrize(
    ("family", "dtype"), [("qwen3", torch.float16), ("gemma3", torch.float32)], ids=str
)
def test_attention_says_the_same(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, given = attention_of(family, dtype), inputs()
    given["hidden_states"] = given["hidden_states"].to(dtype)
    given["position_embeddings"] = [each.to(dtype) for each in given["position_embeddings"]]
    own = said(attention, given)
    lean = make_lean(attention, HEADS)
    assert names(lean) == {"Left", "Turned"}
    launched = counted(monkeypatch)
    assert far(said(attention, given), own) < (1e-5 if dtype == torch.float32 else 2e-3)
    assert launched == ["rotate"]
    # By itself a norm is one.
    x = torch.randn(1, 2, 4, 8).to(dtype)
    assert not torch.equal(attention.q_norm(x), x)
    lean.release()
    assert torch.equal(said(attention, given), own)


def test_norms_over_all_heads_are_their_own() -> None:
    assert names(make_lean(attention_of("olmo2"), HEADS)) == {"Kernel", "Turned"}


def test_texts_side_by_side_are_normalised_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, given = attention_of("qwen3"), inputs()
    given["hidden_states"] = torch.randn(2, 3, 32)
    own = said(attention, given)
    assert "Left" in names(make_lean(attention, HEADS))
    launched = counted(monkeypatch)
    assert far(said(attention, given), own) < 1e-5
    assert launched == []


def test_somebody_who_looks_at_a_norm_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, given = attention_of("qwen3"), inputs()
    heard: list[Tensor] = []
    hook = attention.q_norm.register_forward_hook(lambda *args: heard.append(args[2]))
    own = said(attention, given)
    hook.remove()
    make_lean(attention, HEADS)
    hook = attention.q_norm.register_forward_hook(lambda *args: heard.append(2.0 * args[2]))
    assert far(said(attention, given), own) < 1e-5
    torch.testing.assert_close(heard[1], 2.0 * heard[0])
    hook.remove()
    launched = counted(monkeypatch)
    said(attention, given)
    assert launched == ["rotate"]


def test_a_copy_has_norms_of_its_own() -> None:
    attention, given = attention_of("qwen3"), inputs()
    make_lean(attention, HEADS)
    own, other = said(attention, given), copy.deepcopy(attention)
    assert torch.equal(said(other, given), own)
    nn.init.zeros_(other.q_norm.weight)
    assert far(said(other, given), own) > 1e-2
    assert torch.equal(said(attention, given), own)


@torch.no_grad()
def test_what_is_left_undone_is_an_error() -> None:
    attention, x = attention_of("qwen3"), torch.randn(1, 3, 8)
    own = attention.q_norm(x)
    assert len(make_lean(attention, HEADS)) == 3
    turn, angles = attention.forward.__self__.turn, inputs()["position_embeddings"]

    def alone(x: Tensor, angles: Any) -> Tensor:
        """What a norm says within attention that turns nothing."""
        run = partial(turn.run, lambda **_: attention.q_norm(x), None, None)
        out: Tensor = run(position_embeddings=angles)
        return out

    for _ in range(2):
        with pytest.raises(RuntimeError, match="queries or keys were not normalised"):
            alone(x, angles)
        assert far(attention.q_norm(x), own) < 1e-6
    # Some layers, as Beam's, turn nothing where they are handed no angles.
    assert far(alone(x, None), own) < 1e-6
    # What the kernels would not take anyway.
    assert far(alone(x.half(), angles), own) < 2e-3
    with fused.switched(False):
        assert far(alone(x, angles), own) < 1e-6


class Attention(nn.Module):
    """Qwen3's attention, as a test changes it."""

    def __init__(self) -> None:
        super().__init__()
        self._modules = attention_of("qwen3")._modules
        self.layer_idx = 0

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, past_key_values: Any, **given: Any
    ) -> tuple[Tensor, None]:
        shape = (*hidden_states.shape[:-1], -1, 8)
        layers = (self._modules[f"{name}_proj"] for name in "qkv")
        q, k, v = (layer(hidden_states).view(shape).transpose(1, 2) for layer in layers)
        q, k = normed = self.normed(q, k)
        if self.turns():
            q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        q, k, v = self.seen(q, k, v, *normed)
        past_key_values.update(k, v, self.layer_idx)
        out = given["lade_step"].backend(q, k, v)
        return self.o_proj(out.transpose(1, 2).flatten(2)), None

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys before they are turned."""
        return self.q_norm(q), self.k_norm(k)

    def turns(self) -> bool:
        """Whether they are."""
        return True

    def seen(self, q: Tensor, k: Tensor, v: Tensor, *normed: Tensor) -> tuple[Tensor, ...]:
        """What goes to the cache and to attention."""
        return q, k, v


class Backwards(Attention):
    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        k = self.k_norm(k)
        return self.q_norm(q), k


class Unturned(Attention):
    """As some layers of Exaone 4 are."""

    def turns(self) -> bool:
        return False


class Behind(Attention):
    """First turned, then normalised."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def seen(self, q: Tensor, k: Tensor, v: Tensor, *normed: Tensor) -> tuple[Tensor, ...]:
        return self.q_norm(q), self.k_norm(k), v


class Valued(Attention):
    """Keys are values, before they are turned."""

    def seen(self, q: Tensor, k: Tensor, v: Tensor, *normed: Tensor) -> tuple[Tensor, ...]:
        return q, k, normed[1]


class Scaled(Attention):
    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return 0.98 * self.q_norm(q), self.k_norm(k)


class Dense(Attention):
    """What is turned is a copy, unless there is one token."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q).contiguous(), self.k_norm(k).contiguous()


class Late(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.o_proj.register_forward_hook(lambda *_: None)


class Unlike(Attention):
    def __init__(self) -> None:
        super().__init__()
        # A trial does not see that, and a token that is near to 0 does.
        self.k_norm.variance_epsilon = 1e-5


@cache
def turned() -> tuple[Any, Turn]:
    """The forward of all these with a lean rotary embedding in it."""
    made = _lean_forward(Attention(), Attention())
    assert made is not None
    return made


@pytest.mark.parametrize(
    "kind", [Attention, Backwards, Unturned, Behind, Valued, Scaled, Dense, Late, Unlike]
)
def test_attention_that_does_something_else_keeps_its_norms(kind: type[Attention]) -> None:
    attention = kind()
    forwards = dict(lean_norms(attention, kernels=True))
    assert len(forwards) == 2
    found = lean_heads({**forwards, attention: Turned(attention, *turned()).forward})
    assert {*dict(found)} == ({*forwards} if kind in (Attention, Backwards) else set())


@pytest.mark.parametrize("lost", ["norms", "room"])
def test_a_kernel_that_does_not_do_both_is_not_asked_to(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotate = turning.rotate

    def less(*args: Any, **given: Any) -> Any:
        if given.get("norms"):
            given[lost] = None
        return rotate(*args, **given)

    monkeypatch.setattr(turning, "rotate", less)
    # Values lie behind keys where one product says both.
    assert "Left" not in names(make_lean(attention_of("qwen3"), PARTS))
