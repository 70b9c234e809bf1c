"""The check of a GPU, as far as a CPU can tell: its arithmetic, its limits, and a rehearsal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from ladecli import profiles
from ladecli.decoder.config import CAPTURED_WIDTHS

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

from gpu_check import again, answers, clock, main, shapes, steps, targets, tests
from gpu_check.journal import Journal, LeftOut, OutOfTime, limited
from gpu_check.profile import toml_of
from gpu_check.watching import Rerun, Watch

ROOT = Path(__file__).parents[1]
MISSING = ("pydantic", "plotille", "platformdirs", "prompt_toolkit", "tomli_w", "pexpect", "pyte")
"""What a machine with a GPU may lack."""


class Ticks:
    """A clock on which everything takes what a list says; and a `Clock` for work."""

    def __init__(self, *seconds: float) -> None:
        self._seconds: Iterator[float] = iter(seconds)
        self.bursts: list[int] = []

    def burst(self, work: Callable[[], object], repeats: int) -> list[float]:
        work()
        self.bursts.append(repeats)
        return [next(self._seconds)] * repeats

    def whole(self, work: Callable[[], object]) -> float:
        work()
        return next(self._seconds)


def journal_in(folder: Path, seconds: float = 100.0) -> Journal:
    return Journal(folder / "new" / "out.json", seconds, lambda _line: None)


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "new" / "out.json").read_text())
    return found


def test_a_part_that_fails_leaves_the_others_and_says_why(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)

    def broken() -> None:
        journal.data["half"] = [1.23456789, float("nan"), (2, float("inf"))]
        raise RuntimeError("no such kernel\nand a long tale")

    def absent() -> None:
        raise LeftOut("no flash-attn here")

    assert not journal.part("one", 9, broken)
    assert not journal.part("two", 9, absent)
    assert journal.part("three", 9, lambda: None)
    found = read(tmp_path)
    assert found["half"] == [1.23457, None, [2, None]], "what was known, as JSON has it"
    one, two, three = (found["parts"][name] for name in ("one", "two", "three"))
    assert (one["state"], one["reason"]) == ("failed", "RuntimeError: no such kernel")
    assert one["trace"][-1].startswith("test_gpu_check.py:")
    assert str(ROOT) not in json.dumps(found)
    assert (two["state"], two["reason"]) == ("left out", "no flash-attn here")
    assert three["state"] == "done"


def test_a_part_ends_with_its_time_whatever_it_catches(tmp_path: Path) -> None:
    def stubborn() -> None:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    journal = journal_in(tmp_path)
    began = time.monotonic()
    assert not journal.part("slow", 0.1, stubborn)
    assert time.monotonic() - began < 5
    assert read(tmp_path)["parts"]["slow"]["state"] == "out of time"


def test_no_part_begins_without_time_for_it(tmp_path: Path) -> None:
    journal = journal_in(tmp_path, seconds=3.5)
    assert not journal.part("late", 9, lambda: pytest.fail("there was no time"))
    found = read(tmp_path)["parts"]["late"]
    assert (found["state"], found["reason"]) == ("left out", "no time was left")


def test_a_limit_within_another_one_leaves_it_be() -> None:
    def nested() -> None:
        with limited(0.3):
            with limited(9.0):
                pass
            time.sleep(5)

    began = time.monotonic()
    with pytest.raises(OutOfTime):
        nested()
    assert time.monotonic() - began < 4


def test_a_part_is_told_again_that_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops what is raised in a destructor."""
    monkeypatch.setattr("gpu_check.journal.AGAIN", 0.05)

    class Deaf:
        def __del__(self) -> None:
            with contextlib.suppress(OutOfTime):
                time.sleep(5)

    def work() -> None:
        with limited(0.05):
            Deaf()
            time.sleep(5)

    began = time.monotonic()
    with pytest.raises(OutOfTime):
        work()
    assert time.monotonic() - began < 4


def test_parts_of_an_earlier_process_are_not_done_again(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    assert first.part("good", 9, lambda: first.data.update(figure=1))
    assert not first.part("bad", 9, lambda: [][0])

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.part("fatal", 9, killed)
    assert read(tmp_path)["underway"] == "fatal", "what a fault leaves behind"

    again = Journal(tmp_path / "new" / "out.json", 100.0, lambda _line: None, resume=True)
    assert again.data["figure"] == 1
    assert again.part("good", 9, lambda: pytest.fail("it was done"))
    assert not again.part("bad", 9, lambda: pytest.fail("it was tried"))
    for anew in (False, True):
        assert not again.part("fatal", 9, lambda: pytest.fail("it is fatal"), anew=anew)
    made: list[int] = []
    assert again.part("good", 9, lambda: made.append(1), anew=True)
    assert made, "a model that later parts need"
    assert again.part("more", 9, lambda: None)
    found = read(tmp_path)
    assert found["parts"]["fatal"] == {
        "state": "failed",
        "reason": "the process ended within it",
    }
    assert "underway" not in found


def test_nothing_is_tried_on_a_gpu_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left to another process, not noted as failed."""

    def synchronize() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nadvice")

    lines: list[str] = []
    journal = Journal(tmp_path / "new" / "out.json", 100.0, lines.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert not journal.part("astray", 9, lambda: [][0])
    assert journal.lost
    assert not journal.part("next", 9, lambda: pytest.fail("on what?"))
    journal.skip(["texts"], "no backend")
    assert [*read(tmp_path)["parts"]] == ["astray"]
    assert lines[-1].endswith("CUDA error: an illegal memory access was encountered")


def test_a_gpu_that_hangs_ends_the_process_and_time_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it hangs behind a part, when it is asked whether it is still there."""
    set_to: list[float] = []
    now = [100.0]
    path = tmp_path / "out.json"
    path.write_text('{"parts": {}, "seconds": 40.0}')
    monkeypatch.setattr(
        "gpu_check.journal.faulthandler.dump_traceback_later",
        lambda seconds, exit: set_to.append(seconds) if exit else None,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    journal = Journal(path, 100.0, lambda _: None, lambda: now[0], resume=True, ends=True)

    def work() -> None:
        assert set_to == [9 + 10.0]
        now[0] += 5

    assert journal.part("one", 9, work)
    assert set_to == [9 + 10.0, 10.0]
    assert json.loads(path.read_text())["seconds"] == 45.0


WORKER = """
import os, pathlib, signal, sys
log = pathlib.Path(sys.argv[1])
note = pathlib.Path(sys.argv[sys.argv.index("--note") + 1])
earlier = log.read_text() if log.exists() else ""
log.write_text(earlier + " ".join(sys.argv[2:]) + "\\n")
faults = {faults}
if {begins} or earlier:
    note.with_name("begun").touch()
if earlier.count("\\n") < len(faults):
    eval(faults[earlier.count("\\n")])
note.write_text("1")
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("faults", "runs"),
    [
        ([], 1),
        (["os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(1)", "sys.exit(4)"], 4),
        (["sys.exit(2)"], 1),
        (["sys.exit(0)"], 1),
    ],
    ids=["none", "several", "wrong call", "asked for help"],
)
def test_a_fault_costs_one_process(
    faults: list[str], runs: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script, log = tmp_path / "worker.py", tmp_path / "log"
    script.write_text(WORKER.format(faults=faults, begins=True))
    code = again.main(["--shapes", "tiny"], [sys.executable, str(script), str(log)])
    assert code == {"sys.exit(2)": 2, "sys.exit(0)": 0}.get("".join(faults), 1), "of the last one"
    calls = log.read_text().splitlines()
    assert len(calls) == runs
    assert all(call.startswith("--shapes tiny --here --note ") for call in calls)
    assert ["--resume" in call for call in calls] == [False] + [True] * (runs - 1)
    times = [float(call.split("--seconds ")[1].split()[0]) for call in calls]
    assert times == sorted(times, reverse=True), "each has what the ones before it have left"
    assert runs < 3 or times[-1] < times[0]
    assert capfd.readouterr().out.count("what is left goes on") == runs - 1


def test_what_an_earlier_check_left_is_not_gone_on_with(tmp_path: Path) -> None:
    """The first process has met a fault before it wrote anything: the file is not its own."""
    script, log = tmp_path / "worker.py", tmp_path / "log"
    script.write_text(WORKER.format(faults=["os._exit(1)"] * 2, begins=False))
    again.main([], [sys.executable, str(script), str(log)])
    calls = log.read_text().splitlines()
    assert ["--resume" in call for call in calls] == [False, False, True]


def test_no_process_begins_without_time_for_it(tmp_path: Path) -> None:
    script, log = tmp_path / "worker.py", tmp_path / "log"
    script.write_text(WORKER.format(faults=["os._exit(1)"], begins=True))
    worker = [sys.executable, str(script), str(log)]
    assert again.main(["--seconds", str(again.LEAST)], worker) == 1
    assert len(log.read_text().splitlines()) == 1


def test_a_check_begins_with_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> None:
        assert "models" not in json.loads(out.read_text())
        assert (tmp_path / again.BEGUN).exists()
        raise ValueError("a driver in pieces")

    monkeypatch.setattr(main, "Check", check)
    out, note = tmp_path / "out.json", tmp_path / "code"
    out.write_text('{"parts": {"copy": {"state": "done"}}, "models": {"old": {}}}')
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(ValueError, match="in pieces"):
            main.main(["--device", "cpu", "--json", str(out), "--note", str(note)])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert json.loads(out.read_text())["parts"] == {}
    assert note.read_text() == "1"


def test_a_lost_gpu_leaves_the_rest_to_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(journal: Journal, *_: object) -> mock.Mock:
        journal.lost = True
        return mock.Mock()

    monkeypatch.setattr(main, "Check", check)
    note = tmp_path / "code"
    before = signal.getsignal(signal.SIGTERM)
    try:
        call = ["--device", "cpu", "--json", str(tmp_path / "out.json"), "--note", str(note)]
        assert main.main(call) == main.LOST
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not note.exists(), "that would be a regular end"


def test_whoever_is_told_to_end_ends_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(_args: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        return 0

    monkeypatch.setattr(main, "_run", work)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main.main(["--note", str(tmp_path / "code")])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143

    script, log = tmp_path / "worker.py", tmp_path / "log"
    script.write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        f"log = pathlib.Path({str(log)!r})\n"
        "try:\n    log.touch()\n    time.sleep(60)\n"
        "finally:\n    log.write_text('parted')\n"
    )

    def tell() -> None:
        while not log.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell).start()
    with pytest.raises(SystemExit) as ended:
        again.main([], [sys.executable, str(script)])
    assert ended.value.code == 143
    assert log.read_text() == "parted"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_process_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "LATE", 0.0)
    script = tmp_path / "worker.py"
    script.write_text("import time\ntime.sleep(60)\n")
    began = time.monotonic()
    assert again.main(["--seconds", "0.5"], [sys.executable, str(script)]) != 0
    assert time.monotonic() - began < 10


def test_arms_take_turns_forwards_and_backwards() -> None:
    order: list[str] = []
    arms = {name: lambda name=name: order.append(name) for name in "abc"}
    found = clock.bursts(arms, Ticks(1, 2, 3, 30, 20, 10), rounds=2, repeats=2)
    assert order == [*"abccba"]
    assert found == {"a": [1, 1, 10, 10], "b": [2, 2, 20, 20], "c": [3, 3, 30, 30]}
    assert clock.wholes(arms, Ticks(1, 2, 3), 1) == {"a": [1], "b": [2], "c": [3]}


def test_an_interval_holds_the_mean_of_ratios() -> None:
    mean, low, high = clock.interval([0.5, 2.0])
    assert (mean, low, high) == pytest.approx((1.0, 0.5, 2.0))
    assert clock.interval([1.5]) == pytest.approx((1.5, 1.5, 1.5))


def test_shares() -> None:
    # 13.2 GB at 4.3 TB/s are 3.07 ms.
    assert steps.share_of_bandwidth(13.2e9, 4.3e12, 3.84e-3) == pytest.approx(0.8, abs=1e-3)
    share = answers.share_of(whole=0.4, device=0.38, steps=100)
    assert share["host_share"] == pytest.approx(0.05)
    assert (share["step_seconds"], share["device_seconds"]) == pytest.approx((4e-3, 3.8e-3))


def test_launches_are_counted_and_timed_by_kind() -> None:
    watch = Watch(Rerun())

    def work() -> tuple[torch.Tensor, ...]:
        return (torch.zeros(1),)

    one, other = watch.capture(work), watch.capture(work)
    one.replay()
    before = watch.counts()
    for _ in range(3):
        other.replay()
    one.replay()
    # Once 4 seconds for the first, three times 5 for the other.
    assert watch.device_seconds(before, Ticks(4, 5), repeats=2) == 19
    assert sum(watch.counts().values()) == 5, "launches to time them do not count"
    del one, before
    watch.last = None
    assert len(watch.counts()) == 1, "what was let go is not held here"


def grid(*rows: tuple[float, ...]) -> dict[str, Any]:
    contexts = (1024, 16384)[: len(rows)]
    return {"widths": [1, 64, 128], "contexts": list(contexts), "seconds": [*map(list, rows)]}


def test_costs_are_in_plain_steps_and_never_fall() -> None:
    found = grid((4e-3, 4.4e-3, 4.2e-3), (5e-3, 6e-3, 7e-3))
    assert steps.costs(found) == [[1.0, 1.1, 1.1], [1.0, 1.2, 1.4]]
    assert steps.costs(found, host=1e-5)[1] == [1.0, 1.326, 1.654]
    assert steps.cost_at(found, 64, 16384) == pytest.approx(1.2)
    assert steps.cost_at(found, 64, 4096) is None
    assert steps.cost_at({}, 64, 1024) is None


def test_the_best_backend_was_measured_as_far_as_any() -> None:
    whole = grid((4, 5, 6), (5, 6, 7))
    assert steps.best_backend({"a": whole, "b": grid((1, 1, 1)), "c": {}}) == "a"
    assert steps.best_backend({"a": whole, "b": grid((4, 5, 5), (5, 6, 7))}) == "b"
    assert steps.best_backend({"a": {}, "b": {}}) is None


def measured() -> dict[str, Any]:
    """A check that found something."""
    model = {
        "parameters": 6.7e9,
        "read_bytes": 13.2e9,
        "best": "flash",
        "steps": {"flash": grid((4e-3, 4.2e-3, 5.2e-3), (5e-3, 6e-3, 9e-3))},
        "plain": {"eager": 20e-3, "lean captured": 3.8e-3, "lean captured device_seconds": 3e-3},
        "generate": {"times_as_fast": 4.0},
        "host": {"lookahead": {"host_share": 0.03, "step_seconds": 4e-3}},
    }
    return {
        "date": "2026-11-22",
        "seconds": 300.0,
        "facts": {"gpu": "NVIDIA H200", "device": "cuda", "torch": "2.11.0"},
        "ceilings": {"copy": {"rate": 4.3e12}, "product": {"rate": 7.9e14}},
        "tests": {"failed": 0, "passed": 9, "ended": True},
        "models": {"llama-2-7b": model, "tiny": {}},
        "parts": {"x": {"state": "failed", "reason": "RuntimeError: y"}},
    }


def test_wishes_are_met_missed_by_so_much_or_not_measured() -> None:
    data = measured()
    data["targets"] = targets.judged(data)
    found = {row["what"]: row for row in data["targets"]}
    assert found["tests on the GPU that failed"]["state"] == "met"
    share = found["plain step of llama-2-7b: share of the bandwidth"]
    assert (share["state"], round(share["value"], 3)) == ("met", 0.808)
    eager = found["plain decoding against transformers' generate, eager, times as fast"]
    assert (eager["state"], eager["off"]) == ("missed", pytest.approx(0.2))
    wide = found["128 tokens behind 1,024"]
    assert (wide["state"], wide["off"]) == ("missed", pytest.approx(0.04))
    assert found["end to end on the demo: lookahead, times as fast as plain decoding"] == {
        "what": "end to end on the demo: lookahead, times as fast as plain decoding",
        "limit": 1.0,
        "most": False,
        "state": "not measured",
    }
    text = "\n".join(targets.lines(data))
    assert "missed by 20%: plain decoding against transformers' generate, eager" in text
    assert "263 tok/s, 81% of the bandwidth" in text
    assert "x: failed: RuntimeError: y" in text


def test_nothing_measured_is_nothing_met() -> None:
    assert {row["state"] for row in targets.judged({"models": {}})} == {"not measured"}


def test_measured_steps_become_a_profile() -> None:
    data = measured()
    small = data["models"]["llama-2-7b"] | {"parameters": 1.5e9}
    data["models"]["qwen2.5-1.5b"] = small
    hardware = profiles.shipped("h200").hardware
    assert hardware is not None
    head = (
        'description = "x"\n[hardware]\nbandwidth = 1.0\nrates = { float32 = 1.0 }\nsource = "x"\n'
    )
    found = profiles.parse("h200", head + toml_of(data))
    first, second = found.settings
    assert 1.5e9 < first.up_to_parameters < 6.7e9 < second.up_to_parameters < 13e9
    assert second.origin.startswith("measured: NVIDIA H200, 2026-11, torch 2.11.0, llama-2-7b")
    assert second.lookahead.step_cost.contexts == (1024, 16384)
    assert second.lookahead.budget is not None
    assert {*second.lookahead.widths} <= {*CAPTURED_WIDTHS}
    assert toml_of(data | {"models": {}}).count("[[setting]]") == 0


def test_outcomes_are_read_with_one_process_and_with_several() -> None:
    lines = [
        "tests/gpu/test_a.py::test_x PASSED   [ 10%]",
        "tests/gpu/test_a.py::test_y[1-a b] SKIPPED (why) [ 20%]",
        "[gw1] [ 30%] FAILED tests/gpu/test_a.py::test_z ",
        "[gw0] [ 40%] PASSED tests/gpu/test_a.py::test_w ",
        f"FAILED tests/gpu/test_a.py::test_z - AssertionError: {ROOT}/x",
        "= 1 failed, 2 passed, 1 skipped in 3.21s =",
    ]
    found = tests.counted("\n".join(lines))
    assert (found["passed"], found["failed"], found["skipped"]) == (2, 1, 1)
    assert found["failures"] == ["FAILED tests/gpu/test_a.py::test_z - AssertionError: ./x"]
    assert found["last"].startswith("= 1 failed")
    assert tests.counted("")["passed"] == 0


def test_tests_that_take_too_long_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even processes that they have started themselves."""
    note = tmp_path / "pid"
    script = tmp_path / "pytest"
    script.write_text(
        f"#!/bin/sh\necho 'tests/gpu/test_a.py::test_x PASSED'\nsleep 60 & echo $! > {note}\nwait\n"
    )
    script.chmod(0o755)
    # Python's options are the script's, which reads none.
    monkeypatch.setattr(sys, "executable", str(script))
    found: dict[str, Any] = {}
    with pytest.raises(RuntimeError, match="ended: False"):
        tests.run(tests.SPARE + 1.0, "cpu", found)
    assert (found["passed"], found["ended"]) == (1, False)
    stat, end = Path(f"/proc/{note.read_text().strip()}/stat"), time.monotonic() + 5.0
    # It was told to end, and takes a moment.
    while stat.exists() and stat.read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_model_that_has_no_room_is_left_out() -> None:
    config = shapes.config_of(shapes.SHAPES["tiny"], 100)
    shapes.check_room(config, 100, torch.bfloat16, None)
    with pytest.raises(LeftOut, match=r"^it takes 6 GB, and 1 GB are free$"):
        shapes.check_room(config, 100, torch.bfloat16, 10**9)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-2-7b", 6.74), ("llama-3-8b", 8.03), ("qwen2.5-1.5b", 1.544), ("qwen2.5-32b", 32.8)],
)
def test_shapes_are_the_true_ones(name: str, billions: float) -> None:
    from transformers import AutoModelForCausalLM

    config = shapes.config_of(shapes.SHAPES[name], 0)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, rel=2e-3)


def test_compiled_steps_stand_beside_those_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []

    def compiled(model: Any, dynamic: bool) -> Any:
        def feed(**inputs: Any) -> Any:
            fed.append(inputs["input_ids"].shape[1])
            return model(**inputs)

        return feed

    monkeypatch.setattr(torch, "compile", compiled)
    cpu = torch.device("cpu")
    subject = shapes.Subject(shapes.config_of(shapes.SHAPES["tiny"], 600), cpu, torch.float32)
    found: dict[str, Any] = {}
    steps.compiled(subject, "sdpa", clock.clock_for(cpu), steps.SMALL, found)
    assert {*fed} == {1, 64}
    for way in ("captured", "compiled"):
        for width in (1, steps.SMALL.budget):
            assert found[f"{way} {width}"] > 0
            assert found[f"{way} {width}: device_seconds"] > 0
    # It counts as a plain step of ours.
    model = {"plain": {"eager": 9.0, "captured": 3.0}, "compiled": {"compiled 1": 2.0}}
    assert targets.fastest_plain(model) == 2.0
    assert targets.fastest_plain({**model, "compiled": {}}) == 3.0


def test_a_machine_without_a_gpu_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 2
    told = "no GPU is to be seen here; --device cpu rehearses the check\n"
    assert capsys.readouterr().err == told
    with pytest.raises(SystemExit):
        main.main(["--shapes", "llama-9"])


def test_a_rehearsal_from_a_checkout_where_packages_are_missing(tmp_path: Path) -> None:
    """Every line but CUDA's own has run, and nothing is imported that GPU machines lack."""
    out = tmp_path / "out.json"
    code = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({MISSING}))
sys.argv[1:] = ["--here", "--device", "cpu", "--shapes", "tiny,demo", "--no-tests"]
sys.argv += ["--json", {str(out)!r}]
runpy.run_path({str(ROOT / "scripts" / "gpu_check")!r}, run_name="__main__")
"""
    # Triton's interpreter is slow, and has tests of its own.
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    states = {name: part["state"] for name, part in found["parts"].items()}
    assert {*states.values()} <= {"done", "left out"}
    assert {name for name, state in states.items() if state == "left out"} <= {
        "tiny: triton",
        "tiny: compiled",
        "demo: triton",
    }
    tiny, demo = found["models"]["tiny"], found["models"]["demo"]
    assert set(tiny) >= {"steps", "best", "plain", "host", "generate", "memory"}
    assert tiny["steps"]["sdpa"]["contexts"] == [16, 40]
    assert tiny["generate"]["times_as_fast"] > 0
    assert tiny["compiled generate"]["generate_seconds_per_token"] > 0
    for arm in ("lookahead", "autoregressive"):
        assert tiny["host"][arm]["captured_meanwhile"] == 0
    assert demo["end to end"]["low"] <= demo["end to end"]["times_as_fast"]
    assert demo["divergence"]["texts"] == 1
    assert len(found["targets"]) == len(targets.TARGETS)
    assert "[[setting]]" in toml_of(found)
