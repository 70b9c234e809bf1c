"""Real processes over gloo, which say numbers to one another in the place of a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ..processes import ROOT, SECONDS, SOON, family, gone_within

PROGRAM = ("-m", "tests.parallel.ranks")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


class Ended:
    """What a program of several ranks said, and what it left behind."""

    def __init__(self, code: int, out: str, err: str, seconds: float) -> None:
        self.code, self.err, self.seconds = code, err, seconds
        said = [json.loads(line) for line in out.splitlines()]
        self.pids: list[int] = next((s["pids"] for s in said if "pids" in s), [])
        self.rows = [s["rows"] for s in said if "rows" in s]
        self.stopped = any("cancelled" in s for s in said)


class Program:
    """Several ranks at work; what they write for a while goes to a folder of their own."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)} | variables
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []

    def read(self, lines: int) -> None:
        """Wait until so many more lines have been said."""
        assert self.process.stdout is not None
        self.said += [self.process.stdout.readline() for _ in range(lines)]

    def ended(self) -> Ended:
        """Wait for its end."""
        began = time.monotonic()
        out, err = self.process.communicate(timeout=SECONDS)
        seconds = time.monotonic() - began
        return Ended(self.process.returncode, "".join(self.said) + out, err, seconds)


def rows(size: int, answer: int, steps: int, before: int = 0) -> list[Any]:
    """What ranks say in an answer if all goes well: who, which answer, step, and what they know."""
    return [
        [[rank, answer, step, before + step + 1] for rank in range(size)] for step in range(steps)
    ]


def test_ranks_decode_together_and_a_slow_one_is_waited_for(tmp_path: Path) -> None:
    ended = Program(tmp_path, *PROGRAM, "3", "3", "2", PLAY="slow").ended()
    assert (ended.code, ended.err) == (0, "")
    # In the second answer followers go on from what they learned in the first.
    assert ended.rows == rows(3, 0, 3) + rows(3, 1, 2, before=3)
    assert list(tmp_path.iterdir()) == []  # no log where nothing is wrong
    assert len({*ended.pids}) == 3
    assert gone_within(ended.pids, SOON)


def test_a_rank_that_is_killed_ends_all_with_one_line(tmp_path: Path) -> None:
    ended = Program(tmp_path, *PROGRAM, "2", "9", PLAY="die").ended()
    message = "rank 1 was killed (SIGKILL, as the system does where memory runs out)"
    assert (ended.code, ended.err) == (1, f"lade: {message}\n")
    assert ended.rows == rows(2, 0, 2)
    assert gone_within(ended.pids, SOON)
    assert list(tmp_path.iterdir()) == []


def test_a_follower_that_ends_without_words_leaves_its_log(tmp_path: Path) -> None:
    ended = Program(tmp_path, *PROGRAM, "2", "9", PLAY="import").ended()
    [log] = tmp_path.glob("*/followers.log")
    assert ended.err == (f"lade: rank 1 ended: ImportError: no such library; {log} says more\n")
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_leader_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    program = Program(tmp_path, *PROGRAM, "2", "999", PAUSE="0.1")
    program.read(3)
    everyone = family(program.process.pid)
    assert len(everyone) == 2  # torchrun and a follower
    # As a terminal does with Ctrl-C: to everybody in the foreground, which is the leader alone.
    os.killpg(program.process.pid, number)
    ended = program.ended()
    assert gone_within(everyone, SOON)
    codes = {signal.SIGKILL: -9, signal.SIGINT: 0}
    assert (ended.code, ended.err) == (codes[number], "")
    assert ended.stopped == (number == signal.SIGINT)
    assert ended.seconds < SOON
    assert list(tmp_path.iterdir()) == []  # where it was killed, a follower tidies up


def test_torchruns_ranks_refuse_what_differs(tmp_path: Path) -> None:
    ended = Program(tmp_path, *TORCHRUN, *PROGRAM, "0", "3", PLAY="seed").ended()
    message = "rank 1 was given seed 7 and rank 0 seed 3; give all ranks the same"
    assert (ended.code, ended.rows) == (1, [])
    assert ended.err.startswith(f"lade: {message}\n")
    # torchrun sums up what each rank died of, and people see that last.
    assert ended.err.count("traceback : ") == ended.err.count(message) - 1


def test_torchruns_leader_says_who_was_killed_before_it_ends(tmp_path: Path) -> None:
    ended = Program(tmp_path, *TORCHRUN, *PROGRAM, "0", "9", PLAY="die").ended()
    assert (ended.code, ended.rows) == (1, rows(2, 0, 2))
    assert ended.err.startswith("lade: rank 1 was killed, or ended without a word\n")
    assert ended.err.count("lade: ") == 1
    assert gone_within(ended.pids, SOON)


def test_ctrl_c_in_torchrun_ends_the_reply_of_all_ranks(tmp_path: Path) -> None:
    program = Program(tmp_path, *TORCHRUN, *PROGRAM, "0", "999", PAUSE="0.1")
    program.read(3)
    everyone = family(program.process.pid)
    os.killpg(program.process.pid, signal.SIGINT)
    ended = program.ended()
    assert ended.stopped
    assert gone_within(everyone, SOON)
