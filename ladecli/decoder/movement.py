"""What it takes to choose another token, and whether arithmetic can do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from .config import SamplingConfig
from .sampling import distribution, draw, uniform

SAFETY = 4.0
"""Times the noise seen that logits may have moved.

The noise is what three or four forwards differ by.  The forward in question is one more, and was
picked because its noise reached across: of thousands of positions only such ones diverge.
"""
LEADERS = 64
"""The noise is that of so many tokens, the best ones: the others are never chosen."""
COLDEST = 1e-3
"""Below this temperature logits over it lose their digits, and the best one wins anyway."""
FARTHEST = 1e3
"""No two logits are moved further apart than that to find out what would change a choice."""


@dataclass(frozen=True, slots=True)
class Movement:
    """What it takes to choose another token, and what arithmetic can do; all in logits.

    Attributes:
        gap: by how much plain decoding prefers its token to the other, after the repetition
            penalty; sampling can choose the less probable one.
        distance: how far logits have to move against each other for plain decoding to choose
            the other token, with the same random number; the gap, if it is greedy.
        noise: what forwards that differ in their widths alone differ by.
        rounding: of logits of this size in their own type.
        most: as much noise is believed; more is a fault of some forward.
    """

    gap: float
    distance: float
    noise: float
    rounding: float
    most: float

    @property
    def allowed(self) -> float:
        """As far as arithmetic may move logits."""
        return min(SAFETY * self.noise, self.most) + self.rounding

    @property
    def explained(self) -> bool:
        """Whether arithmetic explains that the other token was chosen."""
        return self.distance <= self.allowed


def movement(
    scores: Sequence[Tensor],
    chosen: tuple[int, int],
    sampling: SamplingConfig,
    position: int,
    *,
    rounding: float,
    most: float,
) -> Movement:
    """What it takes to choose another token, by the scores of several forwards.

    Args:
        scores: float32 [vocabulary] each, after the repetition penalty; plain decoding's first.
        chosen: the token of plain decoding, and the other one.
        sampling: how they were chosen.
        position: of the token in the text.
        rounding: of logits of this size in their own type.
        most: as much noise is believed.
    """
    plain = scores[0]
    choice = Choice(plain, sampling, position)
    return Movement(
        gap=float(plain[chosen[0]] - plain[chosen[1]]),
        # Plain decoding itself may have chosen what its own forward does not.
        distance=max(choice.distance(token) for token in chosen),
        noise=noise_of(scores, chosen, sampling),
        rounding=rounding,
        most=most,
    )


class Choice:
    """The choice of one token from scores, and how far scores are from another choice.

    Args:
        scores: float32 [vocabulary].
        sampling: how the token is chosen.
        position: of the token in the text.
    """

    def __init__(self, scores: Tensor, sampling: SamplingConfig, position: int) -> None:
        self._scores = scores
        self._sampling = sampling
        self._ids = torch.arange(len(scores), device=scores.device)
        self._u = uniform(sampling.seed, position)

    def distance(self, token: int) -> float:
        """How far scores have to move against each other for this token to be chosen."""
        if self._sampling.greedy:
            return float(self._scores.max() - self._scores[token])
        chosen = draw(distribution(self._scores, self._sampling), self._u)
        if chosen == token:
            return 0.0
        below = token < chosen
        # Ids in order share the line from 0 to 1, so one side gains what the other loses ...
        side = self._ids <= token if below else self._ids >= token

        def reached(by: float) -> bool:
            drawn = draw(self._moved(side, by), self._u)
            return drawn <= token if below else drawn >= token

        # ... and top-k and its kind must leave the token in.
        alone = self._ids == token
        return max(_least(reached), _least(lambda by: bool(self._moved(alone, by)[token] > 0)))

    def _moved(self, favoured: Tensor, by: float) -> Tensor:
        """The distribution where favoured scores gain so much over the others."""
        return distribution(self._scores + by * favoured, self._sampling)


def _least(enough: Callable[[float], bool]) -> float:
    """The least number for which something holds, and for all above it; at most `FARTHEST`."""
    if enough(0.0):
        return 0.0
    low, high = 0.0, 1e-6
    while not enough(high):
        low, high = high, 2.0 * high
        if high > FARTHEST:
            return FARTHEST
    while high - low > 1e-3 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def noise_of(scores: Sequence[Tensor], chosen: tuple[int, int], sampling: SamplingConfig) -> float:
    """What forwards differ by, in logits.

    Either in what decides this choice, or in any two of the best tokens, typically: a few forwards
    can agree on the one by chance.

    Args:
        scores: of two or more forwards, float32 [vocabulary] each.
        chosen: the token of plain decoding, and the other one.
        sampling: how they were chosen.
    """
    plain, other = chosen
    deciding = [[float(row[plain] - row[other]) for row in scores]]
    if not sampling.greedy:
        side = torch.arange(len(scores[0]), device=scores[0].device)
        side = side <= other if other < plain else side >= other
        # The odds of one side move as its logits do, so this is in logits too.
        t = max(sampling.temperature, COLDEST)
        deciding.append(
            [
                t * float((row[side] / t).logsumexp(0) - (row[~side] / t).logsumexp(0))
                for row in scores
            ]
        )
    leaders = scores[0].topk(min(LEADERS, len(scores[0]))).indices
    found = [max(values) - min(values) for values in deciding]
    for one, another in combinations(scores, 2):
        apart = (one - another)[leaders]
        # A model may rule tokens out with infinite logits.
        found.append(2.0**0.5 * float(apart[apart.isfinite()].std()))
    return max(found)
