"""What methods are asked: conversations of a suite, or passages of an exact length."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ..decoder.errors import PromptError
from ..errors import UsageError
from ..session.conversation import Conversation
from ..suites import row_notices
from .result import Skipped

if TYPE_CHECKING:
    from ..options.answer import TemplateChoice
    from ..options.commands import MeasureRequest
    from ..session.session import Session
    from ..session.text import Part
    from ..suites import Row
    from ..view.terminal import Terminal

MODULES = ("argparse", "statistics", "textwrap", "tarfile", "mailbox", "difflib", "configparser")
"""Their source is a long text that every machine has, and repeats itself as texts do."""
MARKUP = 32
"""Tokens that a chat template adds to a turn, at most, where room is estimated."""


class Dialogue:
    """One row of a suite, held turn by turn; the context must have room for `new_tokens` more.

    `cut` is why the conversation ended before one of its turns; None where it did not.
    """

    def __init__(
        self,
        session: Session,
        row: Row,
        template: TemplateChoice | None,
        system: str | None,
        new_tokens: int = 1,
    ) -> None:
        self.id, self.category = row.id, row.category
        self.cut: str | None = None
        self._session, self._turns, self._template = session, row.turns, template
        self._start, self._new_tokens = row.begun(system), new_tokens

    def hold(self, answer: Callable[[int, list[int]], Part | None]) -> None:
        """Hold the conversation, up to a turn that the context has no room for.

        `answer` takes the number of the turn, from 1 on, and the ids of its prompt, and returns
        what the model said; None ends the conversation.
        """
        talk = self._start
        for number, text in enumerate(self._turns, start=1):
            talk = talk.asked(text)
            try:
                ids = self._encoded(talk)
            except (UsageError, PromptError) as error:
                which = f"turn {number}: " if len(self._turns) > 1 else ""
                self.cut = f"{which}{error}"
                return
            said = answer(number, ids)
            if said is None:
                return
            talk = talk.answered(said.text, reasoning=said.reasoning)

    def first(self) -> list[int]:
        """The ids of the first prompt.

        Raises:
            UsageError, PromptError: it is empty or too long, or the template refuses it.
        """
        return self._encoded(self._start.asked(self._turns[0]))

    @property
    def room(self) -> int:
        """Estimated tokens of the longest prompt and its answer."""
        later = sum(len(self._session.encode(text)) + MARKUP for text in self._turns[1:])
        needed = len(self.first()) + later + len(self._turns) * self._new_tokens
        return min(needed, self._session.decoder.max_context)

    def _encoded(self, talk: Conversation) -> list[int]:
        ids = self._session.encode_talk(talk, self._template)
        room = self._session.decoder.max_context
        # That there is no room for a single token is the decoder's to say.
        if self._new_tokens > max(1, room - len(ids)):
            raise PromptError(
                f"the prompt has {len(ids):,} tokens, which with an answer of {self._new_tokens:,}"
                f" is more than the context's {room:,}"
            )
        self._session.decoder.check_prompt(ids)
        return ids


class Passage:
    """A prompt of an exact number of tokens, which is its category; the id is "4096/1"."""

    cut: str | None = None

    def __init__(self, number: int, ids: list[int], new_tokens: int, context: int) -> None:
        self.category = str(len(ids))
        self.id = f"{self.category}/{number}"
        self.room = len(ids) + new_tokens
        self._ids, self._context = ids, context

    def first(self) -> list[int]:
        """The ids of the prompt; `PromptError` where the context has no room for them."""
        if self.room > self._context:
            raise PromptError(f"with its answer it has more than the context's {self._context:,}")
        return self._ids

    def hold(self, answer: Callable[[int, list[int]], Part]) -> None:
        """The only turn; `answer` as for `Dialogue.hold`."""
        answer(1, self._ids)


BenchTask: TypeAlias = Dialogue | Passage
_Task = TypeVar("_Task", bound=BenchTask)


def make_dialogues(
    session: Session,
    request: MeasureRequest,
    rows: Sequence[Row],
    terminal: Terminal,
    new_tokens: int = 1,
) -> tuple[list[Dialogue], list[Skipped]]:
    """The rows as a request has them asked, and those that cannot be read; says what is special
    about them."""
    template = request.template(session.has_template)
    found = [Dialogue(session, row, template, request.system, new_tokens) for row in rows]
    answerable, skipped = split_usable(found)
    terminal.say(*row_notices(rows, request.typed_system), *session.new_notices())
    return answerable, skipped


def make_passages(
    session: Session, lengths: Sequence[int], each: int, new_tokens: int
) -> list[BenchTask]:
    """`each` passages of every length in tokens, which begin at different places of one text."""
    ids = session.encode("\n".join(inspect.getsource(importlib.import_module(m)) for m in MODULES))
    # Where a passage begins does not depend on its length.
    starts = [number * len(ids) // each for number in range(each)]
    while len(ids) < starts[-1] + max(lengths):
        ids = ids + ids
    return [
        Passage(number, ids[start : start + length], new_tokens, session.decoder.max_context)
        for length in sorted(lengths)
        for number, start in enumerate(starts, start=1)
    ]


def split_usable(tasks: Sequence[_Task]) -> tuple[list[_Task], list[Skipped]]:
    """Tasks whose first prompt can be read, and the others with the reason.

    Raises:
        UsageError: there is none of the former.
    """
    found: list[_Task] = []
    skipped: list[Skipped] = []
    for task in tasks:
        try:
            task.first()
        except (UsageError, PromptError) as error:  # noqa: PERF203
            skipped.append(Skipped(task.id, str(error)))
        else:
            found.append(task)
    if not found:
        raise UsageError(
            f"no prompt can be answered: {skipped[0].row}: {skipped[0].reason}; allow fewer"
            " new tokens, raise --max-context, or give shorter prompts"
        )
    return found, skipped
