"""The terminal around an answer: consoles, notices, a spinner, a bar, and Ctrl-C as a flag."""

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
"""Columns of a pipe: more than any line has, so that none is broken."""
DRAWN_EVERY = 0.1
"""Seconds from one drawing of a bar to the next, at least."""


def is_dumb() -> bool:
    """Whether the terminal, if there is one, can neither draw nor edit."""
    return os.name == "posix" and os.environ.get("TERM", "") in ("", "dumb", "unknown")


def tell(message: str) -> None:
    """Print a line for the user on stderr; a screen breaks it between words."""
    line = f"lade: {one_line(message)}"
    with contextlib.suppress(OSError, ValueError):  # it is no screen
        width = os.get_terminal_size(sys.stderr.fileno()).columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Output to the user: the answer on stdout, all else on stderr."""

    color: str = "auto"  # or always, or never
    quiet: bool = False  # whether only errors go to stderr

    def console(
        self, stream: TextIO, *, is_terminal: bool | None = None, columns: int | None = None
    ) -> Console:
        """Return a console on a stream, with or without colours as the user asked.

        Args:
            stream: takes the output.
            is_terminal: whether it takes control sequences; None for what the colours need.
            columns: of a stream that is no terminal; None to leave its lines whole.
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
            colours: whether tokens have those of their sources.
            reasoning: whether it is written, too.
        """
        from rich.console import COLOR_SYSTEMS

        from ..visualize import Writer

        is_terminal, console = sys.stdout.isatty(), self.console(sys.stdout)
        coloured = self.color == "always" or (self.color == "auto" and is_terminal)
        plain = console.no_color or console.legacy_windows  # which knows no escape codes
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
        """Print the line about an answer, if that has tokens, on stderr; as wide as the screen, if
        there is one.  Sources have their colours with `colours`."""
        from ..visualize import statistics_line

        if not tally.tokens:
            return
        console = self.console(sys.stderr)
        console.print(statistics_line(tally, console.width, colours))

    @contextlib.contextmanager
    def progress(self, what: str | None) -> Iterator[Callable[[str], None]]:
        """Show a spinner on stderr, if that is a terminal, while something takes long; or none.

        Yields:
            A function that takes the stage which has begun, in some words.
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
        """Show a bar on stderr, if that is a terminal that can redraw, with the time that is left.

        It is drawn by its caller's thread: another one would take its time from what is measured.

        Args:
            what: is being done, in a word.
            total: of what is counted, at the end.

        Yields:
            A function that takes how many more are done.
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
                if time.monotonic() - drawn >= DRAWN_EVERY:
                    bar.refresh()
                    drawn = time.monotonic()

            yield advance


@contextlib.contextmanager
def handling(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers, *signals: signal.Signals
) -> Iterator[None]:
    """Let something else than until now handle signals within a block."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def tidying_up() -> contextlib.AbstractContextManager[None]:
    """Make an exception of a signal that ends the program, so that it tidies up on its way.

    One that is ignored stays so: `nohup` asks for that.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return handling(end, *heeded("SIGTERM", "SIGHUP", "SIGQUIT"))


def heeded(*names: str) -> list[signal.Signals]:
    """The signals of these names, without those that are ignored or that this system lacks."""
    known = (number for number in signal.Signals if number.name in names)
    return [number for number in known if signal.getsignal(number) != signal.SIG_IGN]


@contextlib.contextmanager
def ctrl_c(*others: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C set a flag that is read between two steps; a second one ends at once.

    An exception inside a forward could land between two writes to the cache.  Further ones do
    nothing: they would only disturb the tidying up.

    Args:
        others: signals that do the same.
    """
    presses = 0

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses == 2:
            raise KeyboardInterrupt

    with handling(on_signal, signal.SIGINT, *others):
        yield lambda: presses > 0
