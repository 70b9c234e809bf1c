"""Alternating methods: order, cold starts, failures and Ctrl-C, with fake runners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ladecli.bench.measure import TRIES, WARM_UPS, Measurement
from ladecli.bench.result import STOCK_COMPILED, Method
from ladecli.bench.runners import Answer
from ladecli.errors import LadeError
from ladecli.models.device import Device
from ladecli.session.text import TextDelta

DEVICE = Device("cpu", "cpu", "Test CPU")


class FakeTask:
    category, cut = "chat", None

    def __init__(self, name: str, turns: int = 1) -> None:
        self.id, self._turns = name, turns

    def first(self) -> list[int]:
        return [1, 2, 3]

    def hold(self, answer: Callable[[int, list[int]], TextDelta]) -> None:
        for turn in range(1, self._turns + 1):
            answer(turn, [1] * turn)


class FakeRunner:
    """A runner that fails on some answers (0: warm-up), and captures a step in its first ones."""

    def __init__(self, name: str, fails: tuple[int, ...] = (), captures: int = 0) -> None:
        self.method = Method(name, name)
        self.asked = self.begun = self.built = 0
        self._fails, self._captures = fails, captures

    def begin(self) -> None:
        self.begun += 1

    def answer(self, prompt: list[int], cancelled: Callable[[], bool]) -> Answer:
        self.asked += 1
        self.built += self.asked <= self._captures
        if self.asked - 1 in self._fails:
            raise LadeError("it broke")
        return Answer([7, 8, 9], "text", [0.5, 0.7, 0.8], [1, 2, 3], [3, 4, 1], reason="length")


def measure(runners: list[FakeRunner], rows: int = 1, turns: int = 1, repeats: int = 1) -> Any:
    measured = Measurement(runners, DEVICE, lambda: False)
    measured.run([FakeTask(f"row-{number}", turns) for number in range(rows)], repeats)
    return measured


def test_methods_take_turns_in_changing_order() -> None:
    def orders() -> list[tuple[str, ...]]:
        runs = measure([FakeRunner(name) for name in "abc"], 12, repeats=2).runs
        rounds = [runs[at : at + 3] for at in range(0, len(runs), 3)]
        assert all(len({run.row for run in part}) == 1 for part in rounds)
        return [tuple(run.contender for run in part) for part in rounds]

    assert orders() == orders()
    assert len({*orders()}) == 6


@pytest.mark.parametrize(
    ("captures", "tries"), [(0, 1), (WARM_UPS + 1, 2), (WARM_UPS + 3, 3), (99, TRIES)]
)
def test_a_conversation_that_captured_a_step_is_repeated(captures: int, tries: int) -> None:
    runner = FakeRunner("a", captures=captures)
    runs = measure([runner], turns=2).runs
    assert [run.turn for run in runs] == [1, 2]
    # Cold each time, also for the warm-up.
    assert (runner.begun, runner.asked) == (WARM_UPS + tries, WARM_UPS + 2 * tries)


def test_a_baseline_that_is_compiled_in_every_answer_has_no_figures() -> None:
    measured = measure([FakeRunner("a"), FakeRunner(STOCK_COMPILED, captures=99)])
    assert {run.contender for run in measured.runs} == {"a"}
    (failure,) = measured.failures
    assert failure.contender == STOCK_COMPILED
    assert "compiles something anew" in failure.error


def test_a_failure_affects_one_row_of_one_method() -> None:
    measured = measure([FakeRunner("a"), FakeRunner("b", fails=(0, 4))], 4, repeats=2)
    rows = {name: [r.row for r in measured.runs if r.contender == name] for name in "ab"}
    assert rows["a"] == ["row-0", "row-1", "row-2", "row-3"] * 2
    assert rows["b"] == ["row-0", "row-2", "row-3"] * 2
    (failure,) = measured.failures
    assert (failure.contender, failure.row, failure.error) == ("b", "row-1", "it broke")
