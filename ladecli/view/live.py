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
"""The shortest and the longest time between two refreshes, in seconds."""
SHARE = 0.02
"""The share of the time that drawing may take."""

# Clears the screen below the cursor; Rich has no constant for it.
_CLEAR_BELOW = Segment("\x1b[J", None, [(ControlType.CLEAR,)])


class LiveView:
    """Shows a reply while it is generated.

    The last two rows of the screen are redrawn: the unfinished row of the text, and the figures.
    Complete rows go above them into the scrollback, and are never touched again.

    Between refreshes, text is only collected.

    Args:
        console: the terminal.
        tally: the figures; it must be updated with an event before this view.
        renderer: lays out the text; changes of its options show with the next refresh.
        max_context: the most tokens of prompt and reply together; 0 if unknown.
        quiet: True if the row of figures stays empty.
        clock: a monotonic clock, in seconds.
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
        """Add one event, and draw if a refresh is due."""
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
        """Update the screen in one write."""
        width = self._console.width
        pieces, self._pieces = self._pieces, []
        rows, unfinished = self._renderer.feed(pieces, width)
        if self._finished:
            rows += self._renderer.flush(width)
        frame = Text()
        for row in rows:
            frame.append_text(row).append(row.end)
        # A terminal that becomes narrower wraps its rows again.
        rise = sum(max(len(chop_cells(row, max(width, 2))), 1) for row in self._region) - 1
        self._region = []
        if not self._finished:
            # One cell less than the width, since some terminals wrap a full row.
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
    # "never" is about colours, and must not turn off cursor movements.
    console = terminal.console(sys.stdout, is_terminal=True)
    return LiveView(console, tally, renderer, max_context=max_context, quiet=terminal.quiet)
