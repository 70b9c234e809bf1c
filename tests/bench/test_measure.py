"""Taking turns: order, pairs, failures, Ctrl-C and going on, with players that only pretend."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from ladecli.bench.contenders import TRIES, Answer
from ladecli.bench.journal import Journal
from ladecli.bench.measure import STRIKES, Measured, Measurement, digest
from ladecli.bench.result import Contender
from ladecli.device import Device
from ladecli.errors import LadeError

DEVICE = Device("cpu", "cpu", "Test CPU")


class FakeTask:
    def __init__(self, name: str, turns: int = 1, shared: bool = False) -> None:
        self.id, self.category, self.shared = name, "chat", shared
        self._turns = turns
        self.identity = name
        self.cut: str | None = None

    def first(self) -> list[int]:
        return [1, 2, 3]

    def hold(self, answer: Callable[[int, list[int]], str]) -> None:
        for turn in range(1, self._turns + 1):
            answer(turn, [1] * turn)


class FakePlayer:
    """Says what it was asked to a diary; fails on rows that it is told to fail on."""

    def __init__(self, name: str, diary: list[str], fails: tuple[int, ...] = ()) -> None:
        self.contender = Contender(name, name)
        self._diary = diary
        self._fails = fails
        self._asked = 0
        self.captured = 0

    def begin(self, *, keep: bool) -> None:
        self._diary.append(f"{self.contender.name} begins{' with the prompt' if keep else ''}")

    def answer(self, prompt: list[int], cancelled: Callable[[], bool]) -> Answer:
        self._asked += 1
        # The first answer is the warm-up.
        if self._asked - 1 in self._fails:
            raise LadeError("it broke")
        if cancelled():
            return Answer(reason="interrupted")
        self._diary.append(f"{self.contender.name} answers")
        return Answer([7, 8, 9], "text", [0.5, 0.7, 0.8], [1, 2, 3], 5, reason="length")


def measure(
    players: list[FakePlayer],
    tasks: list[FakeTask],
    repeats: int = 1,
    cancelled: Callable[[], bool] = lambda: False,
    journal: Journal | None = None,
    go_on: bool = False,
    **options: Callable[..., None],
) -> Measured:
    journal = journal or Journal(random.random())
    journal.claim()
    done = journal.rounds() if go_on else []
    journal.start(done)
    measurement = Measurement(players, DEVICE, cancelled, options.pop("read", print), **options)
    return measurement.run(tasks, repeats, journal, done)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_run_holds_what_the_answer_said() -> None:
    (run,) = measure([FakePlayer("a", [])], [FakeTask("row")]).runs
    assert (run.contender, run.row, run.turn, run.repeat, run.place) == ("a", "row", 1, 1, 1)
    assert (run.tokens, run.first_tokens, run.steps, run.fed) == (3, 1, 3, 5)
    assert run.first_seconds == 0.5
    assert run.step_seconds == (0.2, 0.1)
    assert run.decoded == 2


def test_contenders_take_turns_row_by_row_in_changing_order() -> None:
    diary: list[str] = []
    players = [FakePlayer(name, diary) for name in "abc"]
    tasks = [FakeTask(f"row-{number}") for number in range(12)]
    runs = measure(players, tasks, repeats=2).runs
    assert [run.row for run in runs[:3]] == ["row-0"] * 3
    rounds = [runs[start : start + 3] for start in range(0, len(runs), 3)]
    for each in rounds:
        assert sorted(run.contender for run in each) == ["a", "b", "c"]
        assert [run.place for run in each] == [1, 2, 3]
    # Everybody comes first now and then, and the second repeat has other orders.
    assert {each[0].contender for each in rounds} == {"a", "b", "c"}
    assert [r[0].contender for r in rounds[:12]] != [r[0].contender for r in rounds[12:]]
    again = measure([FakePlayer(name, []) for name in "abc"], tasks, repeats=2).runs
    assert [run.contender for run in again] == [run.contender for run in runs]


class Capturing(FakePlayer):
    """Captures a step in each of its first answers behind the warm-up."""

    def __init__(self, diary: list[str], answers: int) -> None:
        super().__init__("a", diary)
        self._captures = answers + 1

    def answer(self, prompt: list[int], cancelled: Callable[[], bool]) -> Answer:
        self.captured += self._asked < self._captures
        return super().answer(prompt, cancelled)


@pytest.mark.parametrize(("answers", "tries"), [(0, 1), (1, 2), (2, 2), (3, 3), (99, TRIES)])
def test_answers_within_which_a_step_was_captured_do_not_count(answers: int, tries: int) -> None:
    diary: list[str] = []
    runs = measure([Capturing(diary, answers)], [FakeTask("row", turns=2)]).runs
    assert [run.turn for run in runs] == [1, 2]
    assert diary[2:] == ["a begins", "a answers", "a answers"] * tries


def test_every_conversation_starts_from_nothing() -> None:
    diary: list[str] = []
    measure([FakePlayer("a", diary)], [FakeTask("row", turns=2)])
    assert diary == ["a begins", "a answers", "a begins", "a answers", "a answers"]


def test_a_long_prompt_is_read_before_anybody_answers() -> None:
    diary: list[str] = []
    runs = measure(
        [FakePlayer("a", diary), FakePlayer("b", diary)],
        [FakeTask("row", shared=True)],
        read=lambda prompt: diary.append(f"{len(prompt)} tokens are read"),
    ).runs
    at = diary.index("3 tokens are read")
    # Whoever comes second may find that the first has forgotten it.
    assert diary[at::3] == ["3 tokens are read"] * 2
    assert sorted(diary[at + 1 :]) == sorted(
        ["a begins with the prompt", "a answers", "b begins with the prompt", "b answers",
         "3 tokens are read"]
    )  # fmt: skip
    assert all(run.first_seconds >= 0.5 for run in runs)


def test_what_cannot_be_read_is_everybodys_failure() -> None:
    def read(_prompt: list[int]) -> None:
        raise LadeError("out of memory in a prompt of 3 tokens")

    measured = measure(
        [FakePlayer("a", []), FakePlayer("b", [])],
        [FakeTask("long", shared=True), FakeTask("short")],
        read=read,
    )
    assert {f.error for f in measured.failures} == {"out of memory in a prompt of 3 tokens"}
    assert [run.row for run in measured.runs] == ["short", "short"]


def test_a_failure_costs_one_row_and_nobody_else() -> None:
    players = [FakePlayer("a", []), FakePlayer("b", [], fails=(2,))]
    measured = measure(players, [FakeTask(f"row-{number}") for number in range(4)])
    assert [run.row for run in measured.runs if run.contender == "a"] == [
        "row-0", "row-1", "row-2", "row-3",
    ]  # fmt: skip
    assert [run.row for run in measured.runs if run.contender == "b"] == ["row-0", "row-2", "row-3"]
    assert [(f.contender, f.row, f.error) for f in measured.failures] == [
        ("b", "row-1", "it broke")
    ]


def test_who_fails_on_rows_on_end_is_out() -> None:
    broken = FakePlayer("b", [], fails=tuple(range(1, 99)))
    measured = measure([FakePlayer("a", []), broken], [FakeTask(f"r{n}") for n in range(5)])
    assert len(measured.failures) == STRIKES
    assert broken._asked == 1 + STRIKES
    assert len(measured.runs) == 5


def test_who_fails_now_and_then_goes_on_but_not_on_that_row() -> None:
    # Of five rows the second and the fourth fail.
    now_and_then = FakePlayer("b", [], fails=(2, 4))
    tasks = [FakeTask(f"r{n}") for n in range(1, 6)]
    measured = measure([now_and_then], tasks, repeats=2)
    assert [f.row for f in measured.failures] == ["r2", "r4"]
    assert [run.row for run in measured.runs] == ["r1", "r3", "r5"] * 2


def test_a_warm_up_that_fails_costs_nothing() -> None:
    measured = measure([FakePlayer("a", [], fails=(0,))], [FakeTask("row")])
    assert measured.failures == []
    assert len(measured.runs) == 1


def test_turns_before_one_that_fails_count() -> None:
    measured = measure([FakePlayer("a", [], fails=(2,))], [FakeTask("row", turns=2)])
    assert [(run.row, run.turn) for run in measured.runs] == [("row", 1)]
    assert [f.row for f in measured.failures] == ["row"]


def test_turns_that_cannot_be_had_are_told_and_kept() -> None:
    task = FakeTask("row")
    task.cut = "turn 2: too long"
    journal = Journal("cut turns")
    measured = measure([FakePlayer("a", [])], [task], journal=journal)
    assert [(s.row, s.reason) for s in measured.skipped.values()] == [("row", "turn 2: too long")]
    task.cut = None
    again = measure([FakePlayer("a", [])], [task], journal=journal, go_on=True)
    assert again.skipped == measured.skipped


def test_bugs_of_a_contender_are_failures_too() -> None:
    class Bug(FakePlayer):
        def answer(self, prompt: list[int], cancelled: Callable[[], bool]) -> Answer:
            raise KeyError("shape")

    measured = measure([FakePlayer("a", []), Bug("b", [])], [FakeTask("row")])
    assert measured.failures[0].error == "KeyError: 'shape'"
    assert len(measured.runs) == 1


def test_ctrl_c_keeps_what_was_measured_and_resuming_measures_the_rest() -> None:
    journal = Journal("the same")
    tasks = [FakeTask(f"row-{number}") for number in range(3)]
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 7  # two for the warm-up, then in the third round

    measured = measure(
        [FakePlayer(n, []) for n in "ab"], tasks, cancelled=cancelled, journal=journal
    )
    assert measured.interrupted
    assert [run.row for run in measured.runs] == ["row-0", "row-0", "row-1"]
    # Of the broken round nothing is kept: pairs are measured side by side.
    assert [each.row for each in journal.rounds()] == ["row-0"]
    calls: list[int] = []
    rest = measure(
        [FakePlayer(n, []) for n in "ab"], tasks, journal=journal, go_on=True, progress=calls.append
    )
    assert not rest.interrupted
    assert [run.row for run in rest.runs] == [f"row-{n}" for n in (0, 0, 1, 1, 2, 2)]
    assert sum(calls) == 6
    assert rest.runs[:2] == measured.runs[:2]
    began = [run.began for run in rest.runs]
    assert began == sorted(began)


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    journal = Journal("cut")
    measure([FakePlayer("a", [])], [FakeTask("r1"), FakeTask("r2")], journal=journal)
    (path,) = tmp_path.rglob("*.jsonl")
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: len(text) - 40], encoding="utf-8")
    assert [each.row for each in journal.rounds()] == ["r1"]


def test_another_benchmark_has_another_journal() -> None:
    measure([FakePlayer("a", [])], [FakeTask("r1")], journal=Journal(["demo", 1]))
    assert Journal(["demo", 2]).rounds() == []
    assert len(Journal(["demo", 1]).rounds()) == 1


def test_a_round_that_was_written_twice_counts_once(tmp_path: Path) -> None:
    journal, tasks = Journal("twice"), [FakeTask("r1"), FakeTask("r2"), FakeTask("r3")]
    measured = measure([FakePlayer("a", [])], tasks[:2], repeats=2, journal=journal)
    (path,) = tmp_path.rglob("*.jsonl")
    first, *others = path.read_text(encoding="utf-8").splitlines(keepends=True)
    again = first.replace('"began":', '"began":9')
    path.write_text("".join((first, again, first, *others, *others)), encoding="utf-8")
    assert [(each.repeat, each.row) for each in journal.rounds()] == [
        (1, "r1"), (1, "r2"), (2, "r1"), (2, "r2"),
    ]  # fmt: skip
    rest = measure([FakePlayer("a", [])], tasks, repeats=2, journal=journal, go_on=True)
    assert rest.runs[:4] == measured.runs
    assert len(rest.runs) == 6


def test_two_at_work_on_the_same_do_not_write_into_one_journal(tmp_path: Path) -> None:
    said: list[str] = []
    first, later = Journal("same"), Journal("same", said.append)
    tasks = [FakeTask("r1"), FakeTask("r2")]
    measure([FakePlayer("a", [])], tasks[:1], journal=first)
    measured = measure([FakePlayer("a", [])], tasks, journal=later, go_on=True)
    assert len(measured.runs) == 2
    assert said == [
        "nothing is kept for --resume: another process is at work on the same benchmark"
    ]
    assert (first.keeps, later.keeps) == (True, False)
    assert later.rounds() == []
    later.start([])
    assert list(tmp_path.rglob("*.old")) == []
    later.end()
    assert [each.row for each in first.rounds()] == ["r1"]


def test_a_finished_benchmark_makes_way_and_leaves_no_file(tmp_path: Path) -> None:
    said: list[str] = []
    first = Journal("same", said.append)
    measure([FakePlayer("a", [])], [FakeTask("r1")], journal=first)
    first.end()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
    second = Journal("same", said.append)
    measure([FakePlayer("a", [])], [FakeTask("r1")], journal=second)
    assert len(second.rounds()) == 1
    assert said == []


def test_a_disk_without_locks_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_lock: FileLock) -> None:
        warnings.warn("flock is not supported on this file system", stacklevel=1)
        raise NotImplementedError("use SoftFileLock instead")

    monkeypatch.setattr(FileLock, "acquire", unknown)
    said: list[str] = []
    journal = Journal("same", said.append)
    measure([FakePlayer("a", [])], [FakeTask("r1")], journal=journal)
    assert (said, len(journal.rounds())) == ([], 1)


def test_a_process_that_is_gone_is_not_at_work(tmp_path: Path) -> None:
    program = "from ladecli.bench.journal import Journal; import os; j = Journal('gone'); j.claim()"
    subprocess.run([sys.executable, "-c", f"{program}; os._exit(1)"], check=False)
    said: list[str] = []
    assert list(tmp_path.rglob("*.lock"))
    Journal("gone", said.append).claim()
    assert said == []


def test_a_journal_that_cannot_be_written_is_told_once_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said: list[str] = []
    journal = Journal("x", said.append)
    measured = measure([FakePlayer("a", [])], [FakeTask("r1"), FakeTask("r2")], journal=journal)
    assert len(measured.runs) == 2
    (line,) = said
    assert line.startswith("nothing is kept for --resume: ")


@pytest.mark.parametrize("name", ["Zeile\u2028zwei", "\u0085", "ünï", "a\nb"])
def test_rows_of_any_name_are_kept(name: str) -> None:
    journal = Journal(name)
    measure([FakePlayer("a", [])], [FakeTask(name), FakeTask("r2")], journal=journal)
    assert [each.row for each in journal.rounds()] == [name, "r2"]


def test_a_journal_cut_off_in_a_character_is_read_up_to_there(tmp_path: Path) -> None:
    journal = Journal("cut")
    measure([FakePlayer("a", [])], [FakeTask("r1"), FakeTask("ü" * 9)], journal=journal)
    (path,) = tmp_path.rglob("*.jsonl")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex("ü".encode()) + 1])
    assert [each.row for each in journal.rounds()] == ["r1"]


def test_who_forgets_to_resume_can_still_do_so() -> None:
    tasks = [FakeTask(f"r{n}") for n in range(3)]
    journal = Journal("forgotten")
    measure([FakePlayer("a", [])], tasks, journal=journal)
    stopped = measure([FakePlayer("a", [])], tasks, cancelled=lambda: True, journal=journal)
    assert stopped.runs == []
    assert len(journal.rounds()) == 3
    rest = measure([FakePlayer("a", [])], tasks, journal=journal, go_on=True)
    assert len(rest.runs) == 3
    journal.end()
    assert journal.rounds() == []


class Clock:
    """Time that passes only in answers, and between them."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("ladecli.bench.measure.time", made)
    return made


class Slow(FakePlayer):
    """Takes 9 seconds for an answer, and lets one more pass before it."""

    clock: Clock

    def begin(self, *, keep: bool) -> None:
        self.clock.now += 1.0

    def answer(self, prompt: list[int], cancelled: Callable[[], bool]) -> Answer:
        self.clock.now += 9.0
        return super().answer(prompt, cancelled)


def test_what_no_run_had_is_what_measuring_costs(clock: Clock) -> None:
    Slow.clock = clock
    measured = measure([Slow("a", []), Slow("b", [])], [FakeTask("r1"), FakeTask("r2")])
    assert (measured.seconds, measured.busy) == (40.0, 36.0)
    assert measured.overhead == pytest.approx(0.1)
    assert [run.began for run in measured.runs] == [1.0, 11.0, 21.0, 31.0]


def test_reading_what_is_shared_is_no_cost_of_measuring(clock: Clock) -> None:
    Slow.clock = clock

    def read(_prompt: list[int]) -> None:
        clock.now += 30.0

    measured = measure([Slow("a", [])], [FakeTask("r1", shared=True)], read=read)
    assert measured.busy == 39.0
    # What reading took, which is more than the answer's own first step.
    assert measured.runs[0].first_seconds == 30.0


def test_digests_are_equal_where_tokens_are() -> None:
    assert digest([1, 2, 3]) == digest((1, 2, 3))
    assert len({digest(ids) for ids in ([], [1], [12], [1, 2], [2, 1], [1, 2, 3])}) == 6
    (run,) = measure([FakePlayer("a", [])], [FakeTask("row")]).runs
    assert run.digest == digest([7, 8, 9])
    assert run.prompt_digest == digest([1])


def test_memory_is_watched_for_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("ladecli.bench.measure.watch_peak", lambda _device: said.append("watch"))
    monkeypatch.setattr("ladecli.bench.measure.peak_memory", lambda _device: 5 * len(said))
    runs = measure([FakePlayer("a", said), FakePlayer("b", said)], [FakeTask("row")]).runs
    assert said[-6:][1::3] == ["watch", "watch"]
    assert [run.peak_memory for run in runs] == [5 * (len(said) - 3), 5 * len(said)]
