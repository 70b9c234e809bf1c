"""The search: the fastest wins, the setting until now stays where the difference is noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.step_cost import StepCost
from ladecli.tuning.search import (
    CURRENT,
    PLAIN,
    Candidate,
    Outcome,
    Score,
    best_of,
    candidates,
    min_seconds,
    score,
    search,
    setting_of,
)

from .fakes import FakeDecoder

Use = Callable[[FakeDecoder], FakeDecoder]
COST = StepCost((1, 8, 64), (128,), ((1.0, 1.3, 3.0),))
CONFIG = LookaheadConfig(5, 3, 5, 20, ("context",))
PROMPTS = [[5] * 20, [6] * 30, [7] * 25]


def run(decoder: FakeDecoder, seconds: float = 20.0) -> Outcome:
    field = candidates(COST, CONFIG, on_cpu=False)
    outcome = search(decoder, PROMPTS, field, seconds, 4e-3)
    assert outcome is not None
    return outcome


def best_at(budget: int, gain: float) -> FakeDecoder:
    """Steps of one budget are faster than plain ones, all others slower."""
    return FakeDecoder(
        lambda w, n: 4e-3 * (4 / gain if w == budget else 1.0 if w == 1 else 4.2),
        lambda w: 1 if w == 1 else 4,
        noise=0.02,
    )


def test_the_fastest_wins(on_its_clock: Use) -> None:
    decoder = on_its_clock(best_at(32, 1.5))
    outcome = run(decoder)
    assert outcome.best.candidate.config is not None
    assert outcome.best.candidate.config.step_limit == 32
    assert outcome.best.speed == pytest.approx(1.5, rel=0.03)
    assert outcome.agrees
    assert outcome.differing == 0
    assert decoder.now < 22.0
    names = [s.candidate.name for s in outcome.scores]
    assert PLAIN in names, "the last round has the anchors"
    assert CURRENT in names, "the last round has the anchors"
    assert setting_of(outcome.best, CONFIG, COST).step_cost == COST


def test_what_may_be_noise_does_not_replace_the_current_setting(on_its_clock: Use) -> None:
    decoder = on_its_clock(
        FakeDecoder(
            lambda w, n: 4e-3 * (1.0 if w == 1 else 2.0), lambda w: 1 if w == 1 else 3, noise=0.3
        )
    )
    best = run(decoder).best
    assert best.candidate.name == CURRENT
    assert setting_of(best, CONFIG, COST) == CONFIG


def test_where_no_draft_pays_plain_decoding_wins(on_its_clock: Use) -> None:
    decoder = on_its_clock(
        FakeDecoder(lambda w, n: 4e-3 * (1.0 if w == 1 else 3.0), lambda w: 1 if w == 1 else 2)
    )
    best = run(decoder).best
    assert best.candidate.name == PLAIN
    setting = setting_of(best, CONFIG, COST)
    assert setting.step_limit == 1, "no step has room for a draft"


def test_repeats_that_do_not_agree_are_told(on_its_clock: Use) -> None:
    class Drifting(FakeDecoder):
        """Drafts become three times as slow somewhere in the last round."""

        def __init__(self) -> None:
            super().__init__(
                lambda w, n: 4e-3 * (1.0 if w == 1 else 2.0 if self.now < 15.0 else 6.0),
                lambda w: 1 if w == 1 else 4,
            )

    outcome = run(on_its_clock(Drifting()))
    assert outcome.agrees is False
    assert outcome.disagreement > 0.3


def test_a_slow_model_is_tried_with_what_promises_most(on_its_clock: Use) -> None:
    decoder = on_its_clock(best_at(32, 1.5))
    field = candidates(COST, CONFIG, on_cpu=False)
    seconds = 1.1 * min_seconds(4e-3)
    outcome = search(decoder, PROMPTS, field, seconds, 4e-3)
    assert outcome is not None
    assert len(outcome.scores) == 3
    assert outcome.prompts == 3
    assert outcome.agrees is None, "there is no time for a repeat"
    assert decoder.now < 1.2 * seconds


def test_with_too_little_time_nothing_is_tried(on_its_clock: Use) -> None:
    decoder = on_its_clock(best_at(32, 1.5))
    field = candidates(COST, CONFIG, on_cpu=False)
    assert search(decoder, PROMPTS, field, 20.0, 1.0) is None
    assert decoder.now == 0.0
    assert setting_of(None, CONFIG, COST) == replace(CONFIG, step_cost=COST)


def test_answers_end_where_the_model_ends_them(on_its_clock: Use) -> None:
    decoder = on_its_clock(best_at(32, 1.5))
    field = candidates(COST, CONFIG, on_cpu=False)
    stop = frozenset({9})
    search(decoder, PROMPTS, field, 5.0, 4e-3, stop_ids=stop)
    assert decoder.stop_ids == {stop}


def test_a_prompt_with_too_short_an_answer_is_left_out(on_its_clock: Use) -> None:
    decoder = on_its_clock(best_at(32, 1.5))
    decoder.longest = lambda prompt: 3 if prompt[0] == 6 else 1000
    assert run(decoder).prompts == 2
    decoder.longest = lambda prompt: 3
    field = candidates(COST, CONFIG, on_cpu=False)
    assert search(decoder, PROMPTS, field, 20.0, 4e-3) is None


def test_a_setting_that_memory_does_not_suffice_for_is_dropped(on_its_clock: Use) -> None:
    decoder = on_its_clock(best_at(32, 1.5))
    decoder.most = 31
    outcome = run(decoder)
    widths = [s.candidate.config.step_limit for s in outcome.scores if s.candidate.config]
    assert max(widths) < 32


def test_other_words_than_plain_decoding_are_counted(on_its_clock: Use) -> None:
    decoder = on_its_clock(
        FakeDecoder(
            lambda w, n: 4e-3 * (1.0 if w == 1 else 2.0),
            lambda w: 1 if w == 1 else 3,
            said=lambda w: 1 if w == 1 else 2,
        )
    )
    outcome = run(decoder)
    assert outcome.differing == outcome.prompts > 0


def test_candidates_are_no_wider_than_was_measured_or_pays() -> None:
    dear = StepCost((1, 8, 64), (128,), ((1.0, 3.9, 20.0),))
    for cost, most in ((COST, 64), (dear, 8)):
        found = candidates(cost, CONFIG, on_cpu=True)
        assert [c.name for c in found[:2]] == [PLAIN, CURRENT]
        budgets = [c.config.step_limit for c in found[3:] if c.config]
        assert max(budgets) == most
        assert len({(c.config, c.name) for c in found}) == len(found)
    assert all(c.config.widths[0] == 1 for c in found[3:] if c.config), "plain steps stay possible"


def test_a_score_takes_the_median_of_a_prompts_repeats() -> None:
    plain, other = candidates(COST, CONFIG, on_cpu=False)[:2]
    plain.speeds = {0: [10.0, 10.0, 1.0], 1: [20.0, 20.0, 20.0]}
    other.speeds = {0: [20.0, 20.0, 20.0], 1: [40.0, 40.0, 4.0]}
    assert score(other, plain).speed == pytest.approx(2.0)


def finalist(name: str, *speeds: float) -> Score:
    runner = Candidate(name, None, {number: [speed] for number, speed in enumerate(speeds)})
    plain = Candidate(PLAIN, None, {number: [10.0] for number in range(len(speeds))})
    return score(runner, plain)


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
    scores = [finalist("new", *challenger), finalist(CURRENT, *current)]
    assert (best_of(scores).candidate.name == "new") == replaced


@pytest.mark.parametrize("prompts", [3, 5, 8])
def test_chance_seldom_replaces_the_current_setting(prompts: int) -> None:
    rng, replaced = random.Random(prompts), 0
    for _ in range(400):
        noise = [[10.0 * rng.lognormvariate(0, 0.05) for _ in range(prompts)] for _ in range(4)]
        names = (CURRENT, "a", "b", "c")
        scores = [finalist(name, *speeds) for name, speeds in zip(names, noise, strict=True)]
        scores.sort(key=lambda s: -s.speed)
        replaced += best_of(scores).candidate.name != CURRENT
    assert replaced < 0.1 * 400


def test_no_moment_of_the_machine_counts_for_an_answer(on_its_clock: Use) -> None:
    class Disturbed(FakeDecoder):
        """Now and then a step takes a fifth of a second, whoever it belongs to."""

        def __init__(self) -> None:
            super().__init__(self._seconds, lambda w: 1 if w == 1 else 3)
            self.steps = 0

        def _seconds(self, width: int, length: int) -> float:
            self.steps += 1
            return 0.2 if self.steps % 97 == 0 else 4e-3 * (1.0 if width == 1 else 2.0)

    outcome = run(on_its_clock(Disturbed()), 60.0)
    assert outcome.best.speed == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize("seconds", [1.0, 3.0, 10.0, 30.0])
@pytest.mark.parametrize("plain", [1e-3, 4e-3, 2e-2, 0.1, 0.3, 2.0])
def test_it_ends_in_time(on_its_clock: Use, seconds: float, plain: float) -> None:
    decoder = on_its_clock(
        FakeDecoder(lambda w, n: plain * (1 + 0.05 * w), lambda w: 1 if w == 1 else 2, noise=0.2)
    )
    field = candidates(COST, CONFIG, on_cpu=True)
    search(decoder, PROMPTS * 6, field, seconds, plain)
    assert decoder.now < 1.15 * seconds
