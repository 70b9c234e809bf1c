"""`lade tune`: what it measures with a decoder of known speed, shows and writes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.events import Event, Finished, Step, StepTimes, Token
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import Strategy
from ladecli.decoder.strategies.lookahead import Lookahead
from ladecli.decoder.strategy import Room, State
from ladecli.errors import LadeError
from ladecli.files import toml
from ladecli.profiles import Choice, races, user
from ladecli.specs.device import detect
from ladecli.tune import source_of
from ladecli.tune.measure import (
    CURRENT,
    PLAIN,
    Candidate,
    Curve,
    Outcome,
    Tuner,
    best_of,
    make_candidates,
    setting_of,
)

from .families import saved

PROMPTS = [[5] * 20, [6] * 30, [7] * 25] * 3
COST = StepCost((1, 8, 64), (128,), ((1.0, 1.3, 3.0),))
CONFIG = LookaheadConfig(5, 3, 5, 20, ("context",))
QUICK = ("tune", "demo", "--seconds", "5")


class FakeDecoder:
    """Feeds steps as wide as their budget, on a clock of its own, which tuning reads.

    A step takes `cost(width, length of the text, seconds so far)` and up to `noise` more, and
    yields `accepted(width)` tokens; memory suffices for steps of `widest` tokens.
    """

    def __init__(
        self,
        cost: Callable[[int, int, float], float],
        accepted: Callable[[int], int] = lambda budget: 1,
        *,
        noise: float = 0.0,
        max_context: int = 2048,
        widest: int = 10**9,
    ) -> None:
        self.cost, self.accepted, self.noise = cost, accepted, noise
        self.max_context, self.widest = max_context, widest
        self.now = 0.0
        self.lengths: set[int] = set()
        self._rng = random.Random(1)
        self._read: list[int] = []

    def generate(
        self, prompt: Sequence[int], strategy: Strategy, sampling: Any = None, limits: Any = None
    ) -> Iterator[Event]:
        draft = strategy.propose(State([*prompt], len(prompt)), Room())
        width = draft.limit if isinstance(strategy, Lookahead) else 1
        left = limits.max_new_tokens if limits else self.max_context - len(prompt)
        length = len(prompt)
        self.lengths.add(length)
        if self._read != list(prompt):  # a prompt that is in the cache costs nothing
            self.now += self.cost(64, 0, self.now) * length / 64
            self._read = list(prompt)
        if width > self.widest:
            yield Finished("memory")
            return
        while left:
            count = min(self.accepted(width), left)
            seconds = self.cost(width, length, self.now) * (1 + self.noise * self._rng.random())
            # The first step of a measurement finds the caches of another width.
            seconds *= 3 if limits is None and length == len(prompt) else 1
            self.now += seconds
            tokens = (Token(7, "context"),) * count
            yield Step(tokens, width, width - 1, seconds, StepTimes(0.0, seconds, 0.0, 0.0))
            left, length = left - count, length + count
        yield Finished("length")


def curve_of(decoder: Any, seconds: float) -> Curve:
    return Tuner(decoder, clock=lambda: decoder.now).measure_curve(list(range(2, 90)), seconds)


def found_by(decoder: Any, seconds: float = 20.0, plain: float = 4e-3) -> Outcome | None:
    tuner = Tuner(decoder, frozenset({9}), clock=lambda: decoder.now)
    return tuner.search(PROMPTS, make_candidates(COST, CONFIG, on_cpu=False), seconds, plain)


def best_at(budget: int, gain: float) -> FakeDecoder:
    """Steps of one budget are faster than plain ones, all others slower."""
    return FakeDecoder(
        lambda w, n, _: 4e-3 * (4 / gain if w == budget else 1.0 if w == 1 else 4.2),
        lambda w: 1 if w == 1 else 4,
        noise=0.02,
    )


# The curve.


def test_costs_are_in_plain_steps_of_the_same_context() -> None:
    decoder = FakeDecoder(lambda w, n, _: (3e-3 + 1e-6 * n) * (1 + 0.02 * (w - 1)), noise=0.01)
    curve = curve_of(decoder, 10.0)
    assert set(curve.cost.contexts) == {128, 1024} == decoder.lengths
    for context in curve.cost.contexts:
        for width in (2, 12, 30, 64, 128):
            assert curve.cost.at(width, context) == pytest.approx(1 + 0.02 * (width - 1), rel=0.02)
    assert curve.plain == pytest.approx((3.13e-3, 4.02e-3), rel=0.02)
    assert decoder.now < 11.0


@pytest.mark.parametrize("plain", [0.06, 4.0])
def test_a_slow_model_is_measured_roughly_and_in_time(plain: float) -> None:
    decoder = FakeDecoder(lambda w, n, _: plain * (1.0 + 0.02 * (w - 1)))
    curve = curve_of(decoder, 10.0)
    assert decoder.now < 10.0 + 12 * plain
    if plain <= 0.5:
        assert curve.cost.at(32, 128) == pytest.approx(1.62, rel=0.02)


@pytest.mark.parametrize(
    ("decoder", "seconds", "widths", "contexts"),
    [
        (FakeDecoder(lambda w, n, _: 4e-3, widest=40), 5.0, (1, 2, 4, 8, 16, 24, 32), (128, 1024)),
        (FakeDecoder(lambda w, n, _: 5e-3 * w, max_context=10**5), 10.0, (1, 2, 4, 8), (128,)),
        (FakeDecoder(lambda w, n, _: 2e-3, max_context=200, widest=3), 9.0, (1, 2), (66,)),
        (FakeDecoder(lambda w, n, _: 1.0 if n > 1000 else 4e-4 * w), 9.0, (1, 2, 4, 8), (128,)),
    ],
    ids=["by memory", "by cost and by the time of reading", "by the model's context", "by time"],
)
def test_what_cannot_be_measured_is_left_out(
    decoder: FakeDecoder, seconds: float, widths: tuple[int, ...], contexts: tuple[int, ...]
) -> None:
    cost = curve_of(decoder, seconds).cost
    assert (cost.widths, cost.contexts) == (widths, contexts)


# The race.


def test_the_fastest_wins() -> None:
    outcome = found_by(best_at(32, 1.5))
    assert outcome is not None
    assert outcome.best.config is not None
    assert outcome.best.config.step_limit == 32
    assert outcome.best.speed == pytest.approx(1.5, rel=0.03)
    assert {PLAIN, CURRENT} < {each.name for each in outcome.finalists}
    assert len(outcome.finalists) == 5
    assert setting_of(outcome.best, COST).step_cost == COST


@pytest.mark.parametrize(
    ("wide", "tokens", "noise", "best", "setting"),
    [
        (2.0, 3, 0.3, CURRENT, CONFIG),  # others differ by noise alone
        (3.0, 2, 0.01, PLAIN, LookaheadConfig(budget=1, sources=("context",), widths=(1,))),
    ],
)
def test_what_is_kept(
    wide: float, tokens: int, noise: float, best: str, setting: LookaheadConfig
) -> None:
    outcome = found_by(
        FakeDecoder(
            lambda w, n, _: 4e-3 * (1.0 if w == 1 else wide),
            lambda w: 1 if w == 1 else tokens,
            noise=noise,
        )
    )
    assert outcome is not None
    assert outcome.best.name == best
    assert replace(setting_of(outcome.best, COST), step_cost=StepCost()) == setting


def test_a_slow_model_is_tried_with_what_promises_most() -> None:
    outcome = found_by(best_at(32, 1.5), 13 * 16 * 4e-3)
    assert outcome is not None
    assert len(outcome.finalists) == 3
    assert found_by(best_at(32, 1.5), 20.0, plain=1.0) is None, "nor for any comparison"


@pytest.mark.parametrize("seconds", [1.0, 30.0])
@pytest.mark.parametrize("plain", [1e-3, 2.0])
def test_it_ends_in_time(seconds: float, plain: float) -> None:
    cost = (lambda w, n, _: plain * (1 + 0.05 * w), lambda w: 1 if w == 1 else 2)
    decoder = FakeDecoder(*cost, noise=0.2)
    found_by(decoder, seconds, plain)
    assert decoder.now < 1.15 * seconds


@pytest.mark.parametrize(("gains", "best"), [((0.3, 0.1, -0.1), CURRENT), ((0.3, 0.28, 0.31), "x")])
def test_what_may_be_chance_replaces_nothing(gains: tuple[float, ...], best: str) -> None:
    faster = Candidate("x", CONFIG, {number: [gain] for number, gain in enumerate(gains)})
    current = Candidate(CURRENT, CONFIG, {0: [0.0], 1: [0.01], 2: [0.02]})
    assert best_of([faster, current]).name == best


def test_without_any_answer_time_is_not_blamed() -> None:
    with pytest.raises(LadeError, match="no prompt is answered in 8 tokens or more"):
        found_by(FakeDecoder(lambda w, n, _: 4e-3, widest=0))


def test_settings_that_are_kept_twice_are_told_with_their_first_origin() -> None:
    def choice(profile: str, origin: str) -> Choice:
        return Choice(profile, CONFIG, {"window": origin}, CONFIG, "published")

    first = source_of(choice("cpu", "measured: a processor"))
    assert first == "cpu, measured: a processor"
    kept = f"measured: 1.01× plain decoding with the settings of profile {first}; by lade tune, now"
    assert source_of(choice("tuned-here", kept)) == first


# The command.


@pytest.mark.slow
def test_what_it_writes_is_used_from_then_on(lade: Any) -> None:
    cpu = detect("cpu")
    races.write(cpu, {"float32 960x576 1": {"rows": 1.0}})  # of a busy hour
    result = lade(*QUICK, "--json")
    found = result.json()
    assert races.read(cpu) == {}
    path = Path(found["profile"])
    assert str(path) in result.err
    written = toml.loads(path.read_text(encoding="utf-8"))
    assert written["tuned"]["parameters"] == found["parameters"] == 3148224
    assert written["setting"][0]["origin"].startswith("measured: ")
    decode = lade("generate", "demo", "-p", "def ", "-n", "5", "--json").json()["decode"]
    assert decode["profile"] == path.stem
    for name in ("budget", "sources"):
        assert decode[name] == found["setting"][name]


@pytest.mark.slow
def test_a_dry_run_shows_and_writes_nothing(lade: Any, monkeypatch: Any, wide_screen: Any) -> None:
    wide_screen(60)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nope")  # where nothing could be written
    result = lade(*QUICK, "--dry-run", "--color", "never")
    assert result.code == 0
    assert "nothing was written" in result.err
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 60
    assert [line for line in lines if "after 128" in line]


def test_without_time_to_compare_settings_it_says_how_much_there_should_be(lade: Any) -> None:
    told = lade(*QUICK[:2], "--seconds", "0.1")
    assert (told.code, "give --seconds 10" in told.err) == (1, True)
    assert user.names() == []


def test_a_context_without_room_for_an_answer(lade: Any) -> None:
    told = lade(*QUICK, "--max-context", "40").refused()
    assert "no prompt can be answered: " in told
    assert user.names() == []


def test_a_model_that_is_decoded_without_drafts(lade: Any, tmp_path: Path) -> None:
    told = lade("tune", saved(tmp_path, "mamba"), *QUICK[2:])
    assert (told.code, told.err.splitlines()[-1].endswith("no drafts to tune")) == (1, True)


def test_where_no_profile_can_be_written_nothing_is_measured(lade: Any) -> None:
    user.folder().parent.mkdir(parents=True)
    user.folder().touch()
    told = lade("tune", "demo", "--seconds", "1000").refused()
    assert f"the folder {user.folder()} cannot be made" in told
    assert "--dry-run" in told
