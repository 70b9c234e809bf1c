"""How fast settings were against each other, as values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..decoder.config import LookaheadConfig

PLAIN = "plain decoding"
UNTIL_NOW = "the profile until now"
AGREE = 0.05
"""Repeats that differ by more than this do not agree."""
STUDENT = {2: 5.3, 3: 3.7, 4: 3.2, 5: 2.9, 6: 2.7, 8: 2.55, 10: 2.45, 15: 2.3, 30: 2.2}
"""By degrees of freedom, the quantile of Student's distribution that chance exceeds once in 60
times: with three challengers, once in 20 times for the best of them."""


@dataclass(slots=True)
class Candidate:
    """A setting, and how fast it was.

    Attributes:
        name: for people.
        config: the setting; None for plain decoding.
        speeds: tokens per second by prompt, a figure for each repeat.
        ids: the answers, by prompt.
    """

    name: str
    config: LookaheadConfig | None
    speeds: dict[int, list[float]] = field(default_factory=dict)
    ids: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """How fast a candidate was, in plain decoding of the same prompts in the same rounds.

    Attributes:
        candidate: whose.
        speed: geometric mean over prompts, of each the median over its repeats.
        repeats: the same for each repeat alone.
    """

    candidate: Candidate
    speed: float
    repeats: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    Attributes:
        best: the setting to use.
        scores: of those that came to the last round, the fastest first.
        prompts: how many the last round had.
        differing: prompts whose answer was not that of plain decoding.
    """

    best: Score
    scores: tuple[Score, ...]
    prompts: int
    differing: int

    @property
    def disagreement(self) -> float:
        """How far the best setting's repeats are apart, relative."""
        return max(self.best.repeats) / min(self.best.repeats) - 1.0

    @property
    def agrees(self) -> bool | None:
        """Whether they agree; None if there was time for one only."""
        return None if len(self.best.repeats) < 2 else self.disagreement <= AGREE


def score(candidate: Candidate, plain: Candidate) -> Score:
    """A candidate's speed over plain decoding's."""
    repeats = min(len(speeds) for speeds in candidate.speeds.values())
    # By prompt, then by repeat.
    logs = [
        [math.log(a / b) for a, b in zip(speeds[:repeats], plain.speeds[number], strict=False)]
        for number, speeds in candidate.speeds.items()
    ]
    # Of a prompt's repeats the median counts: what disturbs one of them is no property of both.
    speed = math.exp(statistics.fmean(statistics.median(row) for row in logs))
    means = tuple(math.exp(statistics.fmean(row)) for row in zip(*logs, strict=True))
    return Score(candidate, speed, means)


def best_of(scores: Sequence[Score]) -> Score:
    """The fastest, but the setting until now where other prompts might say otherwise.

    Args:
        scores: the fastest first.
    """
    fastest = scores[0]
    until_now = next((s for s in scores if s.candidate.name == UNTIL_NOW), None)
    if until_now is None:
        return fastest  # memory did not suffice for it
    gains = _gains(fastest.candidate, until_now.candidate)
    if len(gains) < 3:
        return until_now  # two prompts say little about others
    quantile = next(q for degrees, q in reversed(STUDENT.items()) if degrees <= len(gains) - 1)
    doubt = quantile * statistics.stdev(gains) / math.sqrt(len(gains))
    return fastest if statistics.fmean(gains) > doubt else until_now


def _gains(candidate: Candidate, other: Candidate) -> list[float]:
    """By prompt, the logarithm of how many times as fast."""
    return [
        math.log(statistics.median(speeds) / statistics.median(other.speeds[number]))
        for number, speeds in candidate.speeds.items()
    ]
