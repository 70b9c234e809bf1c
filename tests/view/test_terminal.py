"""A reader that closes the pipe early, like `head`, ends the program without a message."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.traces import record

ANSWER = "generate -p the -n 99 --ignore-eos"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *("--help", "config", "doctor", "replay --step", "replay"),
        *(f"{ANSWER} --json", f"{ANSWER} --no-stats"),
    ],
)
def test_a_closed_pipe_ends_quietly(command: str, tmp_path: Path) -> None:
    trace = [str(record(tmp_path / "a.trace", "paper"))] if "replay" in command else []
    read, write = os.pipe()
    os.close(read)
    with tempfile.TemporaryFile() as err:
        child = processes.Fork([*command.split(), *trace], (0, write, err.fileno()), os.environ)
        os.close(write)
        assert child.wait() == 0
        err.seek(0)
        errors = err.read()
    assert b"Broken" not in errors
    assert b"Traceback" not in errors
