"""What all that shows or keeps an answer has in common, and how several do it together."""

from __future__ import annotations

import contextlib
from typing import Protocol

from .errors import LadeError
from .events import TextEvent


class View(Protocol):
    """Something that shows an answer, or keeps it."""

    def show(self, event: TextEvent) -> None:
        """Take one more event."""

    def finish(self) -> None:
        """The answer is over, or broken off: leave terminal and files in order."""


class Together:
    """Several views of one answer.

    Args:
        views: each takes every event, in this order.
    """

    def __init__(self, *views: View) -> None:
        self._views = views

    def show(self, event: TextEvent) -> None:
        """Pass one more event on."""
        for view in self._views:
            view.show(event)

    def finish(self) -> None:
        """Finish all of them, the first one first, whatever goes wrong with one.

        Raises:
            LadeError: with what went wrong with each.
        """
        failures: list[LadeError] = []

        def finish(view: View) -> None:
            try:
                view.finish()
            except LadeError as error:
                failures.append(error)

        with contextlib.ExitStack() as stack:
            for view in reversed(self._views):
                stack.callback(finish, view)
        if failures:
            raise LadeError("; ".join(map(str, failures)))
