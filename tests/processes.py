"""Programs that tests start: which processes belong to them, and whether those have ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
"""Where programs are started."""
SECONDS = 120.0
"""To wait for the end of a program, on a machine that is busy."""
SOON = 10.0
"""Seconds that what ends at once may take on a machine that is busy."""


def family(pid: int) -> list[int]:
    """All processes that a process has started, and those that they have."""
    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


def followers(pid: int) -> list[psutil.Process]:
    """Ranks that follow a process, and not torchrun, which starts them."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # torchrun looks about with programs of its own
            command = child.cmdline()
            follows = (
                command[-1:] == ["ladecli.parallel"] and "torch.distributed.run" not in command
            )
            found += [child] if follows else []
    return found


def gone_within(pids: Sequence[int], seconds: float) -> bool:
    """Whether processes end in so short a time."""
    deadline = time.monotonic() + seconds
    while any(map(runs, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def runs(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
