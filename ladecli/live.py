"""The live view of a reply: its text grows above one row of figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.control import Control
from rich.segment import ControlType, Segment

from .events import Ended, Piece, TextEvent, TextStep
from .markdown import MarkdownRenderer
from .visualize import ViewState, fold, status_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

SHORTEST = 1 / 20
"""Seconds between two refreshes, at least."""
LONGEST = 1.0
"""Seconds between two refreshes, at most: a terminal that slow is slow anyway."""
SHARE = 0.02
"""The part of the time that drawing may take."""

_START = Control((ControlType.CARRIAGE_RETURN,)).segment
_UP = Control((ControlType.CURSOR_UP, 1)).segment
_CLEAR_TO_EDGE = Control((ControlType.ERASE_IN_LINE, 0)).segment
# Rich has no code for it: all that is below.
_CLEAR_BELOW = Segment("\x1b[J", None, [(ControlType.CLEAR,)])


class _Frame:
    """Segments as something that Rich prints in one go."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = segments

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> Iterator[Segment]:
        yield from self._segments


class LiveView:
    """Shows a reply while it comes.

    Two rows at the end of the screen are its own: the unfinished row of the text, and the
    figures.  Complete rows go above them into the scrollback, and are never touched again.  The
    cursor is hidden until `finish`, and waits at the start of the row of figures, where what the
    user types does no harm.

    Drawing is rare: at most 20 times a second, and so that it takes at most a fiftieth of the
    time.  What comes in between is only folded and kept.

    Args:
        console: the terminal.
        state: what the figures are of; this view folds all events into it.
        renderer: sets the text.
        clock: seconds that never go back.

    Attributes:
        renderer: to switch Markdown or colours; call `redraw` then.
    """

    def __init__(
        self,
        console: Console,
        state: ViewState,
        renderer: MarkdownRenderer,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.state = state
        self.renderer = renderer
        self._console = console
        self._clock = clock
        self._unicode = console.encoding.lower().startswith("utf")
        self._pieces: list[Piece] = []  # not set yet
        self._rows: list[Text] = []  # set, and not on the screen yet
        self._due = float("-inf")
        self._cost = 0.0  # seconds of the last refresh
        self._width = 0  # of the screen at the last refresh; 0 before the first
        self._joined = False  # whether the last complete row goes on in the unfinished one
        self._began = self._hidden = self._finished = False

    def show(self, event: TextEvent) -> None:
        """Take one more event, and draw if it is time to."""
        fold(self.state, event)
        match event:
            case TextStep():
                self._pieces += event.pieces
            case Ended():
                self._pieces.append(Piece(event.rest))
        if not self._began and any(piece.text for piece in self._pieces):
            self._began = True
            self.redraw()
        elif self._clock() >= self._due:
            self.redraw()

    def redraw(self) -> None:
        """Draw now, also if nothing came: after a switch, or when the screen's size changed."""
        if self._finished:
            return
        began = self._clock()
        self._draw()
        ended = self._clock()
        # The smaller one of two: a refresh that loaded a lexer, or lost the processor for a
        # while, says nothing about the next.
        last, self._cost = self._cost, ended - began
        spacing = min(self._cost, last) / SHARE
        self._due = ended + min(max(spacing, SHORTEST), LONGEST)

    def finish(self) -> None:
        """Complete the text, remove the figures, and give the cursor back."""
        if self._finished:
            return
        self._finished = True
        try:
            self._draw()
        finally:
            if self._hidden:
                self._console.show_cursor(True)

    def _draw(self) -> None:
        """Bring the screen up to date in one write."""
        width = self._console.size.width
        pieces, self._pieces = self._pieces, []
        self._rows += self.renderer.feed(pieces, width)
        if self._finished:
            self._rows += self.renderer.flush(width)
        if self._finished and not (self._width or self._rows):
            return
        with self._console:
            # Each time: whoever suspends the program gets the cursor back meanwhile.
            self._hidden = True
            self._console.show_cursor(False)
            self._console.print(_Frame(self._segments(width)), soft_wrap=True, end="")
            self._rows.clear()
        self._width = width

    def _segments(self, width: int) -> Iterator[Segment]:
        yield _START
        if self._width == width:
            yield _UP
            if self._rows:
                # Not only to the edge of each: a terminal that breaks rows anew would take
                # the blanks behind a row for a part of it.
                yield _CLEAR_BELOW
        elif self._width:
            # A terminal may have broken rows anew.  Never go up further than to a row that
            # is surely this view's: the worst is that a part of the unfinished row stays.
            if not self._joined:
                yield _UP
            self._joined = False
            yield _CLEAR_BELOW
        for row in self._rows:
            yield from self._row(row, width, row.end)
            self._joined = not row.end
        if self._finished:
            yield _CLEAR_BELOW
            return
        yield from self._row(self.renderer.tail(width), width, "\n")
        # One cell less, or it could take two rows by itself.
        status = status_line(
            self.state,
            width - 1,
            unicode=self._unicode,
            colours=self.renderer.colours and not self._console.no_color,
        )
        yield from self._row(status, width, "")
        yield _START

    def _row(self, text: Text, width: int, end: str) -> Iterator[Segment]:
        """A row over what stood there."""
        yield from text.render(self._console, end="")
        # Behind a full row the cursor still stands on its last character.
        if cell_len(text.plain) < width:
            yield _CLEAR_TO_EDGE
        if end:
            yield Segment("\n")
