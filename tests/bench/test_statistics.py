"""Rates, intervals and equality, with numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from ladecli.bench.result import Run
from ladecli.bench.statistics import Speedup, figures_of, speedup
from tests.support.results import PLAIN_STEP, digest, result, run

METHODS = result({"autoregressive": 1.0, "jacobi": 1.0}).contenders


def runs(method: str, seconds: dict[str, list[float]]) -> list[Run]:
    """Runs of 20 tokens after the first step, in some seconds by row and repeat."""
    return [
        run(method, row, "chat", repeat=repeat, tokens=21, steps=2, step_seconds=(step,))
        for row, repeats in seconds.items()
        for repeat, step in enumerate(repeats, start=1)
    ]


def test_a_speedup_is_the_median_of_the_prompts() -> None:
    # The median repeat of a prompt counts, so the disturbed one of 50 seconds does not.
    ours = runs("x", {"a": [2.0, 50.0, 1.9], "b": [3.0], "c": [1.0]})
    theirs = runs("y", {"a": [4.0], "b": [9.0], "c": [1.0]})
    assert speedup(ours, theirs) == Speedup(pytest.approx(2.0), None)
    assert speedup(ours, []) is None


def test_an_interval_needs_six_prompts() -> None:
    ours = {name: [1.0] for name in "abcdef"}
    theirs = {name: [seconds] for name, seconds in zip("abcdef", (2, 3, 4, 5, 6, 7), strict=True)}
    assert speedup(runs("x", ours), runs("y", theirs)) == Speedup(4.5, (2.0, 7.0))
    assert speedup(runs("x", ours)[:5], runs("y", theirs)) == Speedup(4.0, None)


def test_answers_of_one_side_alone_do_not_count() -> None:
    # Later turns take longer, and one method failed in those of a prompt.
    ours, theirs = (
        [
            run(name, row, "chat", turn=turn, tokens=21, steps=2, step_seconds=(float(turn),))
            for row, turn in product("abc", (1, 2))
        ]
        for name in "xy"
    )
    for over in (speedup(ours[:-1], theirs), speedup(ours, theirs[1:])):
        assert over == Speedup(pytest.approx(1.0), None)


def test_equal_answers_are_counted_up_to_the_first_turn_that_differs() -> None:
    def counts(other: dict[str, str]) -> tuple[int, int]:
        """Count answers in two rows of two turns; jacobi answers some (row, turn) differently."""
        made = []
        for name, row, turn in product(("autoregressive", "jacobi"), "ab", "12"):
            before, said = (other.get(row + at, "") * (name == "jacobi") for at in ("1", turn))
            asked = digest(turn + row + before * (turn == "2"))
            answer = {"digest": digest(row + turn + said), "prompt_digest": asked}
            made.append(run(name, row, "chat", turn=int(turn), **answer))
        figures = figures_of(result(runs=tuple(made), contenders=METHODS))[1]
        return figures.equal, figures.compared

    assert counts({}) == (4, 4)
    assert counts({"a1": "other"}) == (2, 3)
    assert counts({"a2": "other"}) == (3, 4)


def test_answers_with_other_random_numbers_are_not_compared() -> None:
    made = result({"autoregressive": 1.0, "lookahead": 1.5, "hf": 0.8})
    sampled = replace(made, conditions={**made.conditions, "sampling": {"temperature": 0.8}})
    assert [figures.compared for figures in figures_of(sampled)] == [0, 27, 0]
    assert [figures.compared for figures in figures_of(made)] == [0, 27, 27]
    foreign = result({"hf": 0.8, "lookahead": 1.5})
    sampled = replace(foreign, reference="hf", conditions=sampled.conditions)
    assert [figures.compared for figures in figures_of(sampled)] == [0, 0]


def test_figures_by_hand() -> None:
    steps = tuple(float(number) for number in range(1, 11))
    names = ("tokens", "steps", "fed", "first_seconds", "step_seconds")
    rows = {
        ("a", "chat"): (21, 11, 40, 1.0, steps),
        ("b", "chat"): (11, 11, 20, 2.0, steps),
        ("c", "code"): (4, 2, 3, 9.0, (100.0,)),
    }
    ours = (run("jacobi", *row, **dict(zip(names, rows[row], strict=True))) for row in rows)
    made = result(runs=(run("autoregressive", "a", "chat"), *ours), contenders=METHODS)
    figures = figures_of(made)[1]
    assert (figures.equal, figures.compared) == (1, 1)
    assert figures.speedup == Speedup(pytest.approx(20 / 55 * PLAIN_STEP), None)
    assert figures.tokens_per_step == pytest.approx(36 / 24)
    assert figures.tokens_per_second == pytest.approx(10 / 55)
    assert (figures.first_seconds, figures.step_median) == (2.0, 6.0)
    assert [figures.tokens_per_step for figures in figures_of(made, "code")] == [2.0]
