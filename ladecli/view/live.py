"""The live view of a reply: its text grows above one row of figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.cells import chop_cells
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

from ..events import Ended, Piece, TextEvent, TextStep
from ..visualize import ViewState, fold, status_line
from .markdown import MarkdownRenderer

if TYPE_CHECKING:
    from rich.console import Console

SHORTEST, LONGEST = 1 / 20, 1 / 2
"""Seconds between two refreshes, at least and at most."""
SHARE = 0.02
"""The part of the time that drawing may take."""

_START = Control((ControlType.CARRIAGE_RETURN,)).segment
_UP = Control((ControlType.CURSOR_UP, 1)).segment
# Rich has no name for it: clear all from the cursor on.
_CLEAR_BELOW = Segment("\x1b[J", None, [(ControlType.CLEAR,)])


class LiveView:
    """Shows a reply while it comes.

    Two rows at the end of the screen are its own: the unfinished row of the text, and the
    figures.  Complete rows go above them into the scrollback, and are never touched again.  The
    cursor is hidden until `finish`, and waits at the start of the row of figures, where what the
    user types does no harm.

    Between refreshes events are only folded and kept.

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
        self._pieces: list[Piece] = []  # not rendered yet
        self._tail = Text()  # the unfinished row on the screen
        self._width = 0  # of the screen at the last refresh; 0 before the first
        self._due = float("-inf")
        self._began = self._hidden = self._finished = False

    def show(self, event: TextEvent) -> None:
        """Take one more event, and draw if it is time to."""
        fold(self.state, event)
        match event:
            case TextStep():
                self._pieces += event.pieces
            case Ended():
                self._pieces.append(Piece(event.rest))
        first = not self._began and any(piece.text for piece in self._pieces)
        self._began |= first
        if first or self._clock() >= self._due:
            self.redraw()

    def redraw(self) -> None:
        """Draw now, also if nothing came: after a switch, or when the screen's size changed."""
        if self._finished:
            return
        began = self._clock()
        self._draw()
        ended = self._clock()
        self._due = ended + min(max((ended - began) / SHARE, SHORTEST), LONGEST)

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
        width = self._console.width
        pieces, self._pieces = self._pieces, []
        rows, tail = self.renderer.feed(pieces, width)
        if self._finished:
            rows += self.renderer.flush(width)
            if not (rows or self._width):
                return
        frame = Text()
        for row in rows:
            frame.append_text(row).append(row.end)
        with self._console as console:
            # Each time: a shell shows it again while the program is suspended.
            self._hidden = True
            console.show_cursor(False)
            rise = self._rows_above(width)
            console.print(Segments([_START, *[_UP] * rise, _CLEAR_BELOW]), end="")
            if not self._finished:
                # One cell less, or it could take two rows by itself.
                frame.append_text(tail).append("\n").append_text(self._status(width - 1))
            console.print(frame, soft_wrap=True, end="")
            console.print(Segments([_START]), end="")
        self._tail, self._width = tail, width

    def _status(self, width: int) -> Text:
        colours = self.renderer.colours and not self._console.no_color
        return status_line(self.state, width, unicode=self._unicode, colours=colours)

    def _rows_above(self, width: int) -> int:
        """Rows from the figures up to where the unfinished row begins.

        Terminals break rows anew when they become narrower, as this view will.
        """
        if not self._width:
            return 0
        return max(len(chop_cells(self._tail.plain, max(width, 2))), 1)
