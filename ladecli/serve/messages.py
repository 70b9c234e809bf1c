"""Anthropic's Messages: their requests as conversations, and answers as their blocks and events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from .forms import event, new_id
from .schema import ChatBody, Refused, RequestObject
from .worker import Part

NAMES = {"name": "name", "description": "description", "input_schema": "parameters"}
"""Fields of a tool, and what OpenAI calls them."""
CHOICES = {"any": "required", "none": "none", "auto": "auto"}
"""Which tools must be called, and what OpenAI calls it."""
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""Why an answer ends."""


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
            ValidationError, Refused: it has no such form.
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
        }
        same = ("max_tokens", "temperature", "top_p", "top_k", "stream")
        fields |= {name: getattr(self, name) for name in same}
        return ChatBody.model_validate(
            {key: value for key, value in fields.items() if value is not None}
        )


def _messages(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message in OpenAI's form: results of tools are messages of their own."""
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
            function = {
                "name": block.get("name"),
                "arguments": json.dumps(block.get("input") or {}),
            }
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            said = block.get("content") or ""
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said}
        elif kind == "thinking":
            reasoning += block.get("thinking") or ""
        elif kind != "redacted_thinking":
            raise Refused(400, f"messages: blocks of the type {kind} are not known here")
    if texts or calls:
        thought = {"reasoning_content": reasoning} if reasoning else {}
        called = {"tool_calls": calls} if calls else {}
        yield {"role": role, "content": texts or None, **called, **thought}


class MessagesForm:
    """An answer of /v1/messages.

    Args:
        model: the name of the model.
        wanted: the request.
    """

    def __init__(self, model: str, wanted: ChatBody) -> None:
        self._about = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}
        self._blocks = 0  # that have begun
        self._open: str | None = None  # the type of the one that is being written

    def whole(self, part: Part) -> dict[str, Any]:
        """See `Form.whole`."""
        content: list[dict[str, Any]] = []
        if part.reasoning:
            content.append({"type": "thinking", "thinking": part.reasoning, "signature": ""})
        if part.text or not part.calls:
            content.append({"type": "text", "text": part.text})
        content += [_block(call.name, call.arguments) for call in part.calls]
        return self._about | {"content": content} | _ending(part) | {"usage": _usage(part)}

    def begin(self) -> Iterator[str]:
        """See `Form.begin`."""
        message: dict[str, Any] = {**self._about, "content": [], **_ending(Part())}
        message |= {"stop_reason": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        yield _event("message_start", message=message)

    def add(self, part: Part) -> Iterator[str]:
        """See `Form.add`."""
        if part.reasoning:
            yield from self._written("thinking", part.reasoning)
        if part.text:
            yield from self._written("text", part.text)
        for call in part.calls:
            yield from self._closed()
            yield from self._begun("tool_use", _block(call.name, {}))
            yield from self._delta("input_json_delta", partial_json=call.arguments_text)

    def end(self, part: Part) -> Iterator[str]:
        """See `Form.end`."""
        yield from self._closed()
        yield _event("message_delta", delta=_ending(part), usage=_usage(part))
        yield _event("message_stop")

    def failed(self, error: dict[str, Any]) -> str:
        """See `Form.failed`."""
        told = {"type": error["error"]["type"], "message": error["error"]["message"]}
        return _event("error", error=told)

    def _written(self, kind: str, text: str) -> Iterator[str]:
        """Yield the events of more text of a block of a type."""
        if self._open != kind:
            yield from self._closed()
            yield from self._begun(kind, {"type": kind, kind: ""})
        yield from self._delta(f"{kind}_delta", **{kind: text})

    def _begun(self, kind: str, block: dict[str, Any]) -> Iterator[str]:
        yield _event("content_block_start", index=self._blocks, content_block=block)
        self._open, self._blocks = kind, self._blocks + 1

    def _delta(self, kind: str, **content: str) -> Iterator[str]:
        delta = {"type": kind, **content}
        yield _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _closed(self) -> Iterator[str]:
        """Yield the event that ends the open block."""
        if self._open is not None:
            yield _event("content_block_stop", index=self._blocks - 1)
        self._open = None


def _block(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": arguments}


def _ending(part: Part) -> dict[str, Any]:
    return {"stop_reason": REASONS.get(part.finish or "", "end_turn"), "stop_sequence": None}


def _usage(part: Part) -> dict[str, Any]:
    counts = part.totals["usage"]
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": counts["completion_tokens"],
    }


def _event(kind: str, **content: Any) -> str:
    return event({"type": kind, **content}, kind)
