"""`lade replay`: plays a recorded generation again, or shows it step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .errors import INTERRUPTED, UsageError
from .events import PromptRead, TextEvent, TextStep
from .inspect.trace import Trace, read_trace
from .metrics import Tally
from .terminal import Terminal, ctrl_c, is_dumb
from .views import Together, View
from .visualize import ViewState


def run(path: str, *, speed: float = 1.0, step: bool = False, color: str = "auto") -> int:
    """Play the trace in a file.

    Args:
        path: the file.
        speed: how many times as fast as it was recorded; infinity does not wait at all.
        step: whether to show the steps one by one instead.
        color: auto, always or never.

    Returns:
        The exit code: 0, or 130 after Ctrl-C.

    Raises:
        UsageError: the file is no trace, or an option is out of range.
    """
    if not speed > 0:  # so that NaN is refused, too
        raise UsageError(f"speed must be above 0, not {speed:g}")
    trace = read_trace(Path(path).expanduser())
    terminal = Terminal(color)
    if trace.cut:
        terminal.say(f"the trace {path} has no end: the program was stopped while it recorded")
    if step:
        return _inspect(trace, terminal)
    counts = _Counts()
    with ctrl_c() as cancelled:
        view = Together(_view(trace, terminal), counts)
        ended = play(trace.events, view, speed, cancelled=cancelled)
    terminal.statistics(counts.tally, trace.header.plain_step)
    return 0 if ended else INTERRUPTED


def _view(trace: Trace, terminal: Terminal) -> View:
    """The live view on a terminal, else the text as it is."""
    console = terminal.live_console()
    if console is None:
        return terminal.writer()
    from .live import LiveView
    from .markdown import MarkdownRenderer

    state = ViewState(plain_step=trace.header.plain_step)
    thinking = trace.header.prompt.rstrip().endswith("<think>")
    return LiveView(console, state, MarkdownRenderer(True, True, thinking))


_NAP = 1 / 16
"""Seconds between two looks at whether Ctrl-C was pressed."""


class _Counts:
    """A view that only counts."""

    def __init__(self) -> None:
        self.tally = Tally()

    def show(self, event: TextEvent) -> None:
        self.tally.add(event)

    def finish(self) -> None:
        pass


def play(
    events: Iterable[TextEvent],
    view: View,
    speed: float,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Show events when they came, counted from the first.

    Args:
        events: in order; an event shows when its recorded seconds have passed.
        view: what shows them.
        speed: how many times as fast.
        cancelled: asked again and again; true ends it.
        sleep: waits some seconds.
        clock: the time in seconds.

    Returns:
        Whether all were shown.
    """
    # Against the clock, and not one sleep after another: showing takes time, too.
    due = clock()
    try:
        for event in events:
            if isinstance(event, TextStep | PromptRead):
                due += event.seconds / speed
            while not cancelled() and (wait := due - clock()) > 0:
                sleep(min(wait, _NAP))
            if cancelled():
                return False
            view.show(event)
    finally:
        view.finish()
    return True


def _inspect(trace: Trace, terminal: Terminal) -> int:
    """Show the steps: one at a time on a terminal, else all."""
    from .inspect.inspector import inspect_step

    if not trace.steps:
        terminal.say("the trace holds no steps")
        return 0
    if sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb():
        from .inspect.browse import browse

        console = terminal.console(sys.stdout)
        browse(trace, coloured=console.color_system is not None and not console.no_color)
        return 0
    console = terminal.console(sys.stdout)
    try:
        for number in range(1, len(trace.steps) + 1):
            screen = inspect_step(trace, number, console.width)
            console.print(screen, end="\n\n", soft_wrap=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
