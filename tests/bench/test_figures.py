"""What runs amount to: rates and intervals on numbers that can be worked out by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from ladecli.bench.figures import figures_of, rate, speedup
from ladecli.bench.result import Conditions, Result

from .makers import digest, result, run


def runs(contender: str, seconds: dict[str, list[float]]) -> list:
    """Runs of 21 tokens, 20 of them behind the first step, in so many seconds by row and repeat."""
    return [
        run(contender, row, "chat", repeat=repeat, tokens=21, steps=2, step_seconds=(each,))
        for row, repeats in seconds.items()
        for repeat, each in enumerate(repeats, start=1)
    ]


def test_the_rate_is_that_of_all_rows_with_the_median_repeat_of_each() -> None:
    # 40 tokens in 2 + 3 seconds; the repeat of 50 seconds is somebody else's fault.
    assert rate(runs("x", {"a": [2.0, 50.0, 1.9], "b": [3.0, 3.0, 3.0]})) == pytest.approx(8.0)


def test_turns_of_a_conversation_belong_together() -> None:
    both = [
        run("x", "a", "chat", turn=turn, tokens=21, steps=2, step_seconds=(seconds,))
        for turn, seconds in ((1, 1.0), (2, 3.0))
    ]
    assert rate(both) == pytest.approx(10.0)


def test_an_answer_of_one_step_has_no_rate() -> None:
    assert rate([run("x", "a", "chat", tokens=1, steps=1, step_seconds=())]) == 0.0


def test_a_speedup_is_a_quotient_of_rates_and_its_interval_holds_it() -> None:
    ours = runs("x", {"a": [1.0, 1.0, 1.0], "b": [3.0, 3.0, 3.0], "c": [1.0, 1.0, 1.0]})
    theirs = runs("y", {"a": [2.0, 2.0, 2.0], "b": [3.0, 3.0, 3.0], "c": [2.0, 2.0, 2.0]})
    found = speedup(ours, theirs)
    assert found is not None
    assert found.value == pytest.approx(7.0 / 5.0)
    # Rows that gain nothing and rows that gain twice: three of them say little.
    assert found.low < 1.0
    assert found.high > 2.0


@pytest.mark.parametrize(("rows", "repeats"), [(3, 3), (6, 1), (18, 3)])
def test_intervals_of_few_rows_hold_the_truth_as_often_as_those_of_many(
    rows: int, repeats: int
) -> None:
    held = 0
    for seed in range(120):
        draw = random.Random(seed)
        ours, theirs = {}, {}
        for row in range(rows):
            factor = math.exp(draw.gauss(0.0, 0.25))
            ours[str(row)] = [math.exp(draw.gauss(0.0, 0.03)) / factor for _ in range(repeats)]
            theirs[str(row)] = [math.exp(draw.gauss(0.0, 0.03)) for _ in range(repeats)]
        found = speedup(runs("x", ours), runs("y", theirs))
        assert found is not None
        # What all the rows that there could be would have: the mean of 1 / factor, upside down.
        held += found.low <= math.exp(-(0.25**2) / 2) <= found.high
    assert held >= 0.9 * 120


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """95 in 100 is the promise; with 18 rows of three repeats, 90 is what must be kept at least."""
    held = 0
    for seed in range(100):
        made = result({"autoregressive": 1.0, "lookahead": 1.5}, rows=18, seed=seed, noise=0.05)
        found = speedup(made.runs_of("lookahead"), made.runs_of("autoregressive"))
        assert found is not None
        assert found.high - found.low < 0.15
        held += found.low <= 1.5 <= found.high
    assert held >= 90


def test_the_same_runs_give_the_same_interval() -> None:
    made = result()
    assert figures_of(made) == figures_of(made)


def test_rows_that_one_side_lacks_do_not_count() -> None:
    ours = runs("x", {"a": [1.0], "b": [1.0], "c": [9.0], "d": [1.0]})
    theirs = runs("y", {"a": [2.0], "b": [2.0], "d": [2.0]})
    found = speedup(ours, theirs)
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert speedup(runs("x", {"a": [1.0], "b": [1.0]}), theirs) is None


def differing(changes: dict[tuple[int, int], str]) -> Result:
    """Two rows of two turns; answers of (row, turn) that differ have other digests."""
    made = [
        run(
            name,
            f"row-{row}",
            "chat",
            turn=turn,
            digest=changes.get((row, turn), digest(f"{row} {turn}"))
            if name == "x"
            else digest(f"{row} {turn}"),
        )
        for name in ("autoregressive", "x")
        for row in (0, 1)
        for turn in (1, 2)
    ]
    contenders = result({"autoregressive": 1.0, "jacobi": 1.0}).contenders
    return result(
        runs=tuple(made),
        contenders=(contenders[0], replace(contenders[1], name="x")),
    )


def test_equal_answers_are_counted() -> None:
    figures = figures_of(differing({}))
    assert [(f.equal, f.compared) for f in figures] == [(0, 0), (4, 4)]


def test_behind_a_turn_that_differs_nothing_is_compared() -> None:
    figures = figures_of(differing({(0, 1): "other", (0, 2): "other"}))
    assert (figures[1].equal, figures[1].compared) == (2, 3)


def test_other_random_numbers_are_not_compared() -> None:
    made = result({"autoregressive": 1.0, "lookahead": 1.5, "hf": 0.8})
    sampled = replace(made, conditions=replace(made.conditions, sampling={"temperature": 0.8}))
    assert isinstance(sampled.conditions, Conditions)
    assert [f.compared for f in figures_of(sampled)] == [0, 27, 0]
    assert [f.compared for f in figures_of(made)] == [0, 27, 27]


def test_noise_that_hits_both_sides_alike_does_not_count() -> None:
    """They took turns: what one repeat suffered, the other side suffered too."""
    noise = {"a": [1.0, 2.0, 5.0], "b": [3.0, 1.0, 1.0], "c": [1.0, 4.0, 2.0]}
    ours = {row: [each / 2.0 for each in repeats] for row, repeats in noise.items()}
    found = speedup(runs("x", ours), runs("y", noise))
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_repeats_that_differ_make_an_interval_wider() -> None:
    steady = {row: [1.0, 1.0, 1.0] for row in "abc"}
    shaky = {row: [0.8, 1.0, 1.25] for row in "abc"}
    still, moved = (speedup(runs("x", ours), runs("y", steady)) for ours in (steady, shaky))
    assert still is not None
    assert moved is not None
    assert still.low == pytest.approx(still.high)
    assert moved.value == pytest.approx(1.0)
    assert moved.low < 0.95
    assert moved.high > 1.05


def test_all_rows_count_as_long_as_they_take() -> None:
    """Ten seconds that became five outweigh a second that became two."""
    found = speedup(
        runs("x", {"a": [5.0], "b": [2.0], "c": [2.0]}),
        runs("y", {"a": [10.0], "b": [1.0], "c": [1.0]}),
    )
    assert found is not None
    assert found.value == pytest.approx(12.0 / 9.0)


def test_figures_by_hand() -> None:
    steps = tuple(number / 1000 for number in range(1, 101))
    made = result(
        runs=(
            run("autoregressive", "a", "chat", first_seconds=0.1, step_seconds=steps, steps=101,
                tokens=202, first_tokens=2, fed=400, peak_memory=5, accepted={"context": 3}),
            run("autoregressive", "b", "chat", first_seconds=0.2, step_seconds=(), steps=1,
                tokens=1, fed=0, peak_memory=9, accepted={"context": 1, "recycled": 2}),
            run("autoregressive", "c", "chat", first_seconds=0.9, step_seconds=(), steps=1,
                tokens=1, fed=0, peak_memory=7),
        )
    )  # fmt: skip
    (found,) = figures_of(made)
    assert found.rows == 3
    assert found.tokens_per_step == pytest.approx(204 / 103)
    assert found.width == pytest.approx(4.0)
    assert found.tokens_per_second == pytest.approx(200 / sum(steps))
    assert found.first_seconds == pytest.approx(0.2)
    assert found.step_median == pytest.approx(0.0505)
    assert found.step_p95 == pytest.approx(0.09505)
    assert found.peak_memory == 9
    assert found.accepted == {"context": 4, "recycled": 2}
    assert (found.speedup, found.equal, found.compared) == (None, 0, 0)
