"""Splitters that separate reasoning from the answer: by schema, by channels, or by tags."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from .chat_template import REASONING_KEYS
from .text import HIDDEN, Splitter, Text, TextDelta, overlap
from .tool_calls import Tool

TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "<longcat_think>": "</longcat_think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|channel>thought": "<channel|>",
    "◁think▷": "◁/think▷",
}
"""Tags that models put around their reasoning, which comes before the answer."""
CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
"""Tokens of answers in channels, gpt-oss's form: <|channel|>NAME<|message|>TEXT<|end|>."""
CHANNELED = {"<|channel|>", "<|message|>"}
"""A tokenizer with these has a model that answers in channels."""
FINAL = "final"
"""The channel of the answer; other channels are reasoning."""
CALLS = "tool_calls"
"""The field of a response template that holds calls of tools."""
TAIL = 48
"""Tokens at the end of a prompt that may contain the opening tag of the reasoning."""


def splitter(
    tokenizer: Any, prompt: Sequence[int], tools: Sequence[Tool] | None = None
) -> Splitter:
    """Return the splitter for an answer to a conversation, chosen by the tokenizer.

    Args:
        tokenizer: of transformers.
        prompt: ids of the conversation; its template may have opened the reasoning.
        tools: the tools that the model may call; calls in channels, or in fields of the response
            template, become calls between tags in the answer.  None if calls are not parsed.
    """
    schema = getattr(tokenizer, "response_template", None)
    known = {*REASONING_KEYS} if tools is None else {*REASONING_KEYS, CALLS}
    if schema and not known.isdisjoint(schema.get("fields", ())):
        return BySchema(tokenizer, prompt, tools)
    before = tokenizer.decode(list(prompt[-TAIL:]), skip_special_tokens=False)
    if tokenizer.get_added_vocab().keys() >= CHANNELED:
        return ByChannels(before, calls=tools is not None)
    return ByTags(before)


def answer_marks(tokenizer: Any, prompt: Sequence[int]) -> tuple[str | None, dict[int, str]]:
    """Return the patterns after which the answer begins.

    Returns:
        A pattern of the text that ends the reasoning, or None if the prompt opens none; and for
        each token that may open the reasoning, the pattern of its end.
    """
    before = tokenizer.decode(list(prompt[-TAIL:]), skip_special_tokens=False).rstrip()
    added = tokenizer.get_added_vocab()
    if added.keys() >= CHANNELED:
        opens = rf"<\|channel\|>\s*{FINAL}.*?<\|message\|>"
        return None if re.search(f"{opens}$", before) else opens, {}
    if (opened := next((tag for tag in TAGS if before.endswith(tag)), None)) is not None:
        return re.escape(TAGS[opened]), {}
    if before.endswith((*TAGS.values(),)):
        return None, {}
    return None, {added[tag]: re.escape(end) for tag, end in TAGS.items() if tag in added}


class _Collector:
    """Collects reasoning and answer, without blanks around the reasoning or between the two."""

    def __init__(self) -> None:
        self._reasoning = self._answer = ""  # since the last `take`
        self._blanks = ""  # after the reasoning so far
        self._lead = ""  # blanks before the answer, dropped if reasoning follows
        self._has_block = self._reasoned = self._answered = False

    def begin(self) -> None:
        """Begin a block of reasoning."""
        self._has_block, self._lead = True, ""
        if self._reasoned:
            self._blanks = "\n\n"

    def reason(self, text: str) -> None:
        """Add reasoning."""
        text = self._blanks + text if self._reasoned else text.lstrip()
        stripped = text.rstrip()
        self._reasoning += stripped
        self._blanks = text[len(stripped) :]
        self._reasoned = self._reasoned or bool(stripped)

    def answer(self, text: str) -> None:
        """Add text of the answer."""
        if not self._answered:
            self._lead = text = text.lstrip() if self._has_block else self._lead + text
            self._answered = bool(text.strip())
        if self._answered:
            self._answer += text

    def take(self, ended: bool = False) -> TextDelta:
        """Return the text that was added since the last call."""
        if ended and not self._answered:
            self._answer = self._lead
        part = TextDelta(self._reasoning, self._answer)
        self._reasoning = self._answer = ""
        return part


class _ByMarks:
    """Finds reasoning by marks in the text; a mark may arrive in pieces."""

    done = False

    def __init__(self, marks: Collection[str]) -> None:
        self._marks = marks  # the marks that are valid now
        self._held = Text()  # may be the start of one
        self._parts = _Collector()

    def feed(self, text: Text) -> TextDelta:
        """See `Splitter.feed`."""
        held = self._held.joined(text)
        while self._marks and (
            match := re.search("|".join(map(re.escape, self._marks)), held.written)
        ):
            before, held = held.cut(match.start())
            self._place(before)
            if self._marks:
                held = held.cut(len(match[0]))[1]
                self._pass(match[0])
        unsure = max((overlap(held.written, mark) for mark in self._marks), default=0)
        certain, self._held = held.cut(len(held.written) - unsure)
        self._place(certain)
        return self._parts.take()

    def flush(self) -> TextDelta:
        """See `Splitter.flush`."""
        self._place(self._held)
        self._end()
        return self._parts.take(ended=True)

    def _end(self) -> None:
        """Finish the block that a mark would have ended."""

    def _place(self, text: Text) -> None:
        """Add text to the reasoning or to the answer."""
        raise NotImplementedError

    def _pass(self, mark: str) -> None:
        """Change the state at a mark."""
        raise NotImplementedError


class ByTags(_ByMarks):
    """Finds reasoning by the tags around it, before the answer.

    A tag in the middle of an answer is ordinary text.

    Args:
        before: the end of the prompt, with its special tokens.
    """

    def __init__(self, before: str) -> None:
        super().__init__(TAGS)
        self._reasons = False
        if opened := next((tag for tag in TAGS if before.rstrip().endswith(tag)), None):
            self._pass(opened)

    def _place(self, text: Text) -> None:
        if self._reasons:
            self._parts.reason(text.visible)
            return
        self._parts.answer(text.visible)
        if text.visible.strip():
            self._marks, self.done = (), True

    def _pass(self, mark: str) -> None:
        self._reasons = not self._reasons
        self._marks = [TAGS[mark]] if self._reasons else TAGS
        if self._reasons:
            self._parts.begin()


class ByChannels(_ByMarks):
    """Finds reasoning by its channel.

    Args:
        before: the end of the prompt, with its special tokens.
        calls: True if messages to tools become calls between tags in the answer.
    """

    def __init__(self, before: str, calls: bool = False) -> None:
        super().__init__(CHANNELS)
        self._calls = calls
        self._tool: str | None = None  # the recipient of the message, if it is a tool
        self._arguments = ""  # of its call
        self._header: str | None = None  # the text since the start of a header; None outside
        self._channel = FINAL
        _, start, header = before.rpartition(CHANNELS[0])
        self.feed(Text.special(start + header) if start else Text())

    def _place(self, text: Text) -> None:
        if self._header is not None:
            self._header += text.written
        elif self._tool is not None:
            self._arguments += text.visible
        elif self._channel == FINAL:
            self._parts.answer(text.visible)
        else:
            self._parts.reason(text.visible)

    def _pass(self, mark: str) -> None:
        if mark == "<|message|>":
            header, self._header = self._header or "", None
            named = re.search(r"<\|channel\|>\s*(\S+)", header)
            self._channel = named[1] if named else FINAL
            match = re.search(r"to=functions\.([\w.-]+)", header)
            if self._calls and match:
                self._tool, self._arguments = match[1], ""
            elif self._channel != FINAL:
                self._parts.begin()
            return
        self._end()
        if mark == "<|channel|>":
            self._header = (self._header or "") + mark
        else:
            self._header = "" if mark == "<|start|>" else None

    def _end(self) -> None:
        """Write a message to a tool as a call between tags."""
        if self._tool is not None:
            call = f'"name": {json.dumps(self._tool)}, "arguments": {self._arguments or "{}"}'
            self._parts.answer(f"<tool_call>{{{call}}}</tool_call>")
            self._tool = None


class BySchema:
    """Finds reasoning by the tokenizer's response template, as its `parse_response` does.

    Args:
        tokenizer: of transformers, with a response template.
        prompt: ids of the conversation.
        tools: see `splitter`.
    """

    done = False

    def __init__(
        self, tokenizer: Any, prompt: Sequence[int], tools: Sequence[Tool] | None = None
    ) -> None:
        before = tokenizer.decode(list(prompt), skip_special_tokens=False)
        self._calls = tools is not None
        self._parser: Any = tokenizer.get_response_parser(
            prefix=before, **({"tools": list(tools)} if tools else {})
        )
        self._special: set[str] = set()
        self._parts = _Collector()
        self._fed, self._has_fields = "", False
        self._follow(self._parser.initial_events)
        self._parts.take()

    def feed(self, text: Text) -> TextDelta:
        """See `Splitter.feed`."""
        for match in re.finditer(f"{HIDDEN}+", text.shown):
            self._special.add(text.written[slice(*match.span())])
        if not self._has_fields:
            self._fed += text.visible
        self._follow(self._parser.feed(text.written))
        return self._taken()

    def flush(self) -> TextDelta:
        """See `Splitter.flush`."""
        with contextlib.suppress(ValueError):  # a cut answer may lack what the schema requires
            self._follow(self._parser.finalize()[1])
        part = self._taken(ended=True)
        # Text that fits into no field must not be lost.
        return part if self._has_fields else TextDelta("", self._fed)

    def _taken(self, ended: bool = False) -> TextDelta:
        part = self._parts.take(ended)
        self._has_fields = self._has_fields or any(part)
        return part

    def _follow(self, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            if self._calls and event["field"] == CALLS:
                if event["type"] == "region_close":
                    calls = json.dumps(event["value"], ensure_ascii=False)
                    self._parts.answer(f"<tool_call>{calls}</tool_call>")
                continue
            reasons = event["field"] in REASONING_KEYS
            if event["type"] == "region_open" and reasons:
                self._parts.begin()
            if event["type"] == "region_chunk":
                text = event["text"]
                for special in self._special:
                    text = text.replace(special, "")
                self._parts.reason(text) if reasons else self._parts.answer(text)
