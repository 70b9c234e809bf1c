"""A row of a suite, and its conversation: the user's messages are known in advance."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..decoder.errors import PromptError
from ..errors import UsageError
from .conversation import Message

if TYPE_CHECKING:
    from ..options.answer import TemplateChoice
    from .chat_template import ChatMessage
    from .session import Session
    from .text import TextDelta

MARKUP = 32
"""Upper estimate of the tokens that a chat template adds to a turn."""
MORE_ROOM = "allow fewer new tokens, raise --max-context, or give shorter prompts"


@dataclass(frozen=True, slots=True)
class Row:
    """The start of a conversation, and the messages that the user will send."""

    id: str  # unique in a suite
    category: str
    turns: tuple[str, ...] = ()  # the user's texts, none blank
    start: tuple[ChatMessage, ...] = ()  # earlier messages; without turns, these are answered
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the template, such as tools
    suffix: str | None = None  # the text after the answer, for fill-in-the-middle

    @property
    def answers(self) -> int:
        """The number of answers."""
        return max(len(self.turns), 1)

    @property
    def is_conversation(self) -> bool:
        """True if the row is more than one text to answer or to continue."""
        return len(self.start) + len(self.turns) > 1 or bool(self.arguments)

    @property
    def only_for_templates(self) -> list[str]:
        """The names of the fields that would be lost without a chat template."""
        calls = ["tool_calls"] if any("tool_calls" in message for message in self.start) else []
        return [*self.arguments, *calls]

    @property
    def has_system(self) -> bool:
        """True if the row has a system message of its own."""
        return any(message["role"] in ("system", "developer") for message in self.start)

    def begun(self, system: str | None) -> list[ChatMessage]:
        """Return the messages before the first turn; `system` is for rows without a system
        message."""
        if system is None or self.has_system:
            return [*self.start]
        return [{"role": "system", "content": system}, *self.start]


class Dialogue:
    """One conversation, run turn by turn.

    Args:
        session: of the model.
        row: the earlier messages, and the user's turns.
        system: the system message for a row without one.
        template: the chat template; None for texts to continue.
        new_tokens: tokens that must fit into the context after each prompt.

    Attributes:
        template: the chat template, with the row's own arguments.
        cut: the reason why the conversation ended early; None if it did not.
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
        self.template = template
        if template is not None and row.arguments:
            arguments = {**template.arguments, **row.arguments}
            self.template = replace(template, arguments=arguments)
        self._session, self._row, self._new_tokens = session, row, new_tokens
        self._start = row.begun(system)

    def hold(self, answer: Callable[[int, list[int]], TextDelta | None]) -> None:
        """Run the conversation, up to a turn that the context has no room for.

        `answer` takes the number of the turn, starting at 1, and the ids of its prompt, and returns
        the model's answer; None ends the conversation.
        """
        talk = self._start + self._question(0)
        for number in range(1, self._row.answers + 1):
            try:
                ids = self.first() if number == 1 else self._encoded(talk)
            except (UsageError, PromptError) as error:
                which = f"turn {number}: " if self._row.answers > 1 else ""
                self.cut = f"{which}{error}"
                return
            output = answer(number, ids)
            if output is None:
                return
            reply = Message("assistant", output.text, reasoning=output.reasoning or None)
            talk.append(reply.for_template())
            talk += self._question(number)

    def first(self) -> list[int]:
        """Return the ids of the first prompt.

        Raises:
            UsageError, PromptError: it is empty or too long, or the template refuses it.
        """
        return [*self._first]

    @cached_property
    def _first(self) -> array[int]:
        return array("q", self._encoded(self._start + self._question(0)))

    def _question(self, turn: int) -> list[ChatMessage]:
        """Return the user's message of a turn; an empty list after the last turn."""
        return [{"role": "user", "content": text} for text in self._row.turns[turn : turn + 1]]

    @property
    def room(self) -> int:
        """The estimated number of tokens of the longest prompt and its answer."""
        later = sum(len(self._session.encode(text)) + MARKUP for text in self._row.turns[1:])
        needed = len(self.first()) + later + self._row.answers * self._new_tokens
        return min(needed, self._session.decoder.max_context)

    def _encoded(self, talk: list[ChatMessage]) -> list[int]:
        if self.template is None and (names := self._row.only_for_templates):
            raise UsageError(f"{' and '.join(names)} need a chat template; leave --raw out")
        if self._row.suffix is not None:
            ids = self._session.encode(talk[0]["content"], suffix=self._row.suffix)
        else:
            ids = self._session.encode_chat(talk, self.template)
        room = self._session.decoder.max_context
        # `check_prompt` reports a prompt that leaves no room at all.
        if self._new_tokens > max(1, room - len(ids)):
            raise PromptError(
                f"the prompt has {len(ids):,} tokens, which with an answer of {self._new_tokens:,}"
                f" is more than the context's {room:,}; {MORE_ROOM}"
            )
        self._session.decoder.check_prompt(ids)
        return ids
