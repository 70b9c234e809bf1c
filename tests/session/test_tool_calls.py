"""Tool calls in the forms of many models, for any split of the text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ladecli.session.reasoning import ByChannels, BySchema
from ladecli.session.text import Text
from ladecli.session.tool_calls import CallReader
from tests.support.tokenizers import byte_level

SPECIAL = ("<|im_end|>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "</s>")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
PARIS = {"city": "Paris", "days": 2}
JSON = json.dumps({"name": "weather", "arguments": PARIS})
LLAMA = json.dumps({"name": "weather", "parameters": PARIS})
CALL = ("weather", PARIS)


def read(text: str, size: int) -> tuple[str, list[Any]]:
    """Read a text in pieces of a size; return the calls and the other text."""
    reader, plain, calls = CallReader(TOOLS, SPECIAL), "", []
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for special in SPECIAL:  # a single token
        pieces = [text] if special in text and size < len(text) else pieces
    for piece in pieces:
        some, more = reader.feed(piece)
        plain, calls = plain + some, calls + more
    some, more = reader.flush()
    return plain + some, [(call.name, call.arguments) for call in calls + more]


CALLS = {
    "tags": f"<tool_call>\n{JSON}\n</tool_call>",
    "tags without an end": f"<tool_call>\n{JSON}",
    "bare": f"{JSON}<|im_end|>",
    "bare, as OpenAI has it": json.dumps({"type": "function", "function": json.loads(JSON)}),
    "arguments as text": json.dumps({"name": "weather", "arguments": json.dumps(PARIS)}),
    "a list": f"[{JSON}]",
    "a fence": f"```json\n{JSON}\n```",
    "Llama 3": f"<|python_tag|>{LLAMA}",
    "Llama 3, bare": LLAMA,
    "Llama 3.1": f"<function=weather>{json.dumps(PARIS)}</function>",
    "Mistral": f"[TOOL_CALLS] [{JSON}]</s>",
    "Mistral, newer": f"[TOOL_CALLS]weather[ARGS]{json.dumps(PARIS)}</s>",
    "Mistral, with an id": f"[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{json.dumps(PARIS)}",
    "Qwen3-Coder": "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "Qwen3-Coder without tags": "<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>",
    "GLM": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "FunctionGemma": "<start_function_call>call:weather{city:<escape>Paris<escape>,days:2}"
    "<end_function_call>",
    "Gemma 4": '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>',
}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("form", CALLS)
def test_forms_of_calls(form: str, size: int) -> None:
    assert read(CALLS[form], size) == ("", [CALL])


@pytest.mark.parametrize("size", [1, 1000])
def test_several_calls_and_words_around_them(size: int) -> None:
    tagged = CALLS["tags"]
    assert read(f"Well, {tagged}\n{tagged}", size) == ("Well, \n", [CALL, CALL])
    assert read(f"{JSON}\n{JSON}", size) == ("", [CALL, CALL])
    assert read(f"First:\n{CALLS['a fence']} Done", size) == ("First:\n Done", [CALL])
    assert read(f"<|python_tag|>{LLAMA}; {LLAMA}", size) == ("", [CALL, CALL])


TEXTS = (
    "Paris is sunny.",
    f"The form is {JSON}, you see.",  # JSON after words needs a mark
    '{"name": "unknown", "arguments": {}}',
    '{"temperature": 20}',
    "{% if a %} b",
    "[1, 2]",
    "[ ] a task",
    "<tool_call>\nno JSON\n</tool_call>",
    '<tool_call>\n{"name": "weather", "argum',
    '{"name": "weather", "arg',
    '```json\n{"a": 1}\n```',
    "```python\nprint(1)\n```",
    "```json\n{ a: 1 }\n```",
    "a < b and <tool",
    "[TOOL_CALLS] nothing",
    "``` and `",
)


@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("text", TEXTS)
def test_text_that_only_looks_like_a_call_stays_text(text: str, size: int) -> None:
    plain, calls = read(text, size)
    assert calls == []
    assert plain == text.replace("[TOOL_CALLS]", "")


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary"
        " to=functions.weather <|constrain|>json<|message|>{}<|call|>",
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant to=functions.weather"
        "<|channel|>commentary json<|message|>{}",
    ],
    ids=["after the channel", "before the channel"],
)
def test_messages_to_tools_in_channels(text: str, size: int) -> None:
    written = text.replace("{}", json.dumps(PARIS))
    splitter, reasoning, answer = ByChannels("<|start|>assistant", calls=True), "", ""
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    for delta in (*map(splitter.feed, map(Text.plain, pieces)), splitter.flush()):
        reasoning, answer = reasoning + delta.reasoning, answer + delta.text
    assert (reasoning, read(answer, 1000)) == ("Hm", ("", [CALL]))


def test_calls_by_the_tokenizers_response_template() -> None:
    tokenizer = byte_level()
    transform = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
    calls = {"open_pattern": r"<call (?P<name>\w+)>", "close": "</call>", "content": "json"}
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "assistant:",
        "fields": {
            "content": {},
            "tool_calls": calls | {"repeats": True, "transform": transform},
        },
    }
    splitter = BySchema(tokenizer, tokenizer.encode("assistant:"), TOOLS)
    fed = splitter.feed(Text.plain(f"Well.<call weather>{json.dumps(PARIS)}</call>"))
    answer = fed.text + splitter.flush().text
    assert read(answer, 1000) == ("Well.", [CALL])
