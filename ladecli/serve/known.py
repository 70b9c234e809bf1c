"""Texts of requests that the server knows already: its own answers, and what it drafts from."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..session.tool_calls import ToolCall, arguments_of
from .schema import Message

ANSWERS = 64
"""Answers that are kept, the newest."""
TEXTS = 256
"""Texts that are not learned again."""
SHORTEST = 200
"""Characters of a text that is worth a draft."""


@dataclass
class Answer:
    """An answer with its tokens."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    reasoned: bool = False


class KnownTexts:
    """The newest answers, and the texts that drafts have learned."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, list[int]] = OrderedDict()
        self._texts: OrderedDict[int, None] = OrderedDict()

    def keep(self, answer: Answer, stops: frozenset[int]) -> None:
        """Keep an answer that calls tools; one with reasoning is the template's to write."""
        ids = answer.ids[:-1] if answer.ids[-1:] and answer.ids[-1] in stops else answer.ids
        if answer.calls and not answer.reasoned:
            self._answers[
                _key(answer.text, [(call.name, call.arguments) for call in answer.calls])
            ] = ids
            if len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)

    def put_back(self, messages: list[Any]) -> dict[str, list[int]]:
        """Replace the server's own answers with calls by marks; return the ids for each.

        A template writes calls in its own form, whose tokens the cache does not hold.
        """
        known: dict[str, list[int]] = {}
        for number, message in enumerate(messages):
            if "tool_calls" not in message or "reasoning_content" in message:
                continue
            functions = [call["function"] for call in message["tool_calls"]]
            calls = [(one["name"], arguments_of(one["arguments"])) for one in functions]
            if ids := self._answers.get(_key(message["content"], calls)):
                mark = f"\ufdd1{number}\ufdd1"
                messages[number] = {"role": "assistant", "content": mark}
                known[mark] = ids
        return known

    def new_texts(self, messages: Sequence[Message]) -> Iterator[str]:
        """Yield the texts of users and tools that were not seen before, for drafts.

        In the JSON of a call a text has other tokens than in the prompt, since its line ends and
        quotes are escaped.
        """
        for message in messages:
            text = "".join(part.text for part in message.content or ())
            if message.role not in ("user", "tool") or len(text) < SHORTEST:
                continue
            if hash(text) not in self._texts:
                self._texts[hash(text)] = None
                yield text
        while len(self._texts) > TEXTS:
            self._texts.popitem(last=False)


def _key(text: str, calls: Sequence[Any]) -> str:
    return json.dumps([text.strip(), calls], sort_keys=True)
