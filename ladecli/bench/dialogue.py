"""The prompts of a benchmark: conversations of a suite, and passages of an exact length."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..conversation import Conversation
from ..decoder.errors import PromptError
from ..errors import UsageError

if TYPE_CHECKING:
    from ..session import Session
    from ..suites import Row

MODULES = ("argparse", "statistics", "textwrap", "tarfile", "mailbox", "difflib", "configparser")
"""Their source is a long text that every machine has, and repeats itself as texts do."""


class Dialogue:
    """One row, held with a model turn by turn.

    Args:
        session: the model at work.
        row: what the user says.
        template: whether the model's chat template is applied.
        system: the system message, if there is one.
        new_tokens: of an answer, for which the context must have room.

    Attributes:
        id, category: of the row.
        shared: always False: every method reads the prompts anew.
        cut: why the conversation ended before one of its turns; None where it did not.
    """

    shared = False

    def __init__(
        self,
        session: Session,
        row: Row,
        template: bool,
        system: str | None,
        new_tokens: int = 1,
    ) -> None:
        self.id = row.id
        self.category = row.category
        self.cut: str | None = None
        self._session = session
        self._row = row
        self._template = template
        self._system = system
        self._new_tokens = new_tokens

    def hold(self, answer: Callable[[int, list[int]], str]) -> None:
        """Hold the conversation, up to a turn that the context has no room for.

        Args:
            answer: from the number of the turn, from 1 on, and the ids of its prompt to the
                text of the reply.
        """
        said = Conversation(self._system)
        for number, text in enumerate(self._row.turns, start=1):
            said = said.asked(text)
            try:
                ids = self._checked(said)
            except (UsageError, PromptError) as error:
                which = f"turn {number}: " if len(self._row.turns) > 1 else ""
                self.cut = f"{which}{error}"
                return
            said = said.answered(answer(number, ids))

    def first(self) -> list[int]:
        """The ids of the first prompt.

        Raises:
            UsageError, PromptError: it is empty or too long, or the template refuses it.
        """
        return self._checked(Conversation(self._system).asked(self._row.turns[0]))

    @property
    def room(self) -> int:
        """Tokens of the longest prompt and its answer, or a few more.

        Some answers have more tokens than they were made of, once they are part of a prompt.
        """
        *before, last = self._row.turns
        said = Conversation(self._system)
        for text in before:
            said = said.asked(text).answered("")
        most = self._session.decoder.max_context
        try:
            prompt = len(self._encoded(said.asked(last)))
        except UsageError:  # the template wants answers, or no second turn
            return most
        return min(prompt + (len(before) + 1) * self._new_tokens, most)

    def _checked(self, said: Conversation) -> list[int]:
        ids, room = self._encoded(said), self._session.decoder.max_context
        if len(ids) + self._new_tokens > room:
            raise PromptError(
                f"the prompt has {len(ids):,} tokens, which with an answer of {self._new_tokens:,}"
                f" is more than the context's {room:,}"
            )
        self._session.decoder.check_prompt(ids)
        return ids

    def _encoded(self, said: Conversation) -> list[int]:
        if self._template:
            return self._session.encode_chat(said.for_template())
        return self._session.encode(said.as_text())


class Passage:
    """A prompt of an exact number of tokens, cut out of a longer text.

    Attributes:
        id: "4096/1".
        category: the length.
        shared: always True: the prompt is read once, which takes as long for all methods.
        cut: always None.
        room: tokens of the prompt and its answer.
    """

    shared = True
    cut: str | None = None

    def __init__(self, number: int, ids: Sequence[int], longest: int, new_tokens: int = 1) -> None:
        self.room = len(ids) + new_tokens
        self.category = str(len(ids))
        self.id = f"{self.category}/{number}"
        self._ids = list(ids)
        self._longest = longest

    def first(self) -> list[int]:
        """The ids of the prompt.

        Raises:
            PromptError: the context has no room for them.
        """
        if len(self._ids) > self._longest:
            raise PromptError(f"the context has room for {self._longest:,} tokens of a prompt")
        return self._ids

    def hold(self, answer: Callable[[int, list[int]], str]) -> None:
        """The only turn; `answer` as for `Dialogue.hold`."""
        answer(1, self._ids)


Task: TypeAlias = Dialogue | Passage
"""What every method is asked in turn."""


def passages(session: Session, lengths: Sequence[int], each: int, new_tokens: int) -> list[Passage]:
    """`each` passages of every length, which begin at different places of the text.

    Args:
        session: whose tokenizer counts.
        lengths: in tokens.
        each: number of passages of a length.
        new_tokens: of an answer, for which the context must have room.
    """
    ids = session.encode("\n".join(inspect.getsource(importlib.import_module(m)) for m in MODULES))
    # Where a passage begins does not depend on its length.
    starts = [number * len(ids) // each for number in range(each)]
    while len(ids) < starts[-1] + max(lengths):
        ids = ids + ids
    longest = session.decoder.max_context - new_tokens
    return [
        Passage(number, ids[start : start + length], longest, new_tokens)
        for length in sorted(lengths)
        for number, start in enumerate(starts, start=1)
    ]
