"""Reasoning told from the answer, in a stream of text: by schema, by channels, or by tags."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from .chat_template import REASONING_KEYS
from .text import HIDDEN, Part, Splitter, Text, Tokenizer, overlap

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
"""What models put around their reasoning, which comes before the answer."""
CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
"""Tokens of answers in channels, as gpt-oss has them: <|channel|>NAME<|message|>TEXT<|end|>."""
FINAL = "final"
"""The channel of the answer; what stands in others is reasoning."""
TAIL = 48
"""Tokens at the end of a prompt in which a template opens the reasoning."""


def splitter(tokenizer: Any, prompt: Sequence[int]) -> Splitter:
    """What tells the reasoning of an answer to a conversation, by what the tokenizer knows.

    Args:
        tokenizer: of transformers.
        prompt: ids of the conversation; its template may have opened the reasoning.
    """
    schema = getattr(tokenizer, "response_template", None)
    if schema and not {*REASONING_KEYS}.isdisjoint(schema.get("fields", ())):
        return BySchema(tokenizer, prompt)
    before = tokenizer.decode(list(prompt[-TAIL:]), skip_special_tokens=False)
    if {"<|channel|>", "<|message|>"} <= tokenizer.get_added_vocab().keys():
        return ByChannels(before)
    return ByTags(before)


class _Parts:
    """Collects parts, without blanks around the reasoning, nor before the answer after it."""

    def __init__(self) -> None:
        self._reasoning = self._answer = ""  # not taken yet
        self._blanks = ""  # after the reasoning so far
        self._has_block = self._reasoned = self._answered = False

    def begin(self) -> None:
        """A block of reasoning begins."""
        self._has_block = True
        if self._reasoned:
            self._blanks = "\n\n"

    def reason(self, text: str) -> None:
        """Add reasoning."""
        text = self._blanks + text if self._reasoned else text.lstrip()
        kept = text.rstrip()
        self._reasoning += kept
        self._blanks = text[len(kept) :]
        self._reasoned = self._reasoned or bool(kept)

    def answer(self, text: str) -> None:
        """Add what is no reasoning."""
        if self._has_block and not self._answered:
            text = text.lstrip()
        self._answer += text
        self._answered = self._answered or bool(text)

    def take(self) -> Part:
        """What was added since the last call."""
        part = Part(self._reasoning, self._answer)
        self._reasoning = self._answer = ""
        return part


class ByTags:
    """Tells reasoning by the tags around it, which stand before the answer.

    A tag in the middle of an answer is a word of it.

    Args:
        before: the end of the prompt, with its special tokens.
    """

    def __init__(self, before: str) -> None:
        opened = (close for tag, close in TAGS.items() if before.rstrip().endswith(tag))
        self._close = next(opened, None)  # the tag that ends the reasoning, within it
        self._answering = False
        self._held = Text()
        self._parts = _Parts()
        if self._close:
            self._parts.begin()

    def feed(self, text: Text) -> Part:
        """As `Splitter.feed`."""
        self._held = self._held.joined(text)
        while not self._answering and self._passes_mark():
            pass
        if self._answering:
            self._parts.answer(self._take())
        return self._parts.take()

    def flush(self) -> Part:
        """As `Splitter.flush`."""
        rest = self._take()
        self._parts.reason(rest) if self._close else self._parts.answer(rest)
        return self._parts.take()

    def _passes_mark(self) -> bool:
        """Go on to the next tag of the held text; false if there is none, or an answer before."""
        marks = [self._close] if self._close else list(TAGS)
        found = [(at, mark) for mark in marks if (at := self._held.written.find(mark)) >= 0]
        at, mark = min(found, default=(self._certain(marks), ""))
        before, after = self._held.cut(at)
        if self._close:
            self._parts.reason(before.visible)
        elif before.visible.strip():
            self._answering = True
            return False
        elif mark:
            self._parts.begin()
        if mark:
            self._close = None if self._close else TAGS[mark]
        if mark or self._close:
            self._held = after.cut(len(mark))[1]
        return bool(mark)

    def _certain(self, marks: Sequence[str]) -> int:
        """Characters of the held text that belong to none of the marks."""
        written = self._held.written
        return len(written) - max(overlap(written, mark) for mark in marks)

    def _take(self) -> str:
        held, self._held = self._held, Text()
        return held.visible


class ByChannels:
    """Tells reasoning by its channel.

    Args:
        before: the end of the prompt, with its special tokens.
    """

    def __init__(self, before: str) -> None:
        self._held = Text()
        self._header: str | None = None  # what stands before a message, within it
        self._named = False  # whether that is the name of a channel
        self._channel = FINAL
        self._parts = _Parts()
        _, start, header = before.rpartition(CHANNELS[0])
        self.feed(Text.special(start + header) if start else Text())

    def feed(self, text: Text) -> Part:
        """As `Splitter.feed`."""
        held = self._held.joined(text)
        while found := re.search("|".join(map(re.escape, CHANNELS)), held.written):
            before, after = held.cut(found.start())
            self._place(before)
            self._pass(found[0])
            held = after.cut(len(found[0]))[1]
        unsure = max(overlap(held.written, mark) for mark in CHANNELS)
        certain, self._held = held.cut(len(held.written) - unsure)
        self._place(certain)
        return self._parts.take()

    def flush(self) -> Part:
        """As `Splitter.flush`."""
        held, self._held = self._held, Text()
        self._place(held)
        return self._parts.take()

    def _place(self, text: Text) -> None:
        """Put text where it belongs."""
        if self._header is not None:
            self._header += text.written
        elif self._channel == FINAL:
            self._parts.answer(text.visible)
        else:
            self._parts.reason(text.visible)

    def _pass(self, mark: str) -> None:
        """Go on after one of the tokens."""
        if mark == "<|message|>":
            words = (self._header or "").split() if self._named else []
            self._channel = next(iter(words), FINAL)
            self._header, self._named = None, False
            if self._channel != FINAL:
                self._parts.begin()
        else:
            opens = mark in ("<|start|>", "<|channel|>")
            self._header, self._named = "" if opens else None, mark == "<|channel|>"


class BySchema:
    """Tells reasoning by the response template of the tokenizer, as its `parse_response` does.

    Args:
        tokenizer: of transformers, with such a template.
        prompt: ids of the conversation.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        before = tokenizer.decode(list(prompt), skip_special_tokens=False)
        self._parser: Any = tokenizer.get_response_parser(prefix=before)  # type: ignore[attr-defined]
        self._special: set[str] = set()
        self._parts = _Parts()
        self._fed, self._found = "", False
        self._follow(self._parser.initial_events)
        self._parts.take()

    def feed(self, text: Text) -> Part:
        """As `Splitter.feed`."""
        for found in re.finditer(f"{HIDDEN}+", text.shown):
            self._special.add(text.written[slice(*found.span())])
        if not self._found:
            self._fed += text.visible
        self._follow(self._parser.feed(text.written))
        return self._taken()

    def flush(self) -> Part:
        """As `Splitter.flush`."""
        with contextlib.suppress(ValueError):  # a cut answer may lack what the schema requires
            self._follow(self._parser.finalize()[1])
        part = self._taken()
        # What fits into no field at all must not be lost.
        return part if self._found else Part("", self._fed)

    def _taken(self) -> Part:
        part = self._parts.take()
        self._found = self._found or any(part)
        return part

    def _follow(self, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            reasons = event["field"] in REASONING_KEYS
            if event["type"] == "region_open" and reasons:
                self._parts.begin()
            if event["type"] == "region_chunk":
                said = event["text"]
                for special in self._special:
                    said = said.replace(special, "")
                self._parts.reason(said) if reasons else self._parts.answer(said)
