"""The terminal under a chat: what it echoes, and how it is given back."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TextIO

from ..terminal import is_dumb

_AS_BEFORE = "\x1b[?25h\x1b[?2004l"
"""Shows the cursor, and ends bracketed paste: what a shell expects."""


def other_terminal() -> TextIO | None:
    """The terminal itself where neither stdout nor stderr is one; else None."""
    if any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        return None
    try:
        return open("/dev/tty", "w")
    except OSError:
        return None


@contextlib.contextmanager
def unechoed() -> Iterator[None]:
    """Keep what is typed beside the prompt out of sight, where standard input is a terminal.

    It is not lost: the prompt takes it.  Ctrl-C stays a signal.  Whatever ends or suspends the
    program, SIGTERM and Ctrl-Z included, gives the terminal back as it was.  A terminal that can
    do nothing by itself keeps its echo.
    """
    if os.name != "posix" or sys.stdin is None or not sys.stdin.isatty() or is_dumb():
        yield
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def on_suspend(number: int, _frame: FrameType | None) -> None:
        now = termios.tcgetattr(fd)
        termios.tcsetattr(fd, termios.TCSANOW, before)
        for stream in (sys.stdout, sys.stderr):
            if stream.isatty():
                stream.write(_AS_BEFORE)
                stream.flush()
                break
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # here the program stops, and goes on after fg
        signal.signal(number, on_suspend)
        termios.tcsetattr(fd, termios.TCSANOW, now)

    handler = signal.signal(signal.SIGTSTP, on_suspend)
    # At once, and without throwing away what was typed already.
    tty.setcbreak(fd, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
        signal.signal(signal.SIGTSTP, handler)


@contextlib.contextmanager
def ended_tidily() -> Iterator[None]:
    """Let signals that end the program do so by an exception, which tidies up on its way."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    names = ("SIGTERM", "SIGHUP", "SIGQUIT")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
