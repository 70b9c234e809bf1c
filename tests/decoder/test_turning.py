"""The kernel that turns queries and keys: what transformers' functions and norms do, to the bit."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.lean import fused, slots, turning
from ladecli.decoder.lean.fused import FORMS, Form, Weighing
from ladecli.decoder.lean.rotary import Kind, Turn, _turn_for
from ladecli.decoder.lean.turning import TURNINGS, Turning

from .test_slots import product, room_for

pytest.importorskip("triton")
HALVES, _, GLM, ERNIE, _, COHERE = TURNINGS
FULL, PART = Kind(partial=False, wide=False), Kind(partial=True, wide=False)
WIDE = Kind(partial=False, wide=True)


def function_of(family: str) -> Any:
    """How transformers turns the queries and keys of a family."""
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    return module.apply_rotary_pos_emb


def inputs(depth: int, turned: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys of two tokens out of one product, and angles of which no two are alike."""
    query, key, _ = product((3, 2, 2), 2, depth)
    cos, sin = torch.randn(2, 1, 2, turned)
    return query, key, cos, sin


@pytest.mark.parametrize(
    ("family", "how", "turned"),
    [
        ("llama", HALVES, 12),
        ("phi3", HALVES, 8),
        ("olmo2", HALVES, 12),
        ("glm4", GLM, 12),
        ("glm4", GLM, 4),
        ("ernie4_5", ERNIE, 12),
        ("cohere", COHERE, 12),
    ],
)
def test_families(family: str, how: Turning, turned: int) -> None:
    # In float32 nothing is rounded that they could round elsewhere.
    query, key, cos, sin = (each.half() for each in inputs(12, turned))
    assert turning.may_rotate(query, key, cos, sin)
    found = turning.rotate(query, key, cos, sin, how)
    assert all(map(torch.equal, found, function_of(family)(query, key, cos, sin)))
    for x in found:
        assert x.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(("heads", "keys", "depth"), [(4, 2, 8), (3, 1, 24), (1, 1, 2)])
@pytest.mark.parametrize("count", [1, 3])
def test_heads_of_any_number_and_size(heads: int, keys: int, depth: int, count: int) -> None:
    sizes = [heads * depth, keys * depth, 5]
    parts = torch.randn(1, count, sum(sizes)).split(sizes, dim=-1)
    q, k = (each.view(1, count, -1, depth).transpose(1, 2) for each in parts[:2])
    cos, sin = torch.randn(1, count, depth), torch.randn(1, count, 2 * depth)[..., :depth]
    found = turning.rotate(q, k, cos, sin)
    assert all(map(torch.equal, found, function_of("llama")(q, k, cos, sin)))


def test_angles_in_float32_are_not_rounded() -> None:
    query, key, cos, sin = inputs(12, 12)
    given = query.half(), key.half(), cos, sin
    assert all(map(torch.equal, turning.rotate(*given), function_of("olmo2")(*given)))


def test_which_function_does_what() -> None:
    def found(family: str, dtype: torch.dtype = torch.float16) -> tuple[Turning, set[Kind]]:
        turn = _turn_for(function_of(family), torch.empty(0, dtype=dtype))
        assert isinstance(turn, Turn)
        assert turn._writes
        return turn._how, turn._kinds

    # With angles in float32 Llama's function says float32.
    assert found("llama") == (HALVES, {FULL})
    assert found("llama", torch.float32) == (HALVES, {FULL})
    assert found("phi3") == (HALVES, {FULL, PART})
    assert found("olmo2") == (HALVES, {FULL, WIDE})
    assert found("glm4") == (GLM, {FULL, PART})
    assert found("ernie4_5") == (ERNIE, {FULL, WIDE})
    assert found("cohere") == (COHERE, {FULL, WIDE})
    assert _turn_for(lambda q, k, cos, sin: (q * cos, k * sin), torch.empty(0)) is None


def test_what_no_trial_was_about_is_left_to_the_familys_own() -> None:
    asked: list[Any] = []
    turn = Turn(lambda *args, **kwargs: asked.append((args, kwargs)), HALVES, {FULL}, False)
    given = inputs(12, 12)
    turn(*given)
    assert not asked
    turn(*given, unsqueeze_dim=2)
    turn(*given, 2)
    turn(*inputs(12, 8))
    turn(given[0].half(), given[1].half(), *given[2:])
    assert len(asked) == 4


def quarters(x: Tensor) -> Tensor:
    """Numbers whose squares have the same sum in any order."""
    return (4.0 * x).round().clamp(-8, 8) / 4.0


@pytest.mark.parametrize("form", FORMS)
def test_norms_are_rounded_as_by_themselves(form: Form) -> None:
    query, key, cos, sin = (quarters(each).half() for each in inputs(12, 4))
    norms = [Weighing(torch.randn(12).half(), 1e-3, form) for _ in range(2)]
    normed = [fused.normalise(x, *norm) for x, norm in zip((query, key), norms, strict=True)]
    expected = turning.rotate(normed[0], normed[1], cos, sin, GLM)
    found = turning.rotate(query, key, cos, sin, GLM, norms=(norms[0], norms[1]))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(("how", "turned"), [(HALVES, 8), (GLM, 12)])
def test_what_is_normalised_can_be_written_at_once(how: Turning, turned: int) -> None:
    query, key, value = product((3, 2, 2), 3, 12)
    cos, sin = torch.randn(2, 1, 3, turned)
    norms = Weighing(torch.rand(12), 1e-3, FORMS[0]), Weighing(torch.rand(12), 1e-3, FORMS[0])
    room = room_for(2, 12, 5)
    expected = room.keys.clone(), room.values.clone()
    outs = turning.rotate(query, key, cos, sin, how, norms=norms)
    expected[0][:, :, 5:8], expected[1][:, :, 5:8] = outs[1], value
    assert slots.values_behind(key, room) is not None
    written = turning.rotate(query, key, cos, sin, how, norms=norms, room=room)
    assert all(map(torch.equal, (*written, *room[:2]), (*outs, *expected)))
