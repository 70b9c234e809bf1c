"""The terminal: consoles, notices, a spinner, a progress bar, and Ctrl-C as a flag."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from ..errors import one_line
from ..metrics import Tally

if TYPE_CHECKING:
    from rich.console import Console

    from ..visualize import Writer

PIPE = 10_000
"""The width of a pipe: longer than any line, so that none is wrapped."""
REFRESH_INTERVAL = 0.1
"""The least seconds between two refreshes of a progress bar."""


def is_dumb() -> bool:
    """Return True if the terminal, if there is one, can neither redraw nor edit."""
    return os.name == "posix" and os.environ.get("TERM", "") in ("", "dumb", "unknown")


def tell(message: str) -> None:
    """Print a line for the user on stderr, wrapped between words on a screen."""
    line = f"lade: {one_line(message)}"
    with contextlib.suppress(OSError, ValueError):  # stderr is not a screen
        width = os.get_terminal_size(sys.stderr.fileno()).columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Output to the user: answers on stdout, everything else on stderr."""

    color: str = "auto"  # or always, or never
    quiet: bool = False  # only errors go to stderr

    def console(
        self, stream: TextIO, *, is_terminal: bool | None = None, columns: int | None = None
    ) -> Console:
        """Return a console on a stream, with colours as the user asked.

        Args:
            stream: receives the output.
            is_terminal: True if the stream accepts control sequences; None to follow the colours.
            columns: the width of a stream that is not a terminal; None not to wrap lines.
        """
        from .console import SafeConsole

        choice = {"always": True, "never": False}.get(self.color)
        return SafeConsole(
            width=None if stream.isatty() else columns or PIPE,
            file=stream,
            force_terminal=choice if is_terminal is None else is_terminal,
            no_color=None if choice is None else not choice,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def writer(self, colours: bool = True, reasoning: bool = False) -> Writer:
        """Return the writer for stdout: a terminal with colours, one without, or no terminal.

        Args:
            colours: True if tokens have the colours of their sources.
            reasoning: True if reasoning is written, too.
        """
        from rich.console import COLOR_SYSTEMS

        from ..visualize import Writer

        is_terminal, console = sys.stdout.isatty(), self.console(sys.stdout)
        coloured = self.color == "always" or (self.color == "auto" and is_terminal)
        plain = console.no_color or console.legacy_windows  # those lack escape codes
        if colours and coloured and console.color_system and not plain:
            colors = COLOR_SYSTEMS[console.color_system]
            return Writer(sys.stdout, safe=True, colors=colors, reasoning=reasoning)
        return Writer(sys.stdout, safe=is_terminal, reasoning=reasoning)

    def say(self, *lines: str) -> None:
        """Print notices on stderr."""
        if not self.quiet:
            for line in lines:
                tell(line)

    def statistics(self, tally: Tally, colours: bool = True) -> None:
        """Print the figures of an answer that has tokens as a line on stderr, as wide as the
        screen.  Sources have their colours with `colours`."""
        from ..visualize import statistics_line

        if not tally.tokens:
            return
        console = self.console(sys.stderr)
        console.print(statistics_line(tally, console.width, colours))

    @contextlib.contextmanager
    def progress(self, what: str | None) -> Iterator[Callable[[str], None]]:
        """Show a spinner on stderr during a block, if stderr is a terminal.

        Yields:
            A function that takes a description of the stage that begins.
        """
        if what is None or self.quiet or not sys.stderr.isatty():
            yield lambda _stage: None
            return
        from rich.text import Text

        def row(text: str) -> Text:
            return Text(one_line(text), no_wrap=True, overflow="ellipsis")

        with self.console(sys.stderr).status(row(f"{what} …")) as spinner:
            yield lambda stage: spinner.update(row(f"{what}: {stage}"))

    @contextlib.contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar with the remaining time on stderr, if that is a terminal.

        The caller's thread draws it, since another thread would slow what is measured.

        Args:
            what: a name for the work.
            total: the number of units of work.

        Yields:
            A function that takes the number of further completed units.
        """
        if self.quiet or not sys.stderr.isatty() or is_dumb():
            yield lambda _more: None
            return
        from rich.progress import Progress

        console = self.console(sys.stderr)
        with Progress(console=console, transient=True, auto_refresh=False) as bar:
            task, drawn = bar.add_task(what, total=total), time.monotonic()

            def advance(more: int) -> None:
                nonlocal drawn
                bar.update(task, advance=more)
                if time.monotonic() - drawn >= REFRESH_INTERVAL:
                    bar.refresh()
                    drawn = time.monotonic()

            yield advance


@contextlib.contextmanager
def handling(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers, *signals: signal.Signals
) -> Iterator[None]:
    """Use another handler of signals within a block."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def tidying_up() -> contextlib.AbstractContextManager[None]:
    """Raise SystemExit on a signal that ends the program, so that it cleans up first.

    Ignored signals stay ignored, as `nohup` requires.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return handling(end, *heeded("SIGTERM", "SIGHUP", "SIGQUIT"))


def heeded(*names: str) -> list[signal.Signals]:
    """Return the named signals, without ignored ones and those that this system lacks."""
    known = (number for number in signal.Signals if number.name in names)
    return [number for number in known if signal.getsignal(number) != signal.SIG_IGN]


@contextlib.contextmanager
def ctrl_c(*others: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C set a flag, which is read between two steps; a second one raises an exception.

    An exception inside a forward could come between two writes to the cache.  Further presses are
    ignored, since they would only disturb the cleanup.

    Args:
        others: signals with the same effect.
    """
    presses = 0

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses == 2:
            raise KeyboardInterrupt

    with handling(on_signal, signal.SIGINT, *others):
        yield lambda: presses > 0
