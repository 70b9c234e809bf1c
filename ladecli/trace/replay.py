"""`lade replay`: print a recorded generation again, or show it step by step."""

from __future__ import annotations

import sys
from pathlib import Path

from ..metrics import Tally
from ..options.commands import ReplayRequest
from ..view.live import reply_view
from ..view.markdown import MarkdownRenderer
from ..view.terminal import Terminal, is_dumb
from ..visualize import together
from .format import Trace, read_trace
from .inspector import StepView, browse


def run(request: ReplayRequest) -> int:
    """Print the trace in a file, or its steps; return 0.

    Raises:
        UsageError: the file is not a trace.
    """
    trace, terminal = read_trace(Path(request.trace)), Terminal(request.color)
    if trace.cut:
        terminal.say(
            f"the trace {request.trace} has no end: the program was stopped while it recorded"
        )
    if request.step:
        _inspect(trace, terminal)
    else:
        _print(trace, terminal)
    return 0


def _print(trace: Trace, terminal: Terminal) -> None:
    """Print the text, then its statistics."""
    tally = Tally()
    with together(tally, reply_view(terminal, tally, MarkdownRenderer(True, True))) as show:
        for event in trace.events:
            show(event)
    terminal.statistics(tally)


def _inspect(trace: Trace, terminal: Terminal) -> None:
    """Show the steps: one at a time on a terminal, else all."""
    console = terminal.console(sys.stdout)
    if not trace.steps:
        terminal.say("the trace holds no steps")
    elif sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb():
        browse(trace, console)
    else:
        for number in range(1, len(trace.steps) + 1):
            console.print(StepView(trace, number), "")
