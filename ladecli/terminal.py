"""The terminal around an answer: consoles, notices, a spinner, a bar, and Ctrl-C as a flag."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from .visualize import ColourWriter, PlainWriter, printable, statistics_line

if TYPE_CHECKING:
    from rich.console import Console

    from .metrics import Tally

DRAWN_EVERY = 0.1
"""Seconds from one drawing of a bar to the next, at least."""


def is_dumb() -> bool:
    """Whether the terminal, if there is one, can neither draw nor edit."""
    return os.name == "posix" and os.environ.get("TERM", "") in ("", "dumb", "unknown")


@dataclass(frozen=True, slots=True)
class Terminal:
    """How to speak to the user.

    Attributes:
        color: auto, always or never.
        quiet: whether only errors go to stderr.
    """

    color: str = "auto"
    quiet: bool = False

    def console(self, stream: TextIO) -> Console:
        """A console on a stream, with or without colours as the user asked."""
        from rich.console import Console

        return Console(
            file=stream,
            force_terminal={"always": True, "never": False}.get(self.color),
            no_color={"always": False, "never": True}.get(self.color),
            highlight=False,
            markup=False,
            emoji=False,
        )

    def live_console(self) -> Console | None:
        """A console for a view that draws on stdout; None where stdout cannot be drawn on."""
        from rich.console import Console

        if not sys.stdout.isatty() or is_dumb():
            return None
        # "never" takes the colours away, and must not take the cursor's movements with them.
        no_color = {"always": False, "never": True}.get(self.color)
        return Console(force_terminal=True, no_color=no_color, highlight=False, markup=False)

    def writer(self, colours: bool = True) -> PlainWriter | ColourWriter:
        """The writer for what stdout is: a terminal with colours, one without, or no terminal.

        Args:
            colours: whether tokens shall have those of their sources.
        """
        terminal = sys.stdout.isatty()
        if colours and (self.color == "always" or (self.color == "auto" and terminal)):
            console = self.console(sys.stdout)
            if console.color_system is not None and not console.no_color:
                return ColourWriter(console)
        return PlainWriter(sys.stdout, safe=terminal)

    def say(self, line: str) -> None:
        """A notice on stderr."""
        if not self.quiet:
            print(f"lade: {printable(line)}", file=sys.stderr)

    def statistics(self, tally: Tally, plain_step: float | None = None) -> None:
        """The line about an answer, on stderr; as wide as the screen, if there is one."""
        console = self.console(sys.stderr)
        width = console.width if console.is_terminal else sys.maxsize
        console.print(statistics_line(tally, width, plain_step), soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """A spinner on stderr while something takes long, where somebody is watching."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        with self.console(sys.stderr).status(f"{what} …"):
            yield

    @contextlib.contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar on stderr with the time that is left, where somebody is watching.

        It is drawn only where it is told something: a thread that draws would take its time from
        what is measured.

        Args:
            what: is being done, in a word.
            total: of what is counted, at the end.

        Yields:
            What to tell how many more are done.
        """
        if self.quiet or not sys.stderr.isatty():
            yield lambda _more: None
            return
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("left:"),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(
            *columns, console=self.console(sys.stderr), transient=True, auto_refresh=False
        ) as bar:
            task = bar.add_task(what, total=total)
            drawn = time.monotonic()

            def told(more: int) -> None:
                nonlocal drawn
                bar.update(task, advance=more)
                if time.monotonic() - drawn >= DRAWN_EVERY:
                    bar.refresh()
                    drawn = time.monotonic()

            yield told


@contextlib.contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C set a flag that is read between two steps; a second one ends at once.

    An exception inside a forward could land between two writes to the cache.  Further ones do
    nothing: they would only disturb the tidying up.
    """
    presses = 0

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses == 2:
            raise KeyboardInterrupt

    with _on_ctrl_c(on_signal):
        yield lambda: presses > 0


@contextlib.contextmanager
def _on_ctrl_c(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
