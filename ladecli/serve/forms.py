"""Answers as OpenAI's protocol has them: one object, or a stream of server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from ..session.tool_calls import ToolCall
from .schema import CompletionBody
from .worker import Part


def event(content: dict[str, Any], name: str = "") -> str:
    """Return a server-sent event, which may have a name."""
    return f"event: {name}\n" * bool(name) + f"data: {json.dumps(content)}\n\n"


def new_id(prefix: str) -> str:
    """Return an id that no other answer has."""
    return f"{prefix}{uuid.uuid4().hex}"


def joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return answers to several prompts as one object, with the sums of their tokens."""
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
        wanted: the request.
    """

    prefix, name, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, wanted: CompletionBody) -> None:
        self._about = {"id": new_id(self.prefix), "created": int(time.time()), "model": model}
        self._separate_usage = (wanted.stream_options or {}).get("include_usage")
        self._called = 0  # calls of tools so far

    def whole(self, part: Part) -> dict[str, Any]:
        """Return the answer as one object; `part` is all of it."""
        said: dict[str, Any] = {"role": "assistant", "content": part.text}
        if part.calls and not part.text:
            said["content"] = None
        return self._shown(part, self.name, "message", said | self._said(part)) | part.totals

    def begin(self) -> Iterator[str]:
        """Yield the first events of a stream."""
        opening = {"role": "assistant", "content": ""}
        yield event(self._shown(Part(), self.chunk, "delta", opening))

    def add(self, part: Part) -> Iterator[str]:
        """Yield the events of a part that is not the last one."""
        said = {"content": part.text} if part.text else {}
        yield event(self._shown(part, self.chunk, "delta", said | self._said(part, streamed=True)))

    def end(self, part: Part) -> Iterator[str]:
        """Yield the last events; `part` says why the answer ends."""
        totals = {} if self._separate_usage else part.totals
        yield event(self._shown(part, self.chunk, "delta", {}) | totals)
        if self._separate_usage:
            yield event(self._about | {"object": self.chunk, "choices": []} | part.totals)
        yield "data: [DONE]\n\n"

    def failed(self, error: dict[str, Any]) -> str:
        """Return the event of an error, the last one of a stream."""
        return event(error)

    def _shown(self, part: Part, name: str, key: str, said: dict[str, Any]) -> dict[str, Any]:
        """Return a part as the object of a name."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": part.finish}
        if part.logprobs:
            choice["logprobs"] = self._logprobs(part.logprobs)
        return self._about | {"object": name, "choices": [choice | self._message(part, key, said)]}

    def _message(self, part: Part, key: str, said: dict[str, Any]) -> dict[str, Any]:
        return {key: said}

    def _said(self, part: Part, streamed: bool = False) -> dict[str, Any]:
        """Return what a part has beside text."""
        said: dict[str, Any] = {}
        if part.reasoning:
            said["reasoning_content"] = part.reasoning
        if part.calls:
            said["tool_calls"] = [self._call(call, streamed) for call in part.calls]
        return said

    def _call(self, call: ToolCall, streamed: bool) -> dict[str, Any]:
        """Return a call of a tool, whole."""
        number = {"index": self._called} if streamed else {}
        self._called += 1
        function = {"name": call.name, "arguments": call.arguments_text}
        # Mistral's templates take ids of nine letters and digits alone.
        return number | {"id": uuid.uuid4().hex[:9], "type": "function", "function": function}

    def _logprobs(self, tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"content": tokens}


class TextForm(ChatForm):
    """An answer of /v1/completions."""

    prefix, name, chunk = "cmpl-", "text_completion", "text_completion"

    def _message(self, part: Part, key: str, said: dict[str, Any]) -> dict[str, Any]:
        return {"text": part.text}

    def _logprobs(self, tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "tokens": [token["token"] for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [
                {best["token"]: best["logprob"] for best in token["top_logprobs"]}
                for token in tokens
            ],
        }
