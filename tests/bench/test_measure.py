"""Taking turns: order, cold starts, failures and Ctrl-C, with runners that only pretend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ladecli.bench.measure import MAX_FAILURES, TRIES, Measurement
from ladecli.bench.result import Method
from ladecli.bench.runners import Answer
from ladecli.errors import LadeError
from ladecli.specs.device import Device

DEVICE = Device("cpu", "cpu", "Test CPU")


class FakeTask:
    def __init__(self, name: str, turns: int = 1) -> None:
        self.id, self.category = name, "chat"
        self._turns = turns
        self.cut: str | None = None

    def first(self) -> list[int]:
        return [1, 2, 3]

    def hold(self, answer: Callable[[int, list[int]], str]) -> None:
        for turn in range(1, self._turns + 1):
            answer(turn, [1] * turn)


class FakeRunner:
    """Writes what it was asked into a diary; fails on answers with some numbers (0: warm-up)."""

    def __init__(self, name: str, diary: list[str], fails: tuple[int, ...] = ()) -> None:
        self.method = Method(name, name)
        self.asked = 0
        self.built = 0
        self._diary = diary
        self._fails = fails

    def begin(self) -> None:
        self._diary.append(f"{self.method.name} begins")

    def answer(self, prompt: list[int], cancelled: Callable[[], bool]) -> Answer:
        self.asked += 1
        if self.asked - 1 in self._fails:
            raise LadeError("it broke")
        self._diary.append(f"{self.method.name} answers")
        return Answer([7, 8, 9], "text", [0.5, 0.7, 0.8], [1, 2, 3], [3, 4, 1], reason="length")


def measure(runners: list[FakeRunner], tasks: list[FakeTask], repeats: int = 1) -> Measurement:
    measured = Measurement(runners, DEVICE, lambda: False)
    measured.run(tasks, repeats)
    return measured


def test_a_run_holds_what_the_answer_said() -> None:
    (run,) = measure([FakeRunner("a", [])], [FakeTask("row")]).runs
    assert (run.contender, run.row, run.turn, run.repeat) == ("a", "row", 1, 1)
    assert (run.tokens, run.first_tokens, run.steps, run.fed) == (3, 1, 3, 5)
    assert (run.first_seconds, run.step_seconds, run.decoded) == (0.5, (0.2, 0.1), 2)


def test_methods_take_turns_in_changing_order() -> None:
    tasks = [FakeTask(f"row-{number}") for number in range(12)]
    runs = measure([FakeRunner(name, []) for name in "abc"], tasks, repeats=2).runs
    rounds = [runs[start : start + 3] for start in range(0, len(runs), 3)]
    for each in rounds:
        assert len({run.row for run in each}) == 1
        assert sorted(run.contender for run in each) == ["a", "b", "c"]
    assert {each[0].contender for each in rounds} == {"a", "b", "c"}
    assert [r[0].contender for r in rounds[:12]] != [r[0].contender for r in rounds[12:]]
    again = measure([FakeRunner(name, []) for name in "abc"], tasks, repeats=2).runs
    assert [run.contender for run in again] == [run.contender for run in runs]


def test_every_conversation_starts_cold() -> None:
    diary: list[str] = []
    measure([FakeRunner("a", diary)], [FakeTask("row", turns=2)])
    assert diary == ["a begins", "a answers", "a begins", "a answers", "a answers"]


class Capturing(FakeRunner):
    """Captures a step in each of its first answers after the warm-up."""

    def __init__(self, diary: list[str], answers: int) -> None:
        super().__init__("a", diary)
        self._captures = answers + 1

    def answer(self, prompt: list[int], cancelled: Callable[[], bool]) -> Answer:
        self.built += self.asked < self._captures
        return super().answer(prompt, cancelled)


@pytest.mark.parametrize(("answers", "tries"), [(0, 1), (1, 2), (3, 3), (99, TRIES)])
def test_answers_during_which_a_step_was_captured_do_not_count(answers: int, tries: int) -> None:
    diary: list[str] = []
    runs = measure([Capturing(diary, answers)], [FakeTask("row", turns=2)]).runs
    assert [run.turn for run in runs] == [1, 2]
    assert diary[2:] == ["a begins", "a answers", "a answers"] * tries


def test_a_failure_costs_one_row_of_one_method() -> None:
    runners = [FakeRunner("a", []), FakeRunner("b", [], fails=(0, 2))]
    measured = measure(runners, [FakeTask(f"row-{number}") for number in range(4)], repeats=2)
    rows = {name: [r.row for r in measured.runs if r.contender == name] for name in "ab"}
    assert rows["a"] == ["row-0", "row-1", "row-2", "row-3"] * 2
    assert rows["b"] == ["row-0", "row-2", "row-3"] * 2
    assert [(f.contender, f.row, f.error) for f in measured.failures] == [
        ("b", "row-1", "it broke")
    ]


def test_a_method_that_keeps_failing_is_not_tried_again() -> None:
    broken = FakeRunner("b", [], fails=tuple(range(1, 99)))
    measured = measure([FakeRunner("a", []), broken], [FakeTask(f"r{n}") for n in range(5)])
    assert len(measured.failures) == MAX_FAILURES
    assert broken.asked == 1 + MAX_FAILURES
    assert len(measured.runs) == 5
