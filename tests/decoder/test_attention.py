"""Attention backends against plain formulas, sliding windows and caps included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ladecli.decoder.attention import BACKENDS, StepAttention, attention_forward
from ladecli.decoder.errors import UnsupportedModelError
from ladecli.decoder.layout import Draft, build
from ladecli.decoder.tree import TokenTree


def step_of(prefix: int, backend: str) -> tuple[StepAttention, list[int], np.ndarray]:
    """Two pending tokens and a tree with rivals, behind `prefix` cached tokens."""
    tree = TokenTree()
    for candidate in ((1, 2, 3), (1, 4), (5,)):
        tree.add(candidate, "trajectory", 9)
    layout = build([8, 9], prefix, Draft(tree))
    assert layout.visible is not None
    step = StepAttention(
        BACKENDS[backend],
        torch.from_numpy(layout.visible),
        torch.tensor(layout.positions),
        prefix,
        max(layout.positions),
    )
    return step, layout.positions, layout.visible


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("prefix", [0, 1, 30])
@pytest.mark.parametrize("sliding", [None, 1, 3, 5, 1000])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("groups", [1, 3])
def test_backends_against_a_loop_over_queries(
    backend: str, prefix: int, sliding: int | None, softcap: float | None, groups: int
) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
        if groups == 1 or prefix == 1:
            pytest.skip("the interpreter is slow, and test_fused.py has more")
    step, positions, visible = step_of(prefix, backend)
    count, keys, depth = len(positions), 2, 8
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, keys * groups, count, depth, generator=generator)
    key, value = (torch.randn(1, keys, prefix + count, depth, generator=generator) for _ in "kv")
    out = BACKENDS[backend](query, key, value, step, 0.5, sliding, softcap)
    where = [*range(prefix), *positions]
    for head in range(keys * groups):
        for row in range(count):
            seen = [*range(prefix), *(prefix + i for i in range(count) if visible[row, i])]
            if sliding is not None:
                seen = [slot for slot in seen if where[slot] > positions[row] - sliding]
            scores = key[0, head // groups, seen] @ query[0, head, row] * 0.5
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            expected = torch.softmax(scores, dim=0) @ value[0, head // groups, seen]
            torch.testing.assert_close(out[0, head, row], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sliding", [None, 4])
def test_masks_are_made_once_for_all_layers(sliding: int | None) -> None:
    step, _, _ = step_of(10, "sdpa")
    first = step.added_mask(sliding, 2, torch.float32)
    assert first is step.added_mask(sliding, 2, torch.float32)


def test_a_lone_token_needs_no_mask() -> None:
    step = StepAttention(BACKENDS["sdpa"], None, torch.tensor([30]), 30, 30)
    assert step.bool_mask(None) is None
    assert step.bool_mask(31) is None
    assert step.bool_mask(30) is not None


def test_a_model_that_drops_the_step_is_refused() -> None:
    tensor = torch.zeros(1, 1, 1, 4)
    with pytest.raises(UnsupportedModelError, match="does not pass the step on"):
        attention_forward(torch.nn.Identity(), tensor, tensor, tensor, None)


def test_a_model_that_wants_more_is_refused() -> None:
    tensor = torch.zeros(1, 1, 1, 4)
    step, _, _ = step_of(0, "sdpa")
    with pytest.raises(UnsupportedModelError, match="needs 's_aux' in its attention"):
        attention_forward(
            torch.nn.Identity(), tensor, tensor, tensor, None, lade_step=step, s_aux=tensor
        )
