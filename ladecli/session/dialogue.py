"""A row of a suite, and the conversation that is held by it: the user's side is known before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..decoder.errors import PromptError
from ..errors import UsageError
from .conversation import Conversation

if TYPE_CHECKING:
    from ..options.answer import TemplateChoice
    from .session import Session
    from .text import Part

MARKUP = 32
"""Tokens that a chat template adds to a turn, at most, where room is estimated."""
MORE_ROOM = "allow fewer new tokens, raise --max-context, or give shorter prompts"


@dataclass(frozen=True, slots=True)
class Row:
    """What was said before, and what the user will say."""

    id: str  # unique in a suite
    category: str
    turns: tuple[str, ...]  # the user's texts, at least one and none blank
    start: Conversation = field(default_factory=Conversation)  # what was said before

    @property
    def is_conversation(self) -> bool:
        """Whether there is more to it than one text to answer, or to continue."""
        return len(self.turns) > 1 or bool(self.start.for_template())

    def begun(self, system: str | None) -> Conversation:
        """The conversation before the first turn; `system` is for rows without such a message."""
        return self.start if self.start.system is not None else replace(self.start, system=system)


class Dialogue:
    """One conversation, held turn by turn.

    Args:
        session: the model at work.
        row: what was said before, and the user's turns.
        system: message for a row that has none of its own.
        template: puts it into words; None for texts to continue.
        new_tokens: for which the context must have room after each turn.

    Attributes:
        cut: why it ended before one of its turns; None where it did not.
    """

    def __init__(
        self,
        session: Session,
        row: Row,
        system: str | None,
        template: TemplateChoice | None,
        new_tokens: int = 1,
    ) -> None:
        self.id, self.category = row.id, row.category
        self.cut: str | None = None
        self._session, self._turns, self._start = session, row.turns, row.begun(system)
        self._template, self._new_tokens = template, new_tokens

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
                f" is more than the context's {room:,}; {MORE_ROOM}"
            )
        self._session.decoder.check_prompt(ids)
        return ids
