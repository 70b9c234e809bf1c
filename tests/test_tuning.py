"""The measurements of `lade tune`, with a decoder whose steps take the time that a test says."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.events import Event, Finished, Step, StepTimes, Token
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import Strategy
from ladecli.decoder.strategies.lookahead import Lookahead
from ladecli.tune.measure import (
    CURRENT,
    PLAIN,
    Candidate,
    Curve,
    Outcome,
    Score,
    Tuner,
    best_of,
    candidates,
    min_seconds,
    score,
    setting_of,
)

TEXT = list(range(2, 90))
PROMPTS = [[5] * 20, [6] * 30, [7] * 25]
COST = StepCost((1, 8, 64), (128,), ((1.0, 1.3, 3.0),))
CONFIG = LookaheadConfig(5, 3, 5, 20, ("context",))


class FakeDecoder:
    """Feeds steps as wide as their budget, on a clock of its own, which tuning reads.

    Args:
        cost: (width, length of the text, seconds so far) -> seconds of a step.
        accepted: (budget) -> tokens per step.
        noise: relative; steps are slower by up to this much.
        max_context: as of a decoder.
    """

    def __init__(
        self,
        cost: Callable[[int, int, float], float],
        accepted: Callable[[int], int] = lambda budget: 1,
        noise: float = 0.0,
        max_context: int = 2048,
    ) -> None:
        self.cost, self.accepted, self.noise = cost, accepted, noise
        self.max_context = max_context
        self.now = 0.0
        self.lengths: set[int] = set()
        self.stop_ids: set[frozenset[int]] = set()
        self.answer: Callable[[Sequence[int]], int] = lambda prompt: 10**9
        self.widest = 10**9
        self._rng = random.Random(1)
        self._read: list[int] = []

    def generate(
        self, prompt: Sequence[int], strategy: Strategy, sampling: Any = None, limits: Any = None
    ) -> Iterator[Event]:
        width = strategy._config.step_limit if isinstance(strategy, Lookahead) else 1
        left = limits.max_new_tokens if limits else self.max_context - len(prompt)
        left, length = min(left, self.answer(prompt)), len(prompt)
        self.lengths.add(length)
        if limits:
            self.stop_ids.add(limits.stop_ids)
        if self._read != list(prompt):  # a prompt that is in the cache costs nothing
            self.now += self.cost(64, 0, self.now) * length / 64
            self._read = list(prompt)
        if width > self.widest:
            yield Finished("memory")
            return
        while left:
            count = min(self.accepted(width), left)
            seconds = self.cost(width, length, self.now) * (1 + self.noise * self._rng.random())
            self.now += seconds
            tokens = (Token(7, "context"),) * count
            yield Step(tokens, width, width - 1, seconds, StepTimes(0.0, seconds, 0.0, 0.0))
            left, length = left - count, length + count
        yield Finished("length")


def curve_of(decoder: FakeDecoder, seconds: float) -> Curve:
    return Tuner(decoder, clock=lambda: decoder.now).measure_curve(TEXT, seconds)


def found_by(decoder: FakeDecoder, seconds: float = 20.0, plain: float = 4e-3) -> Outcome | None:
    tuner = Tuner(decoder, frozenset({9}), clock=lambda: decoder.now)
    return tuner.search(PROMPTS * 3, candidates(COST, CONFIG, on_cpu=False), seconds, plain)


def test_costs_are_in_plain_steps_of_the_same_context() -> None:
    decoder = FakeDecoder(lambda w, n, _: (3e-3 + 1e-6 * n) * (1 + 0.05 * (w - 1)), noise=0.01)
    curve = curve_of(decoder, 10.0)
    assert curve.cost.contexts == (128, 1024)
    assert decoder.lengths == {128, 1024}
    for context in curve.cost.contexts:
        for width in (2, 12, 30, 64, 128):
            assert curve.cost.at(width, context) == pytest.approx(1 + 0.05 * (width - 1), rel=0.02)
    assert curve.plain == pytest.approx((3.13e-3, 4.02e-3), rel=0.02)
    assert decoder.now < 11.0


@pytest.mark.parametrize("plain", [0.06, 0.2, 1.0, 4.0])
def test_a_slow_model_is_measured_roughly_and_in_time(plain: float) -> None:
    decoder = FakeDecoder(lambda w, n, _: plain * (1.0 + 0.02 * (w - 1)))
    curve = curve_of(decoder, 10.0)
    assert set(curve.cost.widths) <= {1, 2, 8, 32}
    assert decoder.now < 20.0 + 6 * plain, "the first round may take long, and no other begins"
    if plain <= 1.0:
        assert curve.cost.at(32, 128) == pytest.approx(1.62, rel=0.02)


def test_what_cannot_be_measured_is_left_out() -> None:
    small = FakeDecoder(lambda w, n, _: 4e-3)
    small.widest = 40
    assert curve_of(small, 5.0).cost.widths == (1, 2, 4, 8, 16, 24, 32), "by memory"
    slow_reader = FakeDecoder(lambda w, n, _: 5e-3 * w, max_context=100_000)
    assert curve_of(slow_reader, 10.0).cost.contexts == (128,)
    short = FakeDecoder(lambda w, n, _: 2e-3, max_context=200)
    assert curve_of(short, 2.0).cost.contexts == (66,)


def best_at(budget: int, gain: float) -> FakeDecoder:
    """Steps of one budget are faster than plain ones, all others slower."""
    return FakeDecoder(
        lambda w, n, _: 4e-3 * (4 / gain if w == budget else 1.0 if w == 1 else 4.2),
        lambda w: 1 if w == 1 else 4,
        noise=0.02,
    )


def test_the_fastest_wins() -> None:
    decoder = best_at(32, 1.5)
    outcome = found_by(decoder)
    assert outcome.best.candidate.config.step_limit == 32
    assert outcome.best.speed == pytest.approx(1.5, rel=0.03)
    assert outcome.agrees
    assert {PLAIN, CURRENT} <= {s.candidate.name for s in outcome.scores}
    assert setting_of(outcome.best, CONFIG, COST).step_cost == COST
    assert decoder.stop_ids == {frozenset({9})}, "answers end where the model ends them"


@pytest.mark.parametrize(
    ("wide", "tokens", "noise", "best", "setting"),
    [
        (2.0, 3, 0.3, CURRENT, CONFIG),  # others differ by noise alone
        (3.0, 2, 0.0, PLAIN, LookaheadConfig(budget=1, sources=("context",), widths=(1,))),
    ],
)
def test_what_is_kept(
    wide: float, tokens: int, noise: float, best: str, setting: LookaheadConfig
) -> None:
    decoder = FakeDecoder(
        lambda w, n, _: 4e-3 * (1.0 if w == 1 else wide), lambda w: 1 if w == 1 else tokens, noise
    )
    found = found_by(decoder).best
    assert found.candidate.name == best
    chosen = setting_of(found, CONFIG, COST)
    assert replace(chosen, step_cost=StepCost()) == setting


def test_a_slow_model_is_tried_with_what_promises_most() -> None:
    outcome = found_by(best_at(32, 1.5), 1.1 * min_seconds(4e-3))
    assert (len(outcome.scores), outcome.prompts) == (3, 3)
    assert outcome.agrees is None, "there is no time for a repeat"
    assert found_by(best_at(32, 1.5), 20.0, plain=1.0) is None, "nor for any comparison"
    assert setting_of(None, CONFIG, COST) == replace(CONFIG, step_cost=COST)


def test_prompts_and_settings_that_say_nothing_are_left_out() -> None:
    decoder = best_at(32, 1.5)
    decoder.answer = lambda prompt: 3 if prompt[0] == 6 else 1000
    assert found_by(decoder).prompts % 2 == 0
    decoder = best_at(32, 1.5)
    decoder.answer = lambda prompt: 3
    assert found_by(decoder) is None
    decoder = best_at(32, 1.5)
    decoder.widest = 31  # memory does not suffice for more
    configs = [s.candidate.config for s in found_by(decoder).scores]
    assert max(config.step_limit for config in configs if config) < 32


@pytest.mark.parametrize("seconds", [1.0, 10.0, 30.0])
@pytest.mark.parametrize("plain", [1e-3, 2e-2, 0.3, 2.0])
def test_it_ends_in_time(seconds: float, plain: float) -> None:
    decoder = FakeDecoder(lambda w, n, _: plain * (1 + 0.05 * w), lambda w: 1 if w == 1 else 2, 0.2)
    found_by(decoder, seconds, plain)
    assert decoder.now < 1.15 * seconds


def test_candidates_are_no_wider_than_was_measured_or_pays() -> None:
    dear = StepCost((1, 8, 64), (128,), ((1.0, 3.9, 20.0),))
    for cost, most in ((COST, 64), (dear, 8)):
        found = candidates(cost, CONFIG, on_cpu=True)
        assert [c.name for c in found[:2]] == [PLAIN, CURRENT]
        assert max(c.config.step_limit for c in found[3:] if c.config) == most
        assert len({c.name for c in found}) == len(found)
    assert all(c.config.widths[0] == 1 for c in found[3:] if c.config), "plain steps stay possible"


def finalist(name: str, *speeds: list[float]) -> Score:
    runner = Candidate(name, None, dict(enumerate(speeds)))
    plain = Candidate(PLAIN, None, {n: [10.0] * len(each) for n, each in enumerate(speeds)})
    return score(runner, plain)


def test_a_score_takes_the_median_of_a_prompts_repeats() -> None:
    found = finalist("x", [20.0, 20.0, 2.0], [20.0, 20.0, 20.0])
    assert found.speed == pytest.approx(2.0)
    assert len(found.repeats) == 3


@pytest.mark.parametrize(
    ("challenger", "current", "replaced"),
    [
        ((15.0, 16.0, 14.0), (12.0, 13.0, 11.0), True),
        ((30.0, 12.0, 12.0), (12.0, 12.5, 12.2), False),  # faster on one prompt only
        ((12.1, 12.1, 12.1), (12.0, 12.0, 12.0), True),  # little, but every time
        ((20.0, 20.0), (12.0, 12.0), False),  # two prompts say little about others
    ],
)
def test_other_prompts_decide(
    challenger: tuple[float, ...], current: tuple[float, ...], replaced: bool
) -> None:
    scores = [
        finalist(name, *([speed] for speed in speeds))
        for name, speeds in (("new", challenger), (CURRENT, current))
    ]
    assert (best_of(scores).candidate.name == "new") == replaced


@pytest.mark.parametrize("prompts", [3, 8])
def test_chance_seldom_replaces_the_current_setting(prompts: int) -> None:
    rng, replaced = random.Random(prompts), 0
    for _ in range(400):
        scores = [
            finalist(name, *([10.0 * rng.lognormvariate(0, 0.05)] for _ in range(prompts)))
            for name in (CURRENT, "a", "b", "c")
        ]
        scores.sort(key=lambda s: -s.speed)
        replaced += best_of(scores).candidate.name != CURRENT
    assert replaced < 0.1 * 400


def test_no_moment_of_the_machine_counts_for_an_answer() -> None:
    steps = iter(range(10**9))
    decoder = FakeDecoder(
        lambda w, n, _: 0.2 if next(steps) % 97 == 0 else 4e-3 * (1.0 if w == 1 else 2.0),
        lambda w: 1 if w == 1 else 3,
    )
    assert found_by(decoder, 60.0).best.speed == pytest.approx(1.5, rel=0.1)


def test_noise_never_makes_a_wider_step_cheaper() -> None:
    row = curve_of(FakeDecoder(lambda w, n, _: 1e-2, noise=0.8), 5.0).cost.costs[0]
    assert all(a <= b for a, b in pairwise(row))


def test_repeats_that_do_not_agree_are_told() -> None:
    # Drafts become three times as slow somewhere in the last round.
    decoder = FakeDecoder(
        lambda w, n, now: 4e-3 * (1.0 if w == 1 else 2.0 if now < 15.0 else 6.0),
        lambda w: 1 if w == 1 else 4,
    )
    outcome = found_by(decoder)
    assert outcome.agrees is False
    assert outcome.disagreement > 0.3
