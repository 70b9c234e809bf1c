"""`lade replay`: plays a recorded generation again, or shows it step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..decoder.events import PromptRead, StepNarrowed
from ..errors import INTERRUPTED, UsageError
from ..events import TextEvent, TextStep
from ..metrics import Tally
from ..options.commands import ReplayRequest
from ..view.live import reply_view
from ..view.markdown import MarkdownRenderer
from ..view.terminal import Terminal, is_dumb
from ..visualize import together
from .format import Trace, read_trace
from .inspector import StepView, browse


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
    trace = read_trace(Path(path))
    terminal = Terminal(request.color)
    if trace.cut:
        terminal.say(f"the trace {path} has no end: the program was stopped while it recorded")
    return _inspect(trace, terminal) if request.step else _play(trace, terminal, speed)


def _play(trace: Trace, terminal: Terminal, speed: float) -> int:
    """Show the text as it came, then its statistics."""
    tally = Tally(calibration=trace.header.calibration)
    shown = reply_view(terminal, tally, MarkdownRenderer(True, True))
    code = 0
    with together(tally, shown) as show:
        try:
            for event in pace(trace.events, speed):
                show(event)
        except KeyboardInterrupt:
            code = INTERRUPTED
    terminal.statistics(tally)
    return code


def pace(events: Iterable[TextEvent], speed: float) -> Iterator[TextEvent]:
    """Events, each when its recorded seconds have passed."""
    # Against the clock, and not one sleep after another: showing takes time, too.
    due = time.monotonic()
    for event in events:
        if isinstance(event, TextStep | PromptRead | StepNarrowed):
            due += event.seconds / speed
        time.sleep(max(due - time.monotonic(), 0.0))
        yield event


def _inspect(trace: Trace, terminal: Terminal) -> int:
    """Show the steps: one at a time on a terminal, else all."""
    console = terminal.console(sys.stdout)
    if not trace.steps:
        terminal.say("the trace holds no steps")
    elif sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb():
        browse(trace, console)
    else:
        for number in range(1, len(trace.steps) + 1):
            console.print(StepView(trace, number), "")
    return 0
