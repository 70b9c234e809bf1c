"""Answers in the forms of OpenAI's completions: one object, or a stream of server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from ..session.tool_calls import ToolCall
from .schema import CompletionBody
from .worker import AnswerDelta


def event(content: dict[str, Any], name: str = "") -> str:
    """Return a server-sent event, with an optional name."""
    return f"event: {name}\n" * bool(name) + f"data: {json.dumps(content)}\n\n"


def new_id(prefix: str) -> str:
    """Return a unique id."""
    return f"{prefix}{uuid.uuid4().hex}"


def joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the answers to several prompts into one object, and add up their tokens."""
    first = dict(answers[0])
    if len(answers) > 1:
        choices = [choice for answer in answers for choice in answer["choices"]]
        first["choices"] = [choice | {"index": index} for index, choice in enumerate(choices)]
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        first["usage"] = {name: sum(answer["usage"][name] for answer in answers) for name in names}
        first["lade"] = [answer["lade"] for answer in answers]
    return first


class ChatForm:
    """An answer of /v1/chat/completions.

    Args:
        model: the name of the model.
        body: the request.
    """

    prefix, name, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, body: CompletionBody) -> None:
        self._about = {"id": new_id(self.prefix), "created": int(time.time()), "model": model}
        self._separate_usage = (body.stream_options or {}).get("include_usage")
        self._called = 0  # calls of tools so far

    def whole(self, delta: AnswerDelta) -> dict[str, Any]:
        """Return the answer as one object; `delta` is the whole answer."""
        content: dict[str, Any] = {"role": "assistant", "content": delta.text}
        if delta.calls and not delta.text:
            content["content"] = None
        content |= self._extras(delta)
        return self._object(delta, self.name, "message", content) | delta.totals

    def begin(self) -> Iterator[str]:
        """Yield the first events of a stream."""
        opening = {"role": "assistant", "content": ""}
        yield event(self._object(AnswerDelta(), self.chunk, "delta", opening))

    def add(self, delta: AnswerDelta) -> Iterator[str]:
        """Yield the events of a delta, except the last one."""
        content = ({"content": delta.text} if delta.text else {}) | self._extras(delta, True)
        yield event(self._object(delta, self.chunk, "delta", content))

    def end(self, delta: AnswerDelta) -> Iterator[str]:
        """Yield the last events; `delta` has the finish reason."""
        totals = {} if self._separate_usage else delta.totals
        yield event(self._object(delta, self.chunk, "delta", {}) | totals)
        if self._separate_usage:
            yield event(self._about | {"object": self.chunk, "choices": []} | delta.totals)
        yield "data: [DONE]\n\n"

    def failed(self, error: dict[str, Any]) -> str:
        """Return the event of an error, the last one of a stream."""
        return event(error)

    def _object(self, delta: AnswerDelta, name: str, key: str, content: Any) -> dict[str, Any]:
        """Return a delta as the object called `name`, with its content under `key`."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": delta.finish}
        if delta.logprobs:
            choice["logprobs"] = self._logprobs(delta.logprobs)
        choices = [choice | self._message(delta, key, content)]
        return self._about | {"object": name, "choices": choices}

    def _message(self, delta: AnswerDelta, key: str, content: dict[str, Any]) -> dict[str, Any]:
        return {key: content}

    def _extras(self, delta: AnswerDelta, streamed: bool = False) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if delta.reasoning:
            content["reasoning_content"] = delta.reasoning
        if delta.calls:
            content["tool_calls"] = [self._call(call, streamed) for call in delta.calls]
        return content

    def _call(self, call: ToolCall, streamed: bool) -> dict[str, Any]:
        """Return a complete tool call."""
        number = {"index": self._called} if streamed else {}
        self._called += 1
        function = {"name": call.name, "arguments": call.arguments_text}
        # Mistral's templates accept only ids of nine letters and digits.
        return number | {"id": uuid.uuid4().hex[:9], "type": "function", "function": function}

    def _logprobs(self, tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"content": tokens}


class TextForm(ChatForm):
    """An answer of /v1/completions."""

    prefix, name, chunk = "cmpl-", "text_completion", "text_completion"

    def _message(self, delta: AnswerDelta, key: str, content: dict[str, Any]) -> dict[str, Any]:
        return {"text": delta.text}

    def _logprobs(self, tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "tokens": [token["token"] for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [
                {best["token"]: best["logprob"] for best in token["top_logprobs"]}
                for token in tokens
            ],
        }
