"""Conversations, immutable: messages, the number of those forgotten, and the chat file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from ..errors import UsageError, flaw
from .chat_template import REASONING_KEYS

Role: TypeAlias = Literal["user", "assistant"]
REPLY_TOKENS = 64
"""Free tokens that a reply needs, or an eighth of the context if that is less."""
FREED = 4
"""If messages must be dropped, one FREED-th of the context becomes free."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the user or of the model."""

    role: Role
    content: str
    interrupted: bool = False  # Ctrl-C, or a lack of memory, cut it short
    reasoning: str | None = None  # the model's reasoning before the content

    def for_template(self) -> dict[str, str]:
        """Return the message for a chat template, which decides about earlier reasoning."""
        thought = {} if self.reasoning is None else {"reasoning": self.reasoning}
        return {"role": self.role, "content": self.content, **thought}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order; every change makes a new conversation, so none can be half-changed."""

    system: str | None = None  # the system message, if there is one
    messages: tuple[Message, ...] = ()  # the oldest first
    forgotten: int = 0  # the number of oldest messages that the model no longer sees

    @property
    def seen(self) -> tuple[Message, ...]:
        """The messages that the model sees."""
        return self.messages[self.forgotten :]

    @property
    def last_question(self) -> str:
        """The user's last message; errors as for `without_reply`."""
        return self.without_reply().messages[-1].content

    def with_question(self, text: str) -> Conversation:
        """Return the conversation with one more message of the user."""
        return replace(self, messages=(*self.messages, Message("user", text)))

    def with_answer(
        self, text: str, interrupted: bool = False, reasoning: str | None = None
    ) -> Conversation:
        """Return the conversation with a reply of the model, and the reasoning before it."""
        reply = Message("assistant", text, interrupted, reasoning or None)
        return replace(self, messages=(*self.messages, reply))

    def without_reply(self) -> Conversation:
        """Return the conversation up to the user's last message, without the reply to it.

        Raises:
            UsageError: there is no message of the user.
        """
        count = len(self.messages)
        while count and self.messages[count - 1].role == "assistant":
            count -= 1
        if not count:
            raise UsageError("there is no message yet; send one first")
        return self._cut(count)

    def without_exchange(self) -> Conversation:
        """Return the conversation without the user's last message and the reply to it; errors as
        for `without_reply`."""
        return self._cut(len(self.without_reply().messages) - 1)

    def _cut(self, count: int) -> Conversation:
        # If only forgotten messages are left, there is room for them again.
        forgotten = self.forgotten if self.forgotten < count else 0
        return replace(self, messages=self.messages[:count], forgotten=forgotten)

    def with_room(self, count: Callable[[Conversation], int], limit: int) -> Conversation | None:
        """Return the conversation itself if it leaves room for a reply, else one that forgets more.

        Forgetting frees room for several replies, because the model must read the rest again.

        Args:
            count: returns the number of tokens of a conversation.
            limit: tokens of the context.

        Returns:
            None if the last message is too long by itself.
        """
        needed = max(min(REPLY_TOKENS, limit // 8), 1)
        if count(self) + needed <= limit:
            return self
        fitting: Conversation | None = None
        for number, message in enumerate(self.messages):
            if message.role == "user" and number > self.forgotten:
                shorter = replace(self, forgotten=number)
                room = limit - count(shorter)
                if room >= needed:
                    fitting = shorter
                if room >= limit // FREED:
                    break
        return fitting

    def for_template(self) -> list[dict[str, str]]:
        """Return the messages that the model sees, for a chat template."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *(message.for_template() for message in self.seen)]

    def as_markdown(self, model: str) -> str:
        """Return all messages as a Markdown page."""
        parts = [f"# A chat with {model}"]
        if self.system is not None:
            parts.append(f"## System\n\n{self.system}")
        names = {"user": "You", "assistant": model}
        parts += [f"## {names[m.role]}\n\n{m.content}" for m in self.messages]
        return "\n\n".join(parts) + "\n"

    def as_json(self, model: str) -> str:
        """Return the text of the chat file; `model` is the model's display name."""
        return ChatFile(model=model, **asdict(self)).model_dump_json(indent=1) + "\n"


def as_parts(content: Any) -> Any:
    """Return a text as a list of one typed part, for a field of messages in OpenAI's form."""
    if not isinstance(content, str | list | tuple):
        raise ValueError("it must be text, or a list of parts")
    return [{"type": "text", "text": content}] if isinstance(content, str) else [*content]


class TextPart(BaseModel):
    """A content part in OpenAI's form; only text is supported."""

    type: Literal["text"]
    text: str


class Function(BaseModel):
    """The function of a call, with its arguments as an object or as JSON."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str | dict[str, Any] = "{}"


class Call(BaseModel):
    """A call of a tool, in an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class OpenAIMessage(BaseModel):
    """A message in OpenAI's form, from a file or a program; other keys go to the chat template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[TextPart], BeforeValidator(as_parts)] | None = None
    reasoning: str | None = Field(None, validation_alias=AliasChoices(*REASONING_KEYS))
    tool_calls: list[Call] | None = None
    function_call: None = None  # an older form of `tool_calls`, which is refused
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> OpenAIMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError("its content must be text, or a list of parts")
        return self

    @property
    def text(self) -> str:
        """The whole content."""
        return "".join(part.text for part in self.content or ())


def for_template(messages: Sequence[OpenAIMessage]) -> list[dict[str, Any]]:
    """Return messages for a chat template; results of tools get the names of their tools."""
    names: dict[str | None, str] = {}  # tool names by call id
    converted = []
    for message in messages:
        calls = message.tool_calls or []
        names |= {call.id: call.function.name for call in calls}
        values = {
            **(message.model_extra or {}),
            "role": message.role,
            "content": message.text,
            "reasoning": message.reasoning or None,
            "tool_calls": [call.model_dump(exclude_none=True) for call in calls] or None,
            "tool_call_id": message.tool_call_id,
            "name": message.name or names.get(message.tool_call_id or ""),
        }
        converted.append({key: value for key, value in values.items() if value is not None})
    return converted


class ChatFile(BaseModel):
    """The JSON of a saved chat."""

    format: Literal["lade-chat"] = "lade-chat"
    version: Literal[1] = 1
    model: str = ""  # the name of the model that gave the last reply
    system: str | None = None
    forgotten: NonNegativeInt = 0
    messages: tuple[Message, ...]

    @property
    def conversation(self) -> Conversation:
        """The conversation in the file."""
        return Conversation(self.system, self.messages, min(self.forgotten, len(self.messages)))


def from_json(text: str) -> ChatFile:
    """Read the text of a chat file.

    Raises:
        ValueError: the text is not a chat file of this version; the message says why.
    """
    try:
        return ChatFile.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(flaw(error)) from None
