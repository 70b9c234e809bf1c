"""Where the time goes: answers beside the measured ones, with a clock on every part of a step."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from .. import suites
from ..errors import told
from ..events import Ended, Piece, TextStep
from ..profiles.derive import work
from .contenders import Own
from .measure import Stopped, Task
from .result import Failure, TimeSpent

if TYPE_CHECKING:
    from ..live import LiveView
    from ..session import Session

TASKS = 6
"""At most so many, of different categories where there are."""
_MARKDOWN = ("# Head\n", "**bold** `code` *and*\n", "- item\n", "```python\n", "x = 1\n", "```\n")
"""What text may have in it, each of which is drawn in its own way."""


def time_spent(
    session: Session,
    players: Sequence[Own],
    tasks: Sequence[Task],
    cancelled: Callable[[], bool],
    progress: Callable[[int], None] = lambda _accounts: None,
) -> tuple[list[TimeSpent], list[Failure]]:
    """Where the time of our own contenders goes.

    Args:
        session: the model at work.
        players: the contenders.
        tasks: of which the first turn is answered.
        cancelled: asked after every step; true leaves out what is not finished.
        progress: called with how many more accounts there are.

    Returns:
        Accounts, and why others are missing.
    """
    some = suites.some(tasks, TASKS)
    _warm_up()
    found: list[TimeSpent | Failure] = []
    with contextlib.suppress(Stopped):
        for player in players:
            account = _account(session, player, some, cancelled)
            found.append(account)
            progress(1)
    failures = [each for each in found if isinstance(each, Failure)]
    return [each for each in found if isinstance(each, TimeSpent)], failures


def _account(
    session: Session, player: Own, tasks: Sequence[Task], cancelled: Callable[[], bool]
) -> TimeSpent | Failure:
    try:
        return _Account(session, player).of(tasks, cancelled)
    except Stopped:
        raise
    except Exception as error:  # what was measured is worth more than this
        return Failure(player.contender.name, "", f"where its time goes: {told(error)}")


class _Account:
    """Adds up what the steps of one contender take."""

    def __init__(self, session: Session, player: Own) -> None:
        self._session = session
        self._player = player
        self._seconds: dict[str, float] = defaultdict(float)
        self._widths: list[int] = []
        self._contexts: list[int] = []

    def of(self, tasks: Sequence[Task], cancelled: Callable[[], bool]) -> TimeSpent:
        """Answer the first turn of every task, and sum up."""
        for task in tasks:
            self._player.begin(keep=task.shared)
            self._answer(task.first(), cancelled)
        steps = len(self._widths)
        width = fmean(self._widths) if steps else 0.0
        context = fmean(self._contexts) if steps else 0.0
        part = self._session.loaded.part
        # Step by step: one of two tokens may take twice the work of one, and one of 1.4 is none.
        needed = [work(part, *each) for each in zip(self._widths, self._contexts, strict=True)]
        return TimeSpent(
            contender=self._player.contender.name,
            steps=steps,
            seconds={part: seconds / max(steps, 1) for part, seconds in self._seconds.items()},
            width=width,
            context=context,
            read_bytes=fmean(each.read_bytes for each in needed) if steps else 0.0,
            operations=fmean(each.operations for each in needed) if steps else 0.0,
        )

    def _answer(self, prompt: list[int], cancelled: Callable[[], bool]) -> None:
        view, length, first = _view(), len(prompt), True
        for event in self._session.stream(prompt, self._player.settings, cancelled):
            began = time.perf_counter()
            view.show(event)
            drawing = time.perf_counter() - began
            if not isinstance(event, TextStep):
                continue
            # The first step reads the prompt's end.
            if not first:
                for part, seconds in dataclasses.asdict(event.times).items() if event.times else ():
                    self._seconds[part] += seconds
                self._seconds["view"] += drawing
                self._widths.append(event.width)
                self._contexts.append(length)
            length, first = length + len(event.token_ids), False
        view.finish()
        if cancelled():
            raise Stopped


def _warm_up() -> None:
    """Draw once: what is made then for good must not be charged to whoever comes first."""
    view = _view()
    for number, text in enumerate((*(f"word {n}\n" for n in range(20)), *_MARKDOWN)):
        view.show(TextStep((Piece(text),), (number,), 1, 0, 0.01))
    view.show(Ended("length"))
    view.finish()


def _view() -> LiveView:
    """What a chat shows, on a screen that nobody sees."""
    from rich.console import Console

    from ..live import LiveView
    from ..markdown import MarkdownRenderer
    from ..visualize import ViewState

    console = Console(
        file=io.StringIO(), force_terminal=True, color_system="256", width=80, height=24
    )
    return LiveView(console, ViewState(), MarkdownRenderer(markdown=True, colours=True))
