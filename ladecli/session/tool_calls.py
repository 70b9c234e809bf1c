"""Tool calls in the text of an answer, parsed in the forms that models write."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .text import overlap

TAGS = {
    "<tool_call>": "</tool_call>",
    "<|tool_call>": "<tool_call|>",  # Gemma 4
    "<start_function_call>": "<end_function_call>",  # FunctionGemma
    "<function=": "</function>",  # Qwen3-Coder and Llama 3.1
}
"""The opening and closing marks around one call."""
LISTS = ("[TOOL_CALLS]", "<|python_tag|>")
"""Marks before calls that go on to the end of the text: Mistral's and Llama's."""
FENCE = "```"
MARKS = (*TAGS, *LISTS, FENCE)
QUOTES = ("<escape>", '<|"|>')
"""Marks that Gemma's models write in place of the quotes of a string."""
_JSON = json.JSONDecoder(strict=False)
_MARK = re.compile("|".join(map(re.escape, MARKS)))
_BARE = re.compile(r"\s*(?=\{|\[\s*\{).")
_FENCED = re.compile(r"```(?:json|tool_call|tool_code)?[ \t]*\n\s*(?=[\[{])")
_MISTRAL = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?={)")
_XML = re.compile(r"(?:<function=)?([^\s<>=]+)>?\s*(.*?)\s*(?:</function>)?\s*", re.S)
_PARAMETERS = (
    re.compile(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.S),  # Qwen3-Coder
    re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.S),  # GLM
)
Tool: TypeAlias = Mapping[str, Any]
"""A tool in the form of OpenAI's protocol and of chat templates."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self.arguments, ensure_ascii=False)

    def written(self) -> str:
        """Return the call between tags."""
        call = {"name": self.name, "arguments": self.arguments}
        return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


class CallReader:
    """Separates calls from the other text of an answer, while it arrives.

    Text that only looks like a call stays text, and so does an incomplete call at the end.

    Args:
        tools: the tools that the model may call; JSON without a mark is a call if it names one.
        special: the texts of special tokens, which are removed from the other text.
    """

    def __init__(self, tools: Sequence[Tool], special: Collection[str] = ()) -> None:
        functions = [tool["function"] for tool in tools]
        self._schemas = {function["name"]: function.get("parameters") for function in functions}
        self._special = [text for text in special if text]
        self._held = ""  # may be a call, or the start of a mark
        self._searched = 0  # characters of it that are not a call
        self._at_start = True  # only blanks and calls came before

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Add text; return the other text and the calls that are certain."""
        self._held += text
        return self._read(ended=False)

    def flush(self) -> tuple[str, list[ToolCall]]:
        """Return the text and calls that were held back, at the end of the answer."""
        return self._read(ended=True)

    def _read(self, ended: bool) -> tuple[str, list[ToolCall]]:
        plain, calls = "", list[ToolCall]()
        while (match := self._next_mark()) is not None:
            mark, at = match
            call_list, end = self._parse(mark, self._held[at:], ended)
            if end is None and not ended:  # it may become a call
                plain += self._take(at)
                return plain, calls
            if call_list:
                plain += self._take(at)
                self._held = self._held[end:]
                calls += call_list
            else:
                self._searched = at + max(len(mark), 1)
        unsure = 0 if ended else max(overlap(self._held, mark) for mark in MARKS)
        if self._at_start and not ended and self._held.strip() in ("", "["):
            unsure = len(self._held)  # blanks before a call are dropped
        plain += self._take(len(self._held) - unsure)
        return plain, calls

    def _next_mark(self) -> tuple[str, int] | None:
        """Return the next mark of a call and its position, if there is one; the mark is "" for JSON
        at the start of the answer."""
        if self._at_start and (match := _BARE.match(self._held)) and match.end() > self._searched:
            return "", match.end() - 1
        match = _MARK.search(self._held, self._searched)
        return (match[0], match.start()) if match else None

    def _take(self, end: int) -> str:
        """Remove the text before a position and return it as other text."""
        text, self._held = self._held[:end], self._held[end:]
        self._searched = max(self._searched - end, 0)
        for special in self._special:
            text = text.replace(special, "")
        if self._at_start and not text.strip():
            return ""
        self._at_start = False
        return text

    def _parse(self, mark: str, text: str, ended: bool) -> tuple[list[ToolCall], int | None]:
        """Return the calls at the start of a text, and their length; None if it takes more text to
        decide."""
        if close := TAGS.get(mark):
            end = text.find(close)
            if end < 0 and not ended:
                return [], None
            body = text[len(mark) : end] if end >= 0 else text[len(mark) :]
            body = f"{mark}{body}{close}" if mark == "<function=" else body
            return self._tagged(body), len(text) if end < 0 else end + len(close)
        if mark in LISTS:
            return (self._listed(text[len(mark) :]), len(text)) if ended else ([], None)
        start = 0
        if mark == FENCE:
            if (match := _FENCED.match(text)) is None:
                undecided = "\n" not in text.rstrip(" ") or not text.partition("\n")[2].strip()
                language = text.removeprefix(FENCE).strip()
                is_prefix = any(
                    name.startswith(language) for name in ("json", "tool_call", "tool_code")
                )
                return [], None if undecided and is_prefix else 0
            start = match.end()
        try:
            value, end = _JSON.raw_decode(text, start)
        except json.JSONDecodeError as error:
            # A string or word that is cut at the end may still become valid.
            half = error.msg.startswith("Unterminated") or len(text) - error.pos < len("false")
            return [], None if half else 0
        calls = self._of_json(value, known=True)
        if mark == FENCE:
            rest = text[end:].lstrip()
            if not ended and rest != FENCE and FENCE.startswith(rest):
                return [], None
            end = len(text) - len(rest.removeprefix(FENCE))
        return calls, end

    def _tagged(self, body: str) -> list[ToolCall]:
        """Return the calls between tags: JSON, Gemma's form, or parameters between tags."""
        body = body.strip()
        if (start := re.match(r"call:([\w.-]+)(?={)", body)) is not None:
            arguments = _gemma(body[start.end() :])
            return [] if arguments is None else [ToolCall(start[1], arguments)]
        try:
            return self._of_json(_JSON.raw_decode(body)[0])
        except ValueError:
            pass
        if (match := _XML.fullmatch(body)) is None:
            return []
        name, inner = match[1], match[2]
        for pattern in _PARAMETERS:
            if pairs := pattern.findall(inner):
                return [ToolCall(name, {key: self._typed(name, key, v) for key, v in pairs})]
        arguments = arguments_of(inner or "{}")
        return [ToolCall(name, arguments)] if isinstance(arguments, dict) else []

    def _listed(self, text: str) -> list[ToolCall]:
        """Return the calls after a mark without a closing one: JSON, or names before JSON."""
        calls: list[ToolCall] = []
        for special in self._special:
            if special not in (*LISTS, "[ARGS]", "[CALL_ID]"):
                text = text.replace(special, "")
        for part in re.split("|".join(map(re.escape, LISTS)), text):
            at = 0
            while part[at:].strip(" \n;,"):
                at += len(part[at:]) - len(part[at:].lstrip(" \n;,"))
                named = _MISTRAL.match(part, at)
                try:
                    value, at = _JSON.raw_decode(part, named.end() if named else at)
                except ValueError:
                    return []
                if named and isinstance(value, dict):
                    calls.append(ToolCall(named[1], value))
                else:
                    calls += self._of_json(value)
        return calls

    def _of_json(self, value: Any, known: bool = False) -> list[ToolCall]:
        """Return the calls in a JSON value, all or none; `known` requires the names of tools."""
        calls: list[ToolCall] = []
        for item in value if isinstance(value, list) else [value]:
            function = item.get("function", item) if isinstance(item, dict) else None
            if isinstance(function, str):
                function = {**item, "name": function}
            if not isinstance(function, dict):
                return []
            name = function.get("name")
            arguments = arguments_of(function.get("arguments", function.get("parameters", {})))
            if not isinstance(name, str) or not isinstance(arguments, dict):
                return []
            if known and name not in self._schemas:
                return []
            calls.append(ToolCall(name, arguments))
        return calls

    def _typed(self, name: str, key: str, text: str) -> Any:
        """Return a parameter in the type of its schema, by default as text."""
        properties = (self._schemas.get(name) or {}).get("properties") or {}
        kind = (properties.get(key) or {}).get("type", "string")
        if kind == "string":
            return text
        try:
            return _JSON.decode(text)
        except ValueError:
            return {"True": True, "False": False, "None": None}.get(text, text)


def _gemma(text: str) -> Any:
    """Parse an object in the form of Gemma's models: keys without quotes, strings in marks."""
    pieces = re.split("|".join(map(re.escape, QUOTES)), text)
    for number, piece in enumerate(pieces):
        if number % 2:
            pieces[number] = json.dumps(piece)
        else:
            pieces[number] = re.sub(r"([{,]\s*)([\w.-]+)\s*:", r'\1"\2":', piece)
    try:
        return _JSON.decode("".join(pieces).strip())
    except ValueError:
        return None


def with_tools_as_text(messages: Iterable[Mapping[str, Any]], tools: Sequence[Tool]) -> list[Any]:
    """Return messages for a template without tools: a system message lists the tools, and calls and
    results become text between tags."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    form = '<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>'
    about = (
        f"You may call these functions:\n<tools>\n{listed}\n</tools>\n"
        f"To call one, answer with its name and arguments:\n{form}"
    )
    plain: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content") or ""
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if plain and plain[-1]["role"] == "user" and "<tool_response>" in plain[-1]["content"]:
                plain[-1]["content"] += f"\n{content}"
                continue
            plain.append({"role": "user", "content": content})
            continue
        for call in message.get("tool_calls") or ():
            function = call["function"]
            text = ToolCall(function["name"], arguments_of(function["arguments"])).written()
            content += f"\n{text}" if content else text
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        plain.append({**rest, "content": content})
    if not tools:
        return plain
    if plain and plain[0]["role"] in ("system", "developer"):
        plain[0]["content"] += f"\n\n{about}"
        return plain
    return [{"role": "system", "content": about}, *plain]


def arguments_of(text: Any) -> Any:
    """Return the arguments of a call, which OpenAI's protocol has as JSON, as an object."""
    try:
        return _JSON.decode(text) if isinstance(text, str) else text
    except ValueError:
        return text
