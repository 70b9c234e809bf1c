"""Rows of a suite as conversations of a model: prompts turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..conversation import Conversation
from ..decoder.errors import PromptError
from ..errors import UsageError

if TYPE_CHECKING:
    from ..session import Session
    from ..suites import Row


class Dialogue:
    """One row, held with a model turn by turn.

    Args:
        session: the model at work.
        row: what the user says.
        template: whether the model's chat template frames what is said; else it is one text.
        system: the system message, if there is one.
        new_tokens: of an answer, for which the context must have room.

    Attributes:
        id, category: of the row.
        shared: always false: everybody reads the prompts anew.
        identity: what is said, for whoever wants to know whether it is the same.
        cut: why the conversation ended before one of its turns; None where it did not.
    """

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
        self.shared = False
        self._session = session
        self._row = row
        self._template = template
        self._system = system
        self._new_tokens = new_tokens
        self.identity = (row.id, row.category, row.turns)
        self.cut: str | None = None

    def hold(self, answer: Callable[[int, list[int]], str]) -> None:
        """Hold the conversation, up to a turn that cannot be had.

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
        """As many tokens as its longest prompt and the answer will have, or a few more.

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
