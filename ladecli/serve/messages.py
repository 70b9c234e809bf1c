"""Anthropic's Messages: requests become conversations, answers become blocks and events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from .forms import event, new_id
from .schema import APIError, ChatBody, RequestObject
from .worker import AnswerDelta

NAMES = {"name": "name", "description": "description", "input_schema": "parameters"}
"""Fields of a tool, with OpenAI's names for them."""
CHOICES = {"any": "required", "none": "none", "auto": "auto"}
"""Types of `tool_choice`, with OpenAI's names for them."""
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""OpenAI's finish reasons, with Anthropic's names for them."""


class MessagesBody(RequestObject):
    """The body of /v1/messages."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None

    def as_completion(self) -> ChatBody:
        """Return the request as one of /v1/chat/completions.

        Raises:
            ValidationError, APIError: it cannot be expressed as one.
        """
        tools = [
            {
                "type": "function",
                "function": {NAMES[key]: tool[key] for key in NAMES if key in tool},
            }
            for tool in self.tools or ()
            if "input_schema" in tool  # others run on Anthropic's own servers
        ]
        choice = self.tool_choice or {}
        tool_choice: Any = CHOICES.get(choice.get("type", ""))
        if choice.get("type") == "tool":
            tool_choice = {"type": "function", "function": {"name": choice.get("name")}}
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [part for message in self.messages for part in _messages(message)]
        fields: dict[str, Any] = {
            "messages": [*system, *messages],
            "tools": tools,
            "tool_choice": tool_choice,
            "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
            "stop": self.stop_sequences,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stream": self.stream,
        }
        return ChatBody.model_validate(fields)


def _messages(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message in OpenAI's form, in which results of tools are separate messages."""
    content, role = message.get("content"), message.get("role")
    if not isinstance(content, list):
        yield {"role": role, "content": content}
        return
    texts, calls, reasoning = [], [], ""
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            texts.append({"type": "text", "text": block.get("text")})
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input") or {}}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            result = block.get("content") or ""
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
        elif kind == "thinking":
            reasoning += block.get("thinking") or ""
        elif kind != "redacted_thinking":
            raise APIError(400, f"messages: blocks of the type {kind} are not known here")
    if texts or calls:
        yield {
            "role": role,
            "content": texts or None,
            "reasoning": reasoning,
            "tool_calls": calls,
        }


class MessagesForm:
    """An answer of /v1/messages.

    Args:
        model: the name of the model.
        body: the request.
    """

    def __init__(self, model: str, body: ChatBody) -> None:
        self._about = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}
        self._blocks: list[dict[str, Any]] = []  # so far
        self._open: str | None = None  # the type of the last one, if it is incomplete

    def whole(self, delta: AnswerDelta) -> dict[str, Any]:
        """See `ChatForm.whole`."""
        for _ in self.add(delta):
            pass
        content = self._blocks or [{"type": "text", "text": ""}]
        return self._about | {"content": content} | _ending(delta) | {"usage": _usage(delta)}

    def begin(self) -> Iterator[str]:
        """See `ChatForm.begin`."""
        message: dict[str, Any] = {**self._about, "content": [], **_ending(AnswerDelta())}
        message |= {"stop_reason": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        yield _event("message_start", message=message)

    def add(self, delta: AnswerDelta) -> Iterator[str]:
        """See `ChatForm.add`."""
        for kind, text in (("thinking", delta.reasoning), ("text", delta.text)):
            if text:
                if self._open != kind:
                    signature = {"signature": ""} if kind == "thinking" else {}
                    yield from self._begun({"type": kind, kind: "", **signature})
                self._blocks[-1][kind] += text
                yield self._delta({"type": f"{kind}_delta", kind: text})
        for call in delta.calls:
            block = {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": {}}
            yield from self._begun(block)
            block["input"] = call.arguments
            yield self._delta({"type": "input_json_delta", "partial_json": call.arguments_text})

    def end(self, delta: AnswerDelta) -> Iterator[str]:
        """See `ChatForm.end`."""
        yield from self._closed()
        yield _event("message_delta", delta=_ending(delta), usage=_usage(delta))
        yield _event("message_stop")

    def failed(self, error: dict[str, Any]) -> str:
        """See `ChatForm.failed`."""
        fields = {"type": error["error"]["type"], "message": error["error"]["message"]}
        return _event("error", error=fields)

    def _begun(self, block: dict[str, Any]) -> Iterator[str]:
        """Yield the event of a new block, after the end of the one before."""
        yield from self._closed()
        self._blocks.append(block)
        self._open = block["type"]
        yield _event("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _delta(self, delta: dict[str, str]) -> str:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _closed(self) -> Iterator[str]:
        """Yield the event that ends the open block."""
        if self._open is not None:
            yield _event("content_block_stop", index=len(self._blocks) - 1)
        self._open = None


def _ending(delta: AnswerDelta) -> dict[str, Any]:
    return {"stop_reason": REASONS.get(delta.finish or "", "end_turn"), "stop_sequence": None}


def _usage(delta: AnswerDelta) -> dict[str, Any]:
    counts = delta.totals["usage"]
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": counts["completion_tokens"],
    }


def _event(kind: str, **content: Any) -> str:
    return event({"type": kind, **content}, kind)
