"""A console that texts cannot drive; apart from `terminal`, for programs that print nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ..errors import printable


class SafeConsole(Console):
    """A console that prints nothing that drives the terminal, whatever names and texts hold; and
    that leaves a closed pipe to its caller, instead of ending the program."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """The segments of what is printed; movements of the cursor are Rich's alone."""
        for segment in super().render(renderable, options):
            text = segment.text
            yield segment if segment.control else segment._replace(text=printable(text))

    def on_broken_pipe(self) -> NoReturn:
        """Leave it to the caller, who is handling the error."""
        raise
