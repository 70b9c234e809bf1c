"""Rates, intervals and equality on numbers that can be worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ladecli.bench.result import Result, Run
from ladecli.bench.statistics import figures_of, rate, speedup

from .makers import digest, result, run

METHODS = result({"autoregressive": 1.0, "jacobi": 1.0}).methods


def runs(method: str, seconds: dict[str, list[float]]) -> list[Run]:
    """Runs of 20 tokens after the first step, in some seconds by row and repeat."""
    return [
        run(method, row, "chat", repeat=repeat, tokens=21, steps=2, step_seconds=(each,))
        for row, repeats in seconds.items()
        for repeat, each in enumerate(repeats, start=1)
    ]


def test_the_rate_is_that_of_all_rows_with_the_median_repeat_of_each() -> None:
    # 40 tokens in 2 + 3 seconds; the repeat of 50 seconds was disturbed.
    assert rate(runs("x", {"a": [2.0, 50.0, 1.9], "b": [3.0, 3.0, 3.0]})) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        # Ten seconds that became five outweigh a second that became two.
        ([[5.0], [2.0], [2.0]], [[10.0], [1.0], [1.0]], 12.0 / 9.0),
        # Rows of one side alone do not count.
        ([[1.0], [1.0], [1.0], [9.0]], [[2.0], [2.0], [2.0]], 2.0),
        ([[1.0], [1.0]], [[2.0], [2.0], [2.0]], None),
        # Nor does noise that affects both sides alike.
        ([[0.5, 1.0], [1.5, 0.5], [0.5, 2.0]], [[1.0, 2.0], [3.0, 1.0], [1.0, 4.0]], 2.0),
    ],
)
def test_a_speedup_is_the_ratio_of_the_rates_of_all_rows(
    ours: list[list[float]], theirs: list[list[float]], expected: float | None
) -> None:
    made = (runs(name, dict(zip("abcd", each))) for name, each in (("x", ours), ("y", theirs)))  # noqa: B905
    found = speedup(*made)
    assert (found and found.value) == (expected and pytest.approx(expected))
    assert found is None or found.clear == (expected == 2.0)


def test_the_interval_covers_the_truth() -> None:
    held = 0
    for seed in range(60):
        made = result({"autoregressive": 1.0, "lookahead": 1.5}, rows=18, seed=seed, noise=0.05)
        found = speedup(made.runs_of("lookahead"), made.runs_of("autoregressive"))
        assert found is not None
        assert found.clear
        assert found.high - found.low < 0.15
        held += found.low <= 1.5 <= found.high
    assert held >= 50


@pytest.mark.parametrize("rows", [3, 6, 12])
def test_equal_methods_seldom_differ_clearly_however_few_the_prompts(rows: int) -> None:
    chance, clear = random.Random(0), 0
    for _ in range(300):
        seconds = {n: {str(r): [chance.gauss(1.0, 0.1)] for r in range(rows)} for n in "xy"}
        found = speedup(*(runs(name, each) for name, each in seconds.items()))
        assert found is not None
        clear += found.clear
    assert clear <= 30  # 15 are expected


def test_answers_of_one_side_alone_do_not_count() -> None:
    # Later turns take longer, and one method failed in those of a prompt.
    ours, theirs = (
        [
            run(name, row, "chat", turn=turn, tokens=21, steps=2, step_seconds=(float(turn),))
            for row in "abc"
            for turn in (1, 2)
        ]
        for name in "xy"
    )
    for found in (speedup(ours[:-1], theirs), speedup(ours, theirs[1:])):
        assert found is not None
        assert found.value == pytest.approx(1.0)


def differing(changes: dict[tuple[int, int], str]) -> Result:
    """Two rows of two turns; jacobi's answers of some (row, turn) have other digests."""
    made = [
        run(name, f"row-{row}", "chat", turn=turn, digest=other or digest(f"{row} {turn}"))
        for name in ("autoregressive", "jacobi")
        for row in (0, 1)
        for turn in (1, 2)
        for other in [changes.get((row, turn)) if name == "jacobi" else None]
    ]
    return result(runs=tuple(made), methods=METHODS)


def test_equal_answers_are_counted_up_to_the_first_turn_that_differs() -> None:
    equal = figures_of(differing({}))
    assert [(each.equal, each.compared) for each in equal] == [(0, 0), (4, 4)]
    other = figures_of(differing({(0, 1): "other", (0, 2): "other"}))[1]
    assert (other.equal, other.compared) == (2, 3)


def test_answers_with_other_random_numbers_are_not_compared() -> None:
    made = result({"autoregressive": 1.0, "lookahead": 1.5, "hf": 0.8})
    sampled = replace(made, conditions=replace(made.conditions, sampling={"temperature": 0.8}))
    assert [each.compared for each in figures_of(sampled)] == [0, 27, 0]
    assert [each.compared for each in figures_of(made)] == [0, 27, 27]
    foreign = result({"hf": 0.8, "lookahead": 1.5})
    sampled = replace(foreign, reference="hf", conditions=sampled.conditions)
    assert [each.compared for each in figures_of(sampled)] == [0, 0]


def test_figures_by_hand() -> None:
    steps = tuple(float(number) for number in range(1, 11))
    made = result(
        runs=(
            run("autoregressive", "a", "chat"),
            run("jacobi", "a", "chat", tokens=21, steps=11, fed=40, first_seconds=1.0,
                step_seconds=steps, peak_memory=100, accepted={"context": 7}),
            run("jacobi", "b", "chat", tokens=11, steps=11, fed=20, first_seconds=2.0,
                step_seconds=steps, peak_memory=300, accepted={"context": 1, "recycled": 2}),
            run("jacobi", "c", "code", tokens=4, steps=2, fed=3, first_seconds=9.0,
                step_seconds=(100.0,), peak_memory=200),
        ),
        methods=METHODS,
    )  # fmt: skip
    found = figures_of(made)[1]
    assert (found.equal, found.compared, found.speedup) == (1, 1, None)
    assert found.tokens_per_step == pytest.approx(36 / 24)
    assert found.width == pytest.approx(63 / 21)
    assert found.tokens_per_second == pytest.approx((20 + 10 + 3) / (55 + 55 + 100))
    assert (found.first_seconds, found.step_median, found.step_p95) == (2.0, 6.0, 10.0)
    assert found.peak_memory == 300
    assert found.accepted == {"context": 8, "recycled": 2}
    assert [each.tokens_per_step for each in figures_of(made, "code")] == [2.0]
