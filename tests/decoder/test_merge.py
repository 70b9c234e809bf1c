"""Partial attentions joined: the same as one softmax over all keys."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ladecli.decoder.attention.merge import merge, merge_scores

NOTHING = float("-inf")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attend(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attention by one softmax in float64, and its log-sum-exp."""
    scores = scores.double()
    return torch.softmax(scores, dim=-1) @ value.double(), torch.logsumexp(scores, dim=-1)


def parts_of(scores: Tensor, value: Tensor, edges: list[int]) -> tuple[Tensor, Tensor]:
    """Partial attentions over the keys between edges, stacked, in float32."""
    parts = [attend(scores[..., a:b], value[..., a:b, :]) for a, b in pairwise(edges)]
    out, lse = (torch.stack(each).float() for each in zip(*parts, strict=True))
    return out, lse


@pytest.mark.parametrize("edges", [[0, 40], [0, 1, 40], [0, 13, 14, 30, 40]])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_parts_come_to_the_whole(edges: list[int], size: float) -> None:
    scores, value = size * drawn(2, 5, 40), drawn(2, 40, 8, seed=1)
    out, lse = merge(*parts_of(scores, value, edges))
    expected, whole = attend(scores, value)
    torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(lse.double(), whole, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_scores_far_from_zero_do_not_overflow(shift: float) -> None:
    scores, value = drawn(2, 5, 40) + shift, drawn(2, 40, 8, seed=1)
    out, _ = merge(*parts_of(scores, value, [0, 20, 40]))
    # The log-sum-exp itself has 1e4 to hold, in float32.
    torch.testing.assert_close(out.double(), attend(scores, value)[0], atol=2e-3, rtol=1e-3)


def test_a_part_that_saw_nothing_counts_for_nothing() -> None:
    scores, value = drawn(2, 5, 40), drawn(2, 40, 8, seed=1)
    out, lse = parts_of(scores, value, [0, 20, 40])
    out = torch.cat([torch.full((1, 2, 5, 8), 1e30), out])
    lse = torch.cat([torch.full((1, 2, 5), NOTHING), lse])
    together, whole = merge(out, lse)
    torch.testing.assert_close(together.double(), attend(scores, value)[0], atol=1e-6, rtol=1e-6)
    assert torch.isfinite(whole).all()


def test_where_no_part_saw_anything_the_answer_is_nothing() -> None:
    out, lse = merge(torch.full((3, 2, 5, 8), 7.0), torch.full((3, 2, 5), NOTHING))
    assert (out == 0).all()
    assert (lse == NOTHING).all()


def test_what_is_not_a_number_does_not_vanish() -> None:
    out, lse = torch.zeros(2, 3, 4), torch.zeros(2, 3)
    lse[1, 2] = float("nan")
    assert merge(out, lse)[0].isnan().any(dim=1).tolist() == [False, False, True]


def test_half_precision_is_joined_in_float32() -> None:
    out = torch.tensor([[[1.0]], [[1.0078125]]], dtype=torch.bfloat16)
    together, _ = merge(out, torch.zeros(2, 1))
    assert together.dtype == torch.float32
    assert together.item() == 1.00390625  # Between the two, where bfloat16 has no number.


@pytest.mark.parametrize("own", [1, 7, 39])
def test_scores_at_hand_join_a_part(own: int) -> None:
    scores, value = drawn(2, 5, 40), drawn(2, 40, 8, seed=1)
    out, lse = attend(scores[..., own:], value[:, own:])
    together = merge_scores(scores[..., :own], value[:, :own], out.float(), lse.float())
    torch.testing.assert_close(together.double(), attend(scores, value)[0], atol=1e-6, rtol=1e-6)


def test_scores_at_hand_join_nothing() -> None:
    scores, value = drawn(2, 5, 7), drawn(2, 7, 8, seed=1)
    out, lse = torch.full((2, 5, 8), 1e30), torch.full((2, 5), NOTHING)
    together = merge_scores(scores, value, out, lse)
    torch.testing.assert_close(together.double(), attend(scores, value)[0], atol=1e-6, rtol=1e-6)
