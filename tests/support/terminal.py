"""A real program in a pseudo-terminal, and the screen that a user would see."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import pexpect
import pyte

from tests.support.processes import Spawn

LADE = [sys.executable, "-m", "ladecli"]
PATIENCE = 60.0
"""Seconds to wait for a text on the screen."""


class Screen(io.StringIO):
    """A terminal that records its output, and does nothing else."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """`lade` in its own terminal, with additional variables; a `forked` program starts with
    everything imported, see `processes`."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 80,
        lines: int = 24,
        env: Mapping[str, str] | None = None,
        command: list[str] = LADE,
        forked: bool = True,
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=5000, ratio=1.0)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        settings = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        spawn = Spawn if forked and command == LADE else pexpect.spawn
        self.child = spawn(
            command[0],
            [*command[1:], *arguments],
            env={**os.environ, **settings, **(env or {})},
            dimensions=(lines, columns),
            timeout=PATIENCE,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # see `processes`
        )
        self.child.delaybeforesend = None
        # Programs query the position of the cursor, and terminals answer.
        self.screen.write_process_input = self.child.send

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.close(force=True)

    def send(self, text: str) -> None:
        self.child.send(text)

    def enter(self, text: str) -> None:
        """Type a line, and press Enter after all of it is shown."""
        self.child.send(text + "\r")

    def resize(self, columns: int, lines: int) -> None:
        """Make the window another size."""
        self.read()
        self.screen.resize(lines, columns)
        self.child.setwinsize(lines, columns)

    def read(self, seconds: float = 0.0) -> None:
        """Read the program's output, waiting some seconds for more."""
        until = time.monotonic() + seconds
        while True:
            try:
                data = self.child.read_nonblocking(65536, timeout=0.02)
            except pexpect.TIMEOUT:
                data = b""
            except pexpect.EOF:
                return
            self.raw += data
            self._stream.feed(data)
            if not data and time.monotonic() >= until:
                return

    def wait(self, until: str | Callable[[str], object], what: str = "text") -> str:
        """Read until a text is on the screen or above it; return both."""
        end = time.monotonic() + PATIENCE
        while True:
            alive = self.child.isalive()
            self.read(0.05)
            seen = self.text()
            if until in seen if isinstance(until, str) else until(seen):
                return seen
            if time.monotonic() > end or not alive:
                raise AssertionError(f"no {what} {until!r} on the screen:\n{seen}")

    def close(self) -> int:
        """Wait for the program to end, and return its exit code."""
        self.read(0.1)
        self.child.expect(pexpect.EOF)
        self._stream.feed(self.child.before or b"")
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -1)

    def text(self) -> str:
        """All rows, those that scrolled away first, without trailing blanks."""
        return "\n".join([*self.above(), *self.rows()]).rstrip()

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def above(self) -> list[str]:
        """The rows that have scrolled away."""
        return [
            "".join(row[column].data for column in range(self.screen.columns)).rstrip()
            for row in self.screen.history.top
        ]
