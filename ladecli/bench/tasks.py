"""The tasks of a measurement: conversations of a suite, or passages of an exact length."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ..decoder.errors import PromptError
from ..errors import UsageError
from ..session.dialogue import MORE_ROOM, Dialogue
from ..suites import row_notices
from .result import SkippedRow

if TYPE_CHECKING:
    from ..options.commands import MeasureRequest
    from ..session.dialogue import Row
    from ..session.session import Session
    from ..session.text import TextDelta
    from ..view.terminal import Terminal

MODULES = ("argparse", "statistics", "textwrap", "tarfile", "mailbox", "difflib", "configparser")
"""Modules whose source is a long and repetitive text that every machine has."""


class Passage:
    """A prompt of an exact number of tokens, which is its category; the id is "4096/1"."""

    cut: str | None = None

    def __init__(self, number: int, ids: list[int], new_tokens: int, context: int) -> None:
        self.category = str(len(ids))
        self.id = f"{self.category}/{number}"
        self.room = len(ids) + new_tokens
        self._ids, self._context = ids, context

    def first(self) -> list[int]:
        """Return the ids of the prompt; `PromptError` if they do not fit into the context."""
        if self.room > self._context:
            raise PromptError(
                f"with its answer it has more than the context's {self._context:,}; {MORE_ROOM}"
            )
        return self._ids

    def hold(self, answer: Callable[[int, list[int]], TextDelta]) -> None:
        """Run the only turn; see `Dialogue.hold`."""
        answer(1, self._ids)


BenchTask: TypeAlias = Dialogue | Passage
_Task = TypeVar("_Task", bound=BenchTask)


def make_dialogues(
    session: Session,
    request: MeasureRequest,
    rows: Sequence[Row],
    terminal: Terminal,
    new_tokens: int = 1,
) -> tuple[list[Dialogue], list[SkippedRow]]:
    """Return the dialogues of rows and the unusable rows, and print notices about them."""
    template = request.template(session.has_template)
    dialogues = [Dialogue(session, row, request.system, template, new_tokens) for row in rows]
    usable = split_usable(dialogues)
    terminal.say(*row_notices(rows, request.typed_system), *session.new_notices())
    return usable


def make_passages(
    session: Session, lengths: Sequence[int], count: int, new_tokens: int
) -> list[BenchTask]:
    """Return `count` passages of every length in tokens, from different positions of one text."""
    ids = session.encode("\n".join(inspect.getsource(importlib.import_module(m)) for m in MODULES))
    # The start of a passage does not depend on its length.
    starts = [number * len(ids) // count for number in range(count)]
    while len(ids) < starts[-1] + max(lengths):
        ids = ids + ids
    return [
        Passage(number, ids[start : start + length], new_tokens, session.decoder.max_context)
        for length in sorted(lengths)
        for number, start in enumerate(starts, start=1)
    ]


def split_usable(tasks: Sequence[_Task]) -> tuple[list[_Task], list[SkippedRow]]:
    """Split tasks into those whose first prompt is valid, and the others with the reason.

    Raises:
        UsageError: no prompt is valid.
    """
    usable: list[_Task] = []
    skipped: list[SkippedRow] = []
    for task in tasks:
        try:
            task.first()
        except (UsageError, PromptError) as error:  # noqa: PERF203
            skipped.append(SkippedRow(task.id, str(error)))
        else:
            usable.append(task)
    if not usable:
        raise UsageError(f"no prompt can be answered: {skipped[0].row}: {skipped[0].reason}")
    return usable, skipped
