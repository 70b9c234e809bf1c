"""The live view of a reply: its text grows above one row of figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.cells import chop_cells
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

from ..events import Piece, TextEvent, pieces_of
from ..metrics import Tally
from ..visualize import View, status_line
from .markdown import MarkdownRenderer
from .terminal import Terminal, is_dumb

SHORTEST, LONGEST = 1 / 20, 1 / 2
"""Seconds between two refreshes, at least and at most."""
SHARE = 0.02
"""The part of the time that drawing may take."""

# Rich has no name for it: clear all from the cursor on.
_CLEAR_BELOW = Segment("\x1b[J", None, [(ControlType.CLEAR,)])


class LiveView:
    """Shows a reply while it comes.

    The last two rows of the screen are redrawn: the unfinished row of the text, and the figures.
    Complete rows go above them into the scrollback, and are never touched again.

    Between refreshes text is only kept.

    Args:
        console: the terminal.
        tally: the figures; it has taken an event when this view does.
        renderer: sets the text; what is switched in it shows with the next drawing.
        max_context: the most tokens of prompt and reply together; 0 if unknown.
        quiet: whether the row of figures stays empty.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        console: Console,
        tally: Tally,
        renderer: MarkdownRenderer,
        *,
        max_context: int,
        quiet: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._renderer = renderer
        self._tally = tally
        self._max_context, self._quiet = max_context, quiet
        self._console = console
        self._clock = clock
        self._pieces: list[Piece] = []  # not rendered yet
        self._region: list[str] = []  # the rows that the next frame replaces
        self._due = float("-inf")
        self._has_text = self._finished = False

    def show(self, event: TextEvent) -> None:
        """Take one more event, and draw if it is time to."""
        self._pieces += pieces_of(event)
        first = not self._has_text and any(piece.text or piece.reasoning for piece in self._pieces)
        self._has_text |= first
        if first or self._clock() >= self._due:
            began = self._clock()
            self._draw()
            ended = self._clock()
            self._due = ended + min(max((ended - began) / SHARE, SHORTEST), LONGEST)

    def finish(self) -> None:
        """Complete the text and remove the figures."""
        if not self._finished:
            self._finished = True
            self._draw()

    def _draw(self) -> None:
        """Bring the screen up to date in one write."""
        width = self._console.width
        pieces, self._pieces = self._pieces, []
        rows, unfinished = self._renderer.feed(pieces, width)
        if self._finished:
            rows += self._renderer.flush(width)
        frame = Text()
        for row in rows:
            frame.append_text(row).append(row.end)
        # Terminals break rows anew when they become narrower.
        rise = sum(max(len(chop_cells(row, max(width, 2))), 1) for row in self._region) - 1
        self._region = []
        if not self._finished:
            # One cell less, or it could take two rows by itself.
            colours = self._renderer.colours
            status = status_line(self._tally, width - 1, self._max_context, colours)
            status = Text() if self._quiet else status
            self._region = [unfinished.plain, status.plain]
            frame.append_text(unfinished).append("\n").append_text(status)
        with self._console as console:
            start = Control.move_to_column(0, y=min(-rise, 0)).segment
            console.print(Segments([start, _CLEAR_BELOW]), end="")
            console.print(frame, soft_wrap=True, end="")


def reply_view(
    terminal: Terminal, tally: Tally, renderer: MarkdownRenderer, max_context: int = 0
) -> View:
    """Return the live view, or a plain writer if stdout cannot be drawn on."""
    if not sys.stdout.isatty() or is_dumb():
        return terminal.writer(renderer.colours, renderer.reasoning)
    # "never" takes the colours away, and must not take the cursor's movements with them.
    console = terminal.console(sys.stdout, is_terminal=True)
    return LiveView(console, tally, renderer, max_context=max_context, quiet=terminal.quiet)
