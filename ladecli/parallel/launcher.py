"""torchrun as the child that starts the followers of `--parallel K`, and ends with them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from ..errors import LadeError

VARIABLE = "LADECLI_PARALLEL"
"""What followers are told: where the leader and its folder are, how many ranks there are, and the
request."""
FOLLOWER = "ladecli.parallel"
"""The module that a follower runs."""
FAREWELL = 3.0
"""Seconds that followers may take to end by themselves."""
_FIRST_FAILURE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_RAISED = re.compile(r"^(?:\[.*?\]:)?([A-Za-z_][\w.]*(?:Error|Exception): .*)$", re.MULTILINE)


class Launcher:
    """The child, its log, and what became of it.

    It has a session of its own, so that Ctrl-C in the terminal reaches the leader alone, and what
    it and the followers write goes to a log, which is deleted unless something failed without
    words.

    Args:
        size: how many ranks there are, the leader included.
        told: what followers are told; it can be written as JSON.
        environment: the child's.
        module: what a follower runs.

    Raises:
        LadeError: it cannot be started.
    """

    def __init__(
        self,
        size: int,
        told: Mapping[str, Any],
        environment: Mapping[str, str],
        module: str = FOLLOWER,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lade-parallel-"))
        self.log = self._folder / "followers.log"
        self._kept = False
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(size - 1), "--max-restarts", "0"),
            *("--log-dir", str(self._folder), "-m", module),
        ]
        threads = str(max(cores() // size, 1))
        about = json.dumps({**told, "folder": str(self._folder)})
        variables = {"OMP_NUM_THREADS": threads, **environment, VARIABLE: about}
        try:
            with self.log.open("wb") as log:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=variables,
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise LadeError(f"torchrun cannot be started: {error.strerror or error}") from error

    def ended(self) -> str | None:
        """How the first follower that ended did, in a few words; None while they run."""
        running = self._child.poll() is None
        log = self.log.read_text(encoding="utf-8", errors="replace")
        # It says so before it has ended itself.
        failure = _FIRST_FAILURE.search(log)
        if running and failure is None:
            return None
        code, rank = (int(failure[1]), int(failure[2]) + 1) if failure else (0, 0)
        if code < 0:
            return f"rank {rank} was killed ({_signal(-code)})"
        self._kept = True
        raised = _RAISED.findall(log)
        who = f"rank {rank}" if rank else "torchrun, which starts the other ranks,"
        why = f": {raised[0].strip()}" if raised else ""
        return f"{who} ended{why}; {self.log} says more"

    def close(self, *, patient: bool) -> None:
        """End the child and the followers, however they are: none of them has anything to save.

        Args:
            patient: whether the followers have been told to end, and may do so by themselves.
        """
        try:
            family = psutil.Process(self._child.pid)
            family.suspend()  # so that it starts no more of them
            followers = family.children(recursive=True)
        except psutil.Error:
            followers = []  # they ended with it, or will when they notice that this process has
        try:
            deadline = time.monotonic() + (FAREWELL if patient else 0.0)
            while time.monotonic() < deadline and any(map(_runs, followers)):
                time.sleep(0.01)
        finally:
            for process in followers:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self._child.kill()
            self._child.wait()
            if not self._kept:
                shutil.rmtree(self._folder, ignore_errors=True)


def cores() -> int:
    """Cores of the processor that this process may use."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return min(physical, allowed)


def _runs(process: psutil.Process) -> bool:
    # Its parent is suspended, and takes no notice of its end.
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    # The kernel does not say so to the process that it chooses.
    return f"{name}, as the system does where memory runs out" if name == "SIGKILL" else name
