"""The check in a process of its own, and in a new one where a fault has ended that: no torch here.

A kernel that writes where it must not takes the GPU away from its process for good, and one that
never ends holds it up for good.  Neither shall cost more than the part that met it.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SECONDS = 470.0
"""For everything."""
MOST = 5
"""Processes, one behind the other."""
LEAST = 25.0
"""Seconds that have to be left for another one: torch has to be imported again."""
LATE = 20.0
"""Seconds beyond its time after which a process is ended that does not end by itself."""
WRONG = 2
"""What a process says that was called in a wrong way; another one would say the same."""
PARTING = 5.0
"""Seconds in which a process may end what it has started itself, before it is killed."""
BEGUN = "begun"
"""Stands beside the note once the file of figures is this check's own, and no earlier one's."""


def main(arguments: Sequence[str], worker: Sequence[str]) -> int:
    """Run the check, in as many processes as it takes.

    Args:
        arguments: of the command.
        worker: what runs the check within itself; it is told when it has to be done, to go on
            with what an earlier one has left, and where to note its exit code at a regular end.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    known, others = parser.parse_known_args(arguments)
    end = time.monotonic() + known.seconds
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "code"
        for number in range(MOST):
            left = end - time.monotonic()
            if number and left < LEAST:
                break
            command = [*worker, *others, "--here", "--note", str(note), "--seconds", f"{left:.1f}"]
            resume = ["--resume"] if note.with_name(BEGUN).exists() else []
            code = _ended([*command, *resume], left + LATE)
            if code == -signal.SIGINT:
                return 128 + signal.SIGINT
            if note.exists():
                return int(note.read_text())
            if code in (0, WRONG):
                return code
            print(f"the check was ended by a fault ({code}); what is left goes on", flush=True)
    return code or 1


def _ended(command: list[str], seconds: float) -> int:
    """The exit code of a command; it does not outlive this process, nor its time."""

    def stop(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    process = subprocess.Popen(command)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL
    except KeyboardInterrupt:
        # The terminal has told the process, too.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PARTING)
        return -signal.SIGINT
    finally:
        if process.poll() is None:
            # Killed at once, it would leave behind the tests that it runs.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PARTING)
        if process.poll() is None:
            process.kill()
        process.wait()
        signal.signal(signal.SIGTERM, before)
