"""How far scores are from another choice, and how far arithmetic moves them."""

from __future__ import annotations

import math

import pytest
import torch

from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.movement import Choice, Movement, movement, noise_of
from ladecli.decoder.sampling import uniform

GREEDY = SamplingConfig()
SCORES = torch.tensor([1.0, 3.0, 2.0, -torch.inf, 2.5])


@pytest.mark.parametrize(("token", "distance"), [(1, 0.0), (4, 0.5), (0, 2.0), (3, float("inf"))])
def test_distance_of_greedy_choices(token: int, distance: float) -> None:
    assert Choice(SCORES, GREEDY, 5).distance(token) == distance


@pytest.mark.parametrize("seed", range(6))
def test_distance_of_draws_is_the_change_in_odds(seed: int) -> None:
    sampling = SamplingConfig(temperature=0.7, seed=seed)
    choice, u = Choice(SCORES, sampling, 5), uniform(seed, 5)
    weights = torch.softmax(SCORES.double() / 0.7, dim=0)
    below = weights.cumsum(0)
    distances = [choice.distance(token) for token in (0, 1, 2, 4)]
    assert distances.count(0.0) == 1
    for token, found in zip((0, 1, 2, 4), distances, strict=True):
        low = float(below[token] - weights[token])
        # The number must come to lie in the token's part of the line.
        edge = float(below[token]) if u >= float(below[token]) else low
        if found and 0 < edge < 1:
            odds = math.log(edge / (1 - edge)) - math.log(u / (1 - u))
            assert found == pytest.approx(0.7 * abs(odds), rel=0.01)


def test_top_k_must_leave_the_other_token_in() -> None:
    sampling = SamplingConfig(temperature=1.0, top_k=1, seed=1)
    assert Choice(SCORES, sampling, 5).distance(1) == 0.0
    assert Choice(SCORES, sampling, 5).distance(4) == pytest.approx(0.5, rel=0.01)
    # Token 2 would lie on the right side with less, but it is not the best one then.
    assert Choice(SCORES, sampling, 5).distance(2) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("distance", "noise", "explained"),
    [(0.02, 0.0, True), (0.06, 0.01, True), (0.07, 0.01, False), (0.2, 9.0, False)],
)
def test_what_arithmetic_explains(distance: float, noise: float, explained: bool) -> None:
    found = Movement(gap=distance, distance=distance, noise=noise, rounding=0.02, most=0.1)
    assert found.explained is explained


FALLING = torch.tensor([3.0, 2.0, 1.0, 0.0, -torch.inf])
OTHER = FALLING + torch.tensor([0.0, 0.1, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("chosen", "noise"),
    [
        # What decides this choice; or of all tokens that are not ruled out, a deviation of 0.05.
        ((0, 1), 0.1),
        ((2, 3), 2.0**0.5 * 0.05),
    ],
)
def test_noise_is_what_forwards_differ_by(chosen: tuple[int, int], noise: float) -> None:
    assert noise_of([FALLING, OTHER], chosen, GREEDY) == pytest.approx(noise, rel=1e-4)


def test_many_improbable_tokens_move_what_is_drawn() -> None:
    tail = torch.arange(1064) >= 64
    one, other = -0.1 * tail, 0.9 * tail
    # The best 64 of the first are the same in both, and the rest weighs e times as much.
    assert noise_of([one, other], (10, 63), GREEDY) == 0.0
    drawn = noise_of([one, other], (10, 63), SamplingConfig(temperature=1.0))
    assert drawn == pytest.approx(1.0, rel=0.01)


def test_either_choice_may_be_the_far_one() -> None:
    # The plain forward prefers token 0 now, whatever plain decoding chose.
    for chosen in ((0, 2), (2, 0)):
        found = movement([FALLING, OTHER], chosen, GREEDY, 5, rounding=0.0, most=1.0)
        assert found.distance == 2.0
        assert abs(found.gap) == 2.0
