"""Events to what a person sees: pure functions, and one writer for each kind of stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from .events import Ended, Piece, TextEvent, TextStep
from .metrics import Tally

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

SOURCE_STYLES = {
    "trajectory": "green",
    "context": "cyan",
    "recycled": "blue",
    "jacobi": "magenta",
}
OTHER_SOURCE_STYLE = "yellow"

# Everything that a terminal could take for a command: C0 but tab and newline, DEL, C1.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` without control characters, so that no output can drive the terminal."""
    return _CONTROL.sub("", text)


def style_of(source: str | None) -> str:
    """The style of a token from `source`; the model's own tokens are plain."""
    return "" if source is None else SOURCE_STYLES.get(source, OTHER_SOURCE_STYLE)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def statistics_line(tally: Tally, width: int) -> Text:
    """One line about an answer, with the legend of its colours; several where it is narrow.

    Args:
        tally: of the answer.
        width: of the screen; lines break between figures, not within them.
    """
    from rich.text import Text

    parts = [
        Text(f"{_counted(tally.tokens, 'token')} in {_counted(tally.steps, 'step')}"),
        Text(f"{tally.tokens_per_step:.2f} tokens per step", "bold"),
        Text(f"{tally.tokens_per_second:.1f} tok/s"),
    ]
    if tally.accepted:
        accepted = Text("accepted: ")
        for number, (source, count) in enumerate(sorted(tally.accepted.items())):
            accepted.append(", " if number else "")
            accepted.append(f"{source} {count}", style_of(source))
        parts.append(accepted)
    line, used = Text(), 0
    for part in parts:
        if used and used + 3 + len(part) > width:
            line.append("\n")
            used = 0
        elif used:
            line.append(" · ", "dim")
            used += 3
        line.append_text(part)
        used += len(part)
    return line


class PlainWriter:
    """Writes an answer as it is, for files and pipes.

    Args:
        stream: where to.
        safe: whether to leave out control characters, for a terminal without colours.
    """

    def __init__(self, stream: TextIO, safe: bool) -> None:
        self._stream = stream
        self._safe = safe
        self._ended_line = True

    def show(self, event: TextEvent) -> None:
        """Write what the event adds, at once."""
        match event:
            case TextStep():
                self._write("".join(piece.text for piece in event.pieces))
            case Ended():
                self._write(event.rest)

    def finish(self) -> None:
        """End the last line."""
        if not self._ended_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        text = printable(text) if self._safe else text
        if text:
            self._stream.write(text)
            self._stream.flush()
            self._ended_line = text.endswith("\n")


class ColourWriter:
    """Writes an answer with every token in the colour of its source.

    Rich gives the colours only: its own printing would expand tabs and wrap lines by where a
    step starts, and the terminal knows better.

    Args:
        console: of Rich; tests give one of fixed colours.
    """

    def __init__(self, console: Console) -> None:
        from rich.console import COLOR_SYSTEMS

        self._stream = console.file
        self._colours = COLOR_SYSTEMS[console.color_system or "standard"]
        self._ended_line = True

    def show(self, event: TextEvent) -> None:
        """Write what the event adds, at once."""
        match event:
            case TextStep():
                self._write(event.pieces)
            case Ended():
                self._write((Piece(event.rest),))

    def finish(self) -> None:
        """End the last line."""
        if not self._ended_line:
            self._stream.write("\n")

    def _write(self, pieces: Sequence[Piece]) -> None:
        from rich.style import Style

        for piece in pieces:
            if text := printable(piece.text):
                style = Style.parse(style_of(piece.source))
                self._stream.write(style.render(text, color_system=self._colours))
                self._ended_line = text.endswith("\n")
        self._stream.flush()
