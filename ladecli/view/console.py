"""A console without control characters in texts.  Only modules that print import it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ..errors import printable


class SafeConsole(Console):
    """A console that removes control characters from texts, and that leaves a closed pipe to its
    caller instead of ending the program."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield segments; only Rich's own segments may move the cursor."""
        for segment in super().render(renderable, options):
            text = segment.text
            yield segment if segment.control else segment._replace(text=printable(text))

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error again for the caller."""
        raise
