"""The measured curve: what was fed comes out, in the time that was given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from ladecli.tuning.curve import Curve, measure_curve

from .fakes import FakeDecoder

Use = Callable[[FakeDecoder], FakeDecoder]
TEXT = list(range(2, 90))


def measure(decoder: FakeDecoder, seconds: float, **options: object) -> Curve:
    return measure_curve(decoder, TEXT, seconds, **options)


def test_costs_are_in_plain_steps_of_the_same_context(on_its_clock: Use) -> None:
    decoder = on_its_clock(
        FakeDecoder(lambda w, n: (3e-3 + 1e-6 * n) * (1.0 + 0.05 * (w - 1)), noise=0.01)
    )
    curve = measure(decoder, 10.0)
    assert curve.cost.contexts == (128, 1024)
    for context in curve.cost.contexts:
        for width in (2, 12, 30, 64):
            assert curve.cost.at(width, context) == pytest.approx(1 + 0.05 * (width - 1), rel=0.02)
    assert curve.plain[0] == pytest.approx(3.13e-3, rel=0.02)
    assert curve.plain[1] > curve.plain[0]
    assert curve.spread < 0.02
    assert curve.ridge == pytest.approx(20, rel=0.1)
    assert decoder.now < 11.0


def test_noise_never_makes_a_wider_step_cheaper(on_its_clock: Use) -> None:
    decoder = on_its_clock(FakeDecoder(lambda w, n: 1e-2, noise=0.8))
    row = measure(decoder, 5.0).cost.costs[0]
    assert all(a <= b for a, b in pairwise(row))


def test_where_wide_steps_are_cheap_wider_ones_are_measured(on_its_clock: Use) -> None:
    decoder = on_its_clock(FakeDecoder(lambda w, n: max(1.0, w / 80) * 4e-3))
    curve = measure(decoder, 10.0)
    assert curve.cost.widths[-1] == 128
    assert curve.cost.at(128, 128) == pytest.approx(1.6, rel=0.02)


@pytest.mark.parametrize("plain", [0.06, 0.2, 1.0, 4.0])
def test_a_slow_model_is_measured_roughly_and_in_time(on_its_clock: Use, plain: float) -> None:
    decoder = on_its_clock(FakeDecoder(lambda w, n: plain * (1.0 + 0.02 * (w - 1))))
    curve = measure(decoder, 10.0)
    assert set(curve.cost.widths) <= {1, 2, 8, 32}
    assert decoder.now < 20.0 + 6 * plain, "the first round may take long, and no other begins"
    if plain <= 1.0:
        assert curve.cost.widths == (1, 2, 8, 32)
        assert curve.cost.at(32, 128) == pytest.approx(1.62, rel=0.02)


def test_widths_that_memory_does_not_suffice_for_are_left_out(on_its_clock: Use) -> None:
    decoder = on_its_clock(FakeDecoder(lambda w, n: 4e-3))
    decoder.most = 40
    assert measure(decoder, 5.0).cost.widths == (1, 2, 4, 8, 16, 24, 32)


def test_a_context_that_takes_too_long_to_read_is_left_out(on_its_clock: Use) -> None:
    decoder = on_its_clock(FakeDecoder(lambda w, n: 5e-3 * w, max_context=100_000))
    assert measure(decoder, 10.0).cost.contexts == (128,)


def test_a_short_context_is_used_as_far_as_it_goes(on_its_clock: Use) -> None:
    decoder = on_its_clock(FakeDecoder(lambda w, n: 2e-3, max_context=200))
    curve = measure(decoder, 2.0)
    assert curve.cost.contexts == (66,)
    assert max(map(len, decoder.prompts)) == 66


def test_steps_are_measured_where_they_shall_be(on_its_clock: Use) -> None:
    decoder = on_its_clock(FakeDecoder(lambda w, n: 2e-3))
    measure(decoder, 3.0)
    assert {len(prompt) for prompt in decoder.prompts} == {128, 1024}
