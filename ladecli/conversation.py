"""A conversation as a value: what was said, and what of it the model still sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said.

    Attributes:
        role: user or assistant.
        content: the text.
        interrupted: whether Ctrl-C, or want of memory, cut it short.
    """

    role: Role
    content: str
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order; every change makes a new conversation, so none can be half done.

    Attributes:
        system: the system message, if there is one.
        messages: all that was said.
        forgotten: how many of them, from the oldest on, the model does not see any more.
    """

    system: str | None = None
    messages: tuple[Message, ...] = ()
    forgotten: int = 0

    @property
    def seen(self) -> tuple[Message, ...]:
        """The messages that the model sees."""
        return self.messages[self.forgotten :]

    @property
    def waits_for_reply(self) -> bool:
        """Whether the user spoke last."""
        return bool(self.messages) and self.messages[-1].role == "user"

    @property
    def last_question(self) -> str | None:
        """What the user said last."""
        return next((m.content for m in reversed(self.messages) if m.role == "user"), None)

    def asked(self, text: str) -> Conversation:
        """With a message of the user."""
        return replace(self, messages=(*self.messages, Message("user", text)))

    def answered(self, text: str, interrupted: bool = False) -> Conversation:
        """With a reply of the model."""
        reply = Message("assistant", text, interrupted)
        return replace(self, messages=(*self.messages, reply))

    def without_reply(self) -> Conversation:
        """Up to the last message of the user, which waits for a reply again."""
        kept = len(self.messages)
        while kept and self.messages[kept - 1].role == "assistant":
            kept -= 1
        return self._cut(kept)

    def without_exchange(self) -> Conversation:
        """Without the last message of the user and what followed it."""
        kept = len(self.without_reply().messages)
        return self._cut(max(kept - 1, 0))

    def without_oldest(self) -> Conversation | None:
        """One exchange more forgotten, from the oldest on; None if only the last is left."""
        turns = [i for i, m in enumerate(self.messages) if m.role == "user" and i > self.forgotten]
        return replace(self, forgotten=turns[0]) if turns else None

    def _cut(self, kept: int) -> Conversation:
        # When nothing else is left, there is room again for what was forgotten.
        forgotten = self.forgotten if self.forgotten < kept else 0
        return replace(self, messages=self.messages[:kept], forgotten=forgotten)

    def for_template(self) -> list[dict[str, str]]:
        """What the model sees, as chat templates want it."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *({"role": m.role, "content": m.content} for m in self.seen)]

    def as_text(self) -> str:
        """What the model sees, one message a line: for models without a template."""
        return "\n".join(message["content"] for message in self.for_template())
