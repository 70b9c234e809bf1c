"""Steps are handed on while the device is at work on the next one.

Whoever reads a text makes letters of its tokens, looks for its end, and draws it: on a fast GPU
that takes a good part of a step, for which nobody need wait.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from .events import Event, Step

MEANWHILE = None
"""Stands among events where there is time for what was held back."""


def told_meanwhile(events: Generator[Event | None]) -> Generator[Event]:
    """Hold each step back until there is time for it, or something else happens.

    The first one is told at once: somebody waits for it, and whoever takes the time of a text from
    its first step to its last begins when nothing of the second one is done.

    Args:
        events: with `MEANWHILE` between them.

    Yields:
        The same events in the same order, without those.
    """
    held: Step | None = None
    first = True
    with closing(events):
        try:
            for event in events:
                if held is not None:
                    step, held = held, None
                    yield step
                if isinstance(event, Step) and not first:
                    held = event
                elif event is not MEANWHILE:
                    first = first and not isinstance(event, Step)
                    yield event
        except Exception:
            # Its tokens are committed, whatever has gone wrong since.
            if held is not None:
                yield held
            raise
        if held is not None:
            yield held
