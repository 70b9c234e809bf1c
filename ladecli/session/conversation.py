"""A conversation as a value, and as a file: its messages, and those that the model still sees."""

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
"""Room that a reply needs, or an eighth of the context if that is less."""
FREED = 4
"""Once messages must be dropped, one part in this many of the context becomes free."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of one side."""

    role: Role
    content: str
    interrupted: bool = False  # whether Ctrl-C, or want of memory, cut it short
    reasoning: str | None = None  # what a model thought before it said the content

    def for_template(self) -> dict[str, str]:
        """Return the message as chat templates take it; they decide about old reasoning."""
        thought = {} if self.reasoning is None else {"reasoning": self.reasoning}
        return {"role": self.role, "content": self.content, **thought}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order; every change makes a new conversation, so none can be half done."""

    system: str | None = None  # the system message, if there is one
    messages: tuple[Message, ...] = ()  # all of them, the oldest first
    forgotten: int = 0  # the number of oldest messages that the model no longer sees

    @property
    def seen(self) -> tuple[Message, ...]:
        """The messages that the model sees."""
        return self.messages[self.forgotten :]

    @property
    def last_question(self) -> str:
        """The user's last message; errors as for `without_reply`."""
        return self.without_reply().messages[-1].content

    def asked(self, text: str) -> Conversation:
        """Return it with one more message of the user."""
        return replace(self, messages=(*self.messages, Message("user", text)))

    def answered(
        self, text: str, interrupted: bool = False, reasoning: str | None = None
    ) -> Conversation:
        """Return it with a reply of the model, and the reasoning before that."""
        reply = Message("assistant", text, interrupted, reasoning or None)
        return replace(self, messages=(*self.messages, reply))

    def without_reply(self) -> Conversation:
        """Return it up to the user's last message, which waits for a reply again.

        Raises:
            UsageError: there is none.
        """
        kept = len(self.messages)
        while kept and self.messages[kept - 1].role == "assistant":
            kept -= 1
        if not kept:
            raise UsageError("there is no message yet; send one first")
        return self._cut(kept)

    def without_exchange(self) -> Conversation:
        """Return it without the user's last message and the reply to it; errors as for
        `without_reply`."""
        return self._cut(len(self.without_reply().messages) - 1)

    def _cut(self, kept: int) -> Conversation:
        # When nothing else is left, there is room again for what was forgotten.
        forgotten = self.forgotten if self.forgotten < kept else 0
        return replace(self, messages=self.messages[:kept], forgotten=forgotten)

    def with_room(self, count: Callable[[Conversation], int], limit: int) -> Conversation | None:
        """Return the conversation itself if it leaves room for a reply, else one that forgets more.

        The model has to read the rest again after that, so it frees room for several replies.

        Args:
            count: tokens of a conversation.
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
        """Return the messages that the model sees, as chat templates take them."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *(message.for_template() for message in self.seen)]

    def as_markdown(self, model: str) -> str:
        """Return all messages as a page for people."""
        parts = [f"# A chat with {model}"]
        if self.system is not None:
            parts.append(f"## System\n\n{self.system}")
        names = {"user": "You", "assistant": model}
        parts += [f"## {names[m.role]}\n\n{m.content}" for m in self.messages]
        return "\n\n".join(parts) + "\n"

    def as_json(self, model: str) -> str:
        """Return the text of its chat file; `model` is a name for people."""
        return ChatFile(model=model, **asdict(self)).model_dump_json(indent=1) + "\n"


def as_parts(content: Any) -> Any:
    """Return a text as a list of one typed part, for a field of messages in OpenAI's form."""
    if not isinstance(content, str | list | tuple):
        raise ValueError("it must be text, or a list of parts")
    return [{"type": "text", "text": content}] if isinstance(content, str) else [*content]


class TextPart(BaseModel):
    """A part of a content; only text can be read."""

    type: Literal["text"]
    text: str


class Function(BaseModel):
    """The function of a call, with its arguments as an object, or as the JSON of one."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str | dict[str, Any] = "{}"


class Call(BaseModel):
    """A call of a tool, in an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class GivenMessage(BaseModel):
    """A message in OpenAI's form, of a file or a program; other keys go to the chat template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[TextPart], BeforeValidator(as_parts)] | None = None
    reasoning: str | None = Field(None, validation_alias=AliasChoices(*REASONING_KEYS))
    tool_calls: list[Call] | None = None
    function_call: None = None  # an older form of them, which is refused
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> GivenMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError("its content must be text, or a list of parts")
        return self

    @property
    def text(self) -> str:
        """The whole content."""
        return "".join(part.text for part in self.content or ())


def for_template(messages: Sequence[GivenMessage]) -> list[dict[str, Any]]:
    """Return messages as chat templates take them; results of tools get the names of those."""
    names: dict[str | None, str] = {}  # of the tools that were called, by the ids of the calls
    shown = []
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
        shown.append({key: value for key, value in values.items() if value is not None})
    return shown


class ChatFile(BaseModel):
    """The JSON of a chat that was saved or kept."""

    format: Literal["lade-chat"] = "lade-chat"
    version: Literal[1] = 1
    model: str = ""  # that it was held with last, as it was named
    system: str | None = None
    forgotten: NonNegativeInt = 0
    messages: tuple[Message, ...]

    @property
    def conversation(self) -> Conversation:
        """The conversation in it."""
        return Conversation(self.system, self.messages, min(self.forgotten, len(self.messages)))


def from_json(text: str) -> ChatFile:
    """Read the text of a chat file.

    Raises:
        ValueError: it is no chat file of this version; the message says what is wrong.
    """
    try:
        return ChatFile.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(flaw(error)) from None
