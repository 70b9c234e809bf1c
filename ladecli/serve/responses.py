"""OpenAI's Responses: requests become conversations, answers become items and events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field

from .forms import event, new_id
from .schema import APIError, ChatBody, RequestObject
from .worker import AnswerDelta

TOOL_TYPES = ("function", "custom")
"""Types of tools that the client runs; others (web search, Codex's groups) are left out."""


class ResponsesBody(RequestObject):
    """The body of /v1/responses."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    max_output_tokens: Annotated[int, Field(ge=-1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    reasoning: dict[str, Any] | None = None
    background: Literal[False] | None = None
    previous_response_id: None = None
    conversation: None = None

    def as_completion(self) -> ChatBody:
        """Return the request as one of /v1/chat/completions.

        Raises:
            ValidationError, APIError: it cannot be expressed as one.
        """
        tools = [
            {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
            if tool.get("type") == "function"
            else tool
            for tool in self.tools or ()
            if tool.get("type") in TOOL_TYPES
        ]
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function":
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        fields: dict[str, Any] = {
            "messages": self._messages(),
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "response_format": _format((self.text or {}).get("format")),
            "reasoning_effort": (self.reasoning or {}).get("effort"),
        }
        return ChatBody.model_validate(fields)

    def _messages(self) -> list[dict[str, Any]]:
        """Return the messages of a conversation; calls become part of the assistant's message."""
        items = self.input
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        reasoning = ""
        for number, item in enumerate(items):
            kind = item.get("type", "message")
            if kind == "message":
                message = {"role": item.get("role"), "content": _content(item.get("content"))}
                if message["role"] == "assistant":
                    message["reasoning"] = reasoning
                messages.append(message)
                reasoning = ""
            elif kind == "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "reasoning": reasoning})
                    reasoning = ""
                function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
            elif kind == "function_call_output":
                result = {"role": "tool", "tool_call_id": item.get("call_id")}
                messages.append(result | {"content": _content(item.get("output"))})
            elif kind == "reasoning":
                reasoning = "".join(part.get("text", "") for part in item.get("content") or ())
            else:
                raise APIError(400, f"input: {number}: items of the type {kind} are not known here")
        return messages


def _content(content: Any) -> Any:
    """Return a content with all text parts in the form of chats."""
    if not isinstance(content, list):
        return content
    kinds = ("input_text", "output_text")
    return [
        {"type": "text", "text": part.get("text")}
        if isinstance(part, dict) and part.get("type") in kinds
        else part
        for part in content
    ]


def _format(form: Any) -> Any:
    """Return the format of an answer in the form of chats."""
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}


class ResponseForm:
    """An answer of /v1/responses.

    Args:
        model: the name of the model.
        body: the request.
    """

    def __init__(self, model: str, body: ChatBody) -> None:
        self._body = body
        self._about = {"id": new_id("resp_"), "object": "response", "created_at": int(time.time())}
        self._model = model
        self._number = 0  # of the next event
        self._items: list[dict[str, Any]] = []  # complete ones
        self._open: dict[str, Any] | None = None  # the incomplete item

    def whole(self, delta: AnswerDelta) -> dict[str, Any]:
        """See `ChatForm.whole`."""
        for _ in chain(self.add(delta), self._closed()):
            pass
        return self._response(delta)

    def begin(self) -> Iterator[str]:
        """See `ChatForm.begin`."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response(None))

    def add(self, delta: AnswerDelta) -> Iterator[str]:
        """See `ChatForm.add`."""
        for kind, text in (("reasoning", delta.reasoning), ("message", delta.text)):
            if text:
                if self._open is None or self._open["type"] != kind:
                    yield from self._begun(kind)
                yield self._grown(text)
        for call in delta.calls:
            yield from self._closed()
            item = {"id": new_id("fc_"), "type": "function_call", "call_id": new_id("")[:9]}
            item |= {"name": call.name, "arguments": "", "status": "in_progress"}
            yield self._about_item("response.output_item.added", item=item)
            text = item["arguments"] = call.arguments_text
            kind = "response.function_call_arguments"
            yield self._about_item(f"{kind}.delta", item_id=item["id"], delta=text)
            yield self._about_item(
                f"{kind}.done", item_id=item["id"], arguments=text, name=call.name
            )
            yield self._done(item)

    def end(self, delta: AnswerDelta) -> Iterator[str]:
        """See `ChatForm.end`."""
        yield from self._closed()
        response = self._response(delta)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, error: dict[str, Any]) -> str:
        """See `ChatForm.failed`."""
        fields = {
            "code": error["error"]["code"] or "server_error",
            "message": error["error"]["message"],
        }
        response = self._response(None) | {"status": "failed", "error": fields}
        return self._event("response.failed", response=response)

    def _begun(self, kind: str) -> Iterator[str]:
        """Yield the events of a new item with text, after the end of the one before."""
        yield from self._closed()
        self._open = {"type": kind, "status": "in_progress", "content": []}
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._open |= {"id": new_id("msg_"), "role": "assistant"}
        else:
            self._open |= {"id": new_id("rs_"), "summary": []}
        yield self._about_item("response.output_item.added", item=self._open)
        self._open["content"].append(part)
        if kind == "message":
            yield self._about_part("content_part.added", part=part)

    def _grown(self, text: str) -> str:
        """Return the event of more text of the open item."""
        assert self._open is not None
        (part,) = self._open["content"]
        part["text"] += text
        return self._about_part(f"{part['type']}.delta", delta=text, logprobs=[])

    def _closed(self) -> Iterator[str]:
        """Yield the events that end the open item."""
        if self._open is None:
            return
        (part,) = self._open["content"]
        yield self._about_part(f"{part['type']}.done", text=part["text"], logprobs=[])
        if self._open["type"] == "message":
            yield self._about_part("content_part.done", part=part)
        item, self._open = self._open, None
        yield self._done(item)

    def _done(self, item: dict[str, Any]) -> str:
        item["status"] = "completed"
        event = self._about_item("response.output_item.done", item=item)
        self._items.append(item)
        return event

    def _about_part(self, kind: str, **content: Any) -> str:
        assert self._open is not None
        ids = {"item_id": self._open["id"], "content_index": 0}
        return self._about_item(f"response.{kind}", **ids, **content)

    def _about_item(self, kind: str, **content: Any) -> str:
        return self._event(kind, output_index=len(self._items), **content)

    def _event(self, kind: str, **content: Any) -> str:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **content}, kind)

    def _response(self, delta: AnswerDelta | None) -> dict[str, Any]:
        """Return the whole object; `delta` is the last one, or None before the end."""
        cut = delta is not None and delta.finish == "length"
        body = self._body
        usage = None
        if delta is not None:
            counts = delta.totals["usage"]
            usage = {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            }
        figures = {} if delta is None else {"lade": delta.totals["lade"]}
        return self._about | {
            "status": "in_progress" if delta is None else "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "model": self._model,
            "output": list(self._items),
            "usage": usage,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tools": [{"type": "function", **tool["function"]} for tool in body.tools or ()],
            "tool_choice": body.tool_choice or "auto",
            "temperature": body.temperature,
            "top_p": body.top_p,
            "max_output_tokens": body.max_tokens,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            **figures,
        }
