"""The tests that need a GPU, in a process of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
SPARE = 5.0
"""Seconds before the limit of the part at which the tests are ended."""
PROCESSES = 12
"""Kernels are compiled by one core each."""
_OUTCOME = re.compile(
    r"^(?:\[gw\d+\] \[ *\d+%\]|tests/\S.*) (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\b"
)
_TOLD = re.compile(r"^(FAILED|ERROR) tests/.*")


def run(seconds: float, where: str, data: dict[str, Any]) -> None:
    """Run tests/gpu.

    Args:
        seconds: after which they are ended; what came until then counts.
        where: "1" for the GPU, "cpu" to rehearse them.
        data: gets counts, and one line for each failure.

    Raises:
        RuntimeError: tests failed, or did not come to their end.
    """
    command = [
        *(sys.executable, "-m", "pytest", "tests/gpu", "-vv", "-rfE", "--tb=line"),
        # What torch and others warn of among themselves is no failure of ours here.
        *("-W", "default", "-p", "no:cacheprovider", "--timeout=90"),
    ]
    if importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(min(PROCESSES, os.cpu_count() or 1))]
    settings = {**os.environ, "LADE_TEST_GPU": where}
    settings.pop("TRITON_INTERPRET", None)
    # Every test has a home folder of its own, and shall not compile kernels anew for it.
    settings.setdefault("TRITON_CACHE_DIR", str(Path.home() / ".triton" / "cache"))
    with tempfile.TemporaryFile("w+") as out:
        try:
            ended = _ended(command, settings, out, seconds - SPARE)
        finally:
            out.seek(0)
            data |= counted(out.read())
    data["ended"] = ended
    if not ended or data["failed"] or not data["passed"] + data["skipped"]:
        last = "; ".join(data["failures"][:2]) or data["last"]
        raise RuntimeError(f"{data['failed']} failed, ended: {ended}: {last}")


def _ended(command: list[str], settings: dict[str, str], out: IO[str], seconds: float) -> bool:
    """Run a command; returns whether it came to its end.  Nothing of it is left behind."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=settings,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.wait(max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        return False
    finally:
        # It may have started others, which would take part in what is measured next.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True


def counted(output: str) -> dict[str, Any]:
    """Counts of outcomes in what pytest printed, failures in a line each, and its last line."""
    counts: Counter[str] = Counter()
    failures = []
    for line in output.splitlines():
        if found := _OUTCOME.match(line):
            counts[found[1]] += 1
        elif _TOLD.match(line):
            failures.append(line[:400].replace(str(ROOT), "."))
    return {
        "passed": counts["PASSED"] + counts["XFAIL"],
        "failed": counts["FAILED"] + counts["ERROR"] + counts["XPASS"],
        "skipped": counts["SKIPPED"],
        "failures": failures,
        "last": (output.strip().splitlines() or [""])[-1][:400],
    }
