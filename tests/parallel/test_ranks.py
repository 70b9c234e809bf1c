"""Real processes over gloo, which gather numbers in place of a model's steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from ..processes import ROOT, SECONDS, SOON, family, gone_within

PROGRAM = ("-m", "tests.parallel.ranks")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", *PROGRAM)


class Program:
    """Several ranks at work."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def begun(self) -> list[int]:
        """The processes that it has started, when it has shown a step."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline()
        return family(self.process.pid)

    def ended(self) -> tuple[int, list[Any], str]:
        """Its exit code, the rows that it showed, and its errors."""
        out, errors = self.process.communicate(timeout=SECONDS)
        shown = [json.loads(line) for line in out.splitlines()]
        return self.process.returncode, [each.get("rows") for each in shown], errors


def rows(size: int, answer: int, steps: int, before: int = 0) -> list[Any]:
    """What ranks gather: number, answer, step, and steps seen in all."""
    return [
        [[rank, answer, step, before + step + 1] for rank in range(size)] for step in range(steps)
    ]


def test_ranks_decode_together_and_a_slow_one_is_waited_for() -> None:
    """In the second answer followers go on with what they learned in the first."""
    found = Program(*PROGRAM, "3", "3", "2", PLAY="slow").ended()
    assert found == (0, rows(3, 0, 3) + rows(3, 1, 2, before=3), "")


@pytest.mark.parametrize(
    ("play", "size", "line", "steps"),
    [
        ("die", 2, "rank 1 was killed (SIGKILL; the system does so when memory runs out)", 2),
        ("fail", 3, "rank 1 failed: ValueError: the weights are gone", 2),
        ("import", 2, "rank 1 ended: ImportError: no such library", 0),
    ],
)
def test_a_rank_that_fails_ends_all_with_one_line(
    play: str, size: int, line: str, steps: int
) -> None:
    found = Program(*PROGRAM, str(size), "9", PLAY=play).ended()
    assert found == (1, rows(size, 0, steps), f"lade: {line}\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_leader_leaves_no_process_behind(number: signal.Signals) -> None:
    program = Program(*PROGRAM, "2", "999", PAUSE="0.1")
    everyone = program.begun()
    # As a terminal does with Ctrl-C: to the process group in the foreground.
    os.killpg(program.process.pid, number)
    code, shown, errors = program.ended()
    assert gone_within(everyone, SOON)
    assert len(everyone) == 1
    assert (code, errors) == (0 if number == signal.SIGINT else -number, "")
    assert (None in shown) == (number == signal.SIGINT)


def test_torchruns_ranks_refuse_what_differs() -> None:
    code, shown, errors = Program(*TORCHRUN, "0", "3", PLAY="seed").ended()
    assert (code, shown) == (1, [])
    line = "rank 1 has seed 7 and rank 0 has 3; all ranks need the same"
    assert errors.startswith(f"lade: {line}\n")
    summary = errors.partition("\n")[2]
    assert line in summary


@pytest.mark.parametrize(
    ("play", "line"),
    [("die", "rank 1 ended"), ("fail", "rank 1 failed: ValueError: the weights are gone")],
)
def test_torchruns_leader_says_what_failed(play: str, line: str) -> None:
    code, shown, errors = Program(*TORCHRUN, "0", "9", PLAY=play).ended()
    assert (code, shown) == (1, rows(2, 0, 2))
    assert [each for each in errors.splitlines() if each.startswith("lade: ")] == [f"lade: {line}"]


def test_ctrl_c_in_torchrun_ends_the_answer_on_all_ranks() -> None:
    program = Program(*TORCHRUN, "0", "999", PAUSE="0.1")
    everyone = program.begun()
    os.killpg(program.process.pid, signal.SIGINT)
    _, shown, _ = program.ended()
    assert shown[-1] is None
    assert gone_within(everyone, SOON)
