"""`lade replay`: plays a recorded generation again, or shows it step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..errors import INTERRUPTED, UsageError
from ..events import PromptRead, TextEvent, TextStep
from ..metrics import Tally
from ..options import ReplayRequest
from ..view.live import LiveView
from ..view.markdown import MarkdownRenderer
from ..view.terminal import Terminal, ctrl_c, is_dumb
from ..visualize import Together, View
from .format import Trace, read_trace
from .inspector import Browser, StepView

_NAP = 1 / 16
"""Seconds between two looks at whether Ctrl-C was pressed."""


def run(request: ReplayRequest) -> int:
    """Play the trace in a file.

    Returns:
        The exit code: 0, or 130 after Ctrl-C.

    Raises:
        UsageError: the file is not a trace, or an option is out of range.
    """
    path, speed = request.trace, request.speed
    if not speed > 0:  # so that NaN is refused, too
        raise UsageError(f"speed must be above 0, not {speed:g}")
    trace = read_trace(Path(path).expanduser())
    terminal = Terminal(request.color)
    if trace.cut:
        terminal.say(f"the trace {path} has no end: the program was stopped while it recorded")
    return _inspect(trace, terminal) if request.step else _play(trace, terminal, speed)


def _play(trace: Trace, terminal: Terminal, speed: float) -> int:
    """Show the text as it came, then its statistics."""
    console, tally = terminal.live_console(), Tally(plain_before=trace.header.plain_step)
    shown: View = terminal.writer()
    if console is not None:
        thinking = trace.header.prompt.rstrip().endswith("<think>")
        shown = LiveView(console, tally, MarkdownRenderer(True, True, thinking))
    view = Together(tally, shown)
    with ctrl_c() as cancelled:
        try:
            for event in paced(trace.events, speed, cancelled):
                view.show(event)
        finally:
            view.finish()
        interrupted = cancelled()
    terminal.statistics(tally)
    return INTERRUPTED if interrupted else 0


def paced(
    events: Iterable[TextEvent], speed: float, cancelled: Callable[[], bool]
) -> Iterator[TextEvent]:
    """Events, each when its recorded seconds have passed, until `cancelled` returns true."""
    # Against the clock, and not one sleep after another: showing takes time, too.
    due = time.monotonic()
    for event in events:
        if isinstance(event, TextStep | PromptRead):
            due += event.seconds / speed
        while not cancelled() and (wait := due - time.monotonic()) > 0:
            time.sleep(min(wait, _NAP))
        if cancelled():
            return
        yield event


def _inspect(trace: Trace, terminal: Terminal) -> int:
    """Show the steps: one at a time on a terminal, else all."""
    console = terminal.console(sys.stdout)
    if not trace.steps:
        terminal.say("the trace holds no steps")
    elif sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb():
        Browser(trace, colored=console.color_system is not None and not console.no_color).run()
    else:
        for number in range(1, len(trace.steps) + 1):
            console.print(StepView(trace, number), "")
    return 0
