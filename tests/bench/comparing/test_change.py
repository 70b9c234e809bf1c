"""Noisy times: what is called a change, how often by mistake, and what is not missed."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from ladecli.bench.comparing.change import EQUAL, FASTER, SLOWER, UNCLEAR, hodges_lehmann, judge

TEN = math.log(1.1)


def sample(
    centre: float, noise: float, count: int, seed: int, outliers: float = 0.0
) -> list[float]:
    """Differences of logarithms, now and then of a disturbed answer on one of the two sides."""
    random_ = random.Random(seed)
    return [
        random_.gauss(centre, noise)
        + (random_.choice((-1, 1)) * math.log(1.5) if random_.random() < outliers else 0.0)
        for _ in range(count)
    ]


def test_the_middle_and_its_error_are_the_textbooks() -> None:
    middle, error = hodges_lehmann([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    assert middle == 8.5  # the eleventh of 21 means
    # The interval leaves one of them out on either side: 1, and 32.
    assert error == pytest.approx((24.0 - 1.5) / (2 * 1.959964), rel=1e-6)
    values = sample(0.3, 1.0, 400, seed=5)
    middle, error = hodges_lehmann(values)
    assert middle == pytest.approx(0.3, abs=0.15)
    # In a normal sample it is a little less sure than the mean: sqrt(pi / 3) times.
    assert error == pytest.approx(stats.sem(values) * math.sqrt(math.pi / 3), rel=0.08)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_handful_of_answers_proves_nothing(count: int) -> None:
    change = judge({"x": [TEN] * count}, 0.0)["x"]
    assert (change.verdict, change.visible, change.pairs) == (UNCLEAR, None, count)
    assert change.ratio.value == pytest.approx(1.1)
    assert change.repeats == pytest.approx(6 / count)


def test_verdicts_follow_the_interval() -> None:
    samples = {
        "slower": sample(TEN, 0.02, 18, 1),
        "faster": sample(-TEN, 0.02, 18, 2),
        "equal": sample(0.0, 0.02, 18, 3),
        "unclear": sample(0.0, 0.4, 18, 4),
    }
    found = judge(samples, 0.02)
    assert list(found) == list(samples)
    assert [each.verdict for each in found.values()] == [SLOWER, FASTER, EQUAL, UNCLEAR]
    for each in found.values():
        outside = not each.ratio.low <= 1.0 <= each.ratio.high
        assert outside == (each.verdict in (SLOWER, FASTER))
        assert each.ratio.low < each.ratio.value < each.ratio.high


def test_as_many_repeats_as_it_says_make_ten_percent_visible() -> None:
    few = judge({"x": sample(0.0, 0.2, 18, 7)}, 0.02)["x"]
    assert few.verdict == UNCLEAR
    assert few.repeats is not None
    more = judge({"x": sample(0.0, 0.2, round(18 * few.repeats * 1.3), 8)}, 0.02)["x"]
    assert more.visible is not None
    assert more.visible < 0.1


def test_no_number_of_repeats_helps_against_the_machine() -> None:
    change = judge({"x": sample(0.0, 0.01, 18, 7)}, 0.07)["x"]
    assert (change.verdict, change.repeats) == (UNCLEAR, None)


def test_disturbed_answers_hardly_move_it() -> None:
    quiet, loud = (sample(TEN, 0.03, 27, 3, outliers) for outliers in (0.0, 0.15))
    assert max(map(abs, loud)) > 0.3, "no answer was disturbed"
    found = [judge({"x": values}, 0.02)["x"] for values in (quiet, loud)]
    assert found[1].ratio.value == pytest.approx(found[0].ratio.value, rel=0.03)
    assert found[1].verdict == SLOWER


def test_holm_is_more_lenient_behind_a_clear_change() -> None:
    """A change that would be noise beside noise is one beside a change."""
    borderline = [0.029, 0.031] * 9
    clear = [0.5 + 0.01 * number for number in range(18)]
    _, error = hodges_lehmann(borderline)
    assert error is not None
    spread = math.sqrt((0.03 / 2.1) ** 2 - error**2)  # 2.1 deviations: between 1.96 and 2.24
    beside_noise = judge({"x": borderline, "y": [-0.03, 0.03] * 9}, spread)
    beside_change = judge({"x": borderline, "y": clear}, spread)
    assert beside_noise["x"].verdict != SLOWER
    assert beside_change["x"].verdict == SLOWER


@pytest.mark.parametrize(("names", "count"), [(1, 9), (3, 18), (6, 54)])
def test_in_nineteen_of_twenty_families_nothing_is_called_that_is_not(
    names: int, count: int
) -> None:
    """Luck of processes that has the spread that was assumed, noise, and disturbed answers."""
    wrong, tries, spread = 0, 200, 0.02
    for number in range(tries):
        luck = random.Random(number)
        samples = {
            str(name): sample(luck.gauss(0.0, spread), 0.05, count, 10 * number + name, 0.05)
            for name in range(names)
        }
        found = judge(samples, spread)
        wrong += any(each.verdict in (SLOWER, FASTER) for each in found.values())
    # 5 % of 200 are 10; 17 or more have a chance of 3 %, and the seeds are fixed.
    assert wrong <= 16
