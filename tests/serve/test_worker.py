"""Tools over a real socket: messages for the template, and tool calls in answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.scripts import CHATML, FakeModel
from tests.support.server import Server

IM = ("<|im_start|>", "<|im_end|>")
TEMPLATE = """\
{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}{{ m.name }}
{{ m.content }}{% for call in m.tool_calls or [] %}
{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
SAID = ("Well", ". ", f"<tool_call>{CALL}</tool_call>", "<|im_end|>", "lost")
WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TOOLS: Any = [{"type": "function", "function": WEATHER}]
HI = {"role": "user", "content": "What about Paris?"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = FakeModel(TEMPLATE, SAID, IM).write(tmp_path_factory.mktemp("caller"))
    with Server(tmp_path_factory.mktemp("home"), "--name", "caller", model=folder) as one:
        one.folder = folder
        yield one


def test_a_call_is_separated_from_the_text(server: Server) -> None:
    with server.client() as client:
        chats = client.chat.completions
        asked: dict[str, Any] = {"model": "caller", "messages": [HI], "tools": TOOLS}
        choice = chats.create(**asked).choices[0]
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Well. ")
        assert (call.type, call.function.name) == ("function", "weather")
        assert json.loads(call.function.arguments) == {"city": "Paris"}

        text, calls, reasons = "", [], []
        for chunk in chats.create(stream=True, **asked):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            calls += delta.tool_calls or []
            reasons += filter(None, [chunk.choices[0].finish_reason])
        assert (text, reasons) == ("Well. ", ["tool_calls"])
        assert [(call.index, call.function.name) for call in calls] == [(0, "weather")]
        without = chats.create(**asked, tool_choice="none").choices[0]
        assert without.finish_reason == "stop"
        assert without.message.content == f"Well. <tool_call>{CALL}</tool_call>"
        assert without.message.tool_calls is None


def test_calls_and_results_reach_the_template(server: Server) -> None:
    arguments = '{"city": "Paris"}'
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    said = server.chat(messages=[HI, called, result], tools=TOOLS, max_tokens=3)
    messages = [HI, called | {"content": ""}, result | {"name": "weather"}]
    messages[1]["tool_calls"] = [call | {"function": WEATHER | {"arguments": {"city": "Paris"}}}]
    tokenizer = AutoTokenizer.from_pretrained(server.folder)
    ids = tokenizer.apply_chat_template(
        messages, tools=TOOLS, add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert said["usage"]["prompt_tokens"] == len(ids)
    assert server.chat(messages=[HI, {"role": "assistant", "content": None}, HI])["choices"]


def test_one_call_without_parallel_tool_calls(tmp_path: Path) -> None:
    twice = (f"<tool_call>{CALL}</tool_call>", f" <tool_call>{CALL}</tool_call>", "<|im_end|>")
    folder = FakeModel(CHATML, twice, IM).write(tmp_path / "model")
    with Server(tmp_path, model=folder) as server:
        for parallel, count in ((True, 2), (False, 1)):
            said = server.chat(tools=TOOLS, parallel_tool_calls=parallel)["choices"][0]
            assert len(said["message"]["tool_calls"]) == count
            assert (said["finish_reason"], said["message"]["content"]) == ("tool_calls", None)


def test_a_template_without_tools_gets_tools_as_text(tmp_path: Path) -> None:
    folder = FakeModel(CHATML, SAID, IM).write(tmp_path / "model")
    with Server(tmp_path, model=folder) as server:
        short = server.chat(max_tokens=9)
        said = server.chat(tools=TOOLS, max_tokens=9)
        assert said["choices"][0]["finish_reason"] == "tool_calls"
        more = said["usage"]["prompt_tokens"] - short["usage"]["prompt_tokens"]
        assert more > 20, "the tools are in the prompt"
        call = said["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
        assert server.chat(messages=[HI, call, result], tools=TOOLS)["choices"]


def test_responses(server: Server) -> None:
    flat = [
        {"type": "function", **WEATHER},
        {"type": "web_search"},
        {"type": "namespace", "tools": []},
    ]
    with server.client() as client:
        asked: dict[str, Any] = {"model": "caller", "input": HI["content"], "tools": flat}
        whole = client.responses.create(**asked, store=False)
        message, call = whole.output
        assert (whole.status, whole.output_text) == ("completed", "Well. ")
        assert (call.type, call.name, json.loads(call.arguments)) == (
            *("function_call", "weather"),
            {"city": "Paris"},
        )
        chat = server.chat(messages=[HI], tools=TOOLS)["usage"]
        assert whole.usage.input_tokens == chat["prompt_tokens"]

        with client.responses.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert [item.type for item in final.output] == ["message", "function_call"]
        assert final.output_text == "Well. "

        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        items = [HI, message.model_dump(), call.model_dump(), result]
        again = client.responses.create(**asked | {"input": items, "max_output_tokens": 1})
        assert (again.status, again.incomplete_details.reason) == (
            *("incomplete", "max_output_tokens"),
        )
    for change, word in (
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"type": "item_reference"}]}, "item_reference"),
        ({"tools": [{"type": "custom", "name": "a"}]}, "type function"),
    ):
        status, error = server.refusal("/v1/responses", {"input": "hi"} | change)
        assert status == 400
        assert word in error["message"]


def test_the_tokens_of_an_answer_with_calls_stay_cached(tmp_path: Path) -> None:
    """Even if the template writes calls in another form than the model."""
    folder = FakeModel(TEMPLATE, (CALL, "<|im_end|>", "lost"), IM).write(tmp_path / "model")
    with Server(tmp_path, model=folder) as server:
        first = server.chat(messages=[HI], tools=TOOLS)
        message = first["choices"][0]["message"]
        assert message["tool_calls"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}
        for content in (None, ""):
            again = message | {"content": content}
            usage = server.chat(messages=[HI, again, result], tools=TOOLS)["usage"]
            read = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= read - 1


def test_texts_are_drafted_with_json_escapes(tmp_path: Path) -> None:
    text = 'def f():\n    return "a long text"\n' * 8
    escaped = json.dumps({"name": "weather", "arguments": {"city": text}})
    pieces = [escaped[at : at + 9] for at in range(0, 180, 9)]
    unique = list(dict.fromkeys(pieces))[:12]
    folder = FakeModel(TEMPLATE, (*unique, "<|im_end|>"), IM).write(tmp_path / "model")
    with Server(tmp_path, model=folder) as server:
        plain = server.chat(messages=[HI], tools=TOOLS)["lade"]
        asked = {"role": "user", "content": text}
        drafted = server.chat(messages=[asked], tools=TOOLS)["lade"]
        assert drafted["steps"] < plain["steps"]


def test_answers_that_fit_a_schema(tmp_path: Path) -> None:
    person = {
        "type": "object",
        "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"enum": [1, 22]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": person}}
    with Server(tmp_path) as server:
        said = server.chat(response_format=form)["choices"][0]
        value = json.loads(said["message"]["content"])
        assert (said["finish_reason"], {*value}) == ("stop", {"name", "age"})
        city: dict[str, Any] = {"type": "object", "required": ["city"]}
        zone = {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"]}
        # The form of nested models in pydantic.
        city |= {"$defs": {"place": {"enum": ["Paris"]}}}
        city["properties"] = {"city": {"$ref": "#/$defs/place"}}
        closed = {"additionalProperties": False}
        functions = (
            {"name": "weather", "parameters": city | closed},
            {"name": "time", "parameters": zone | closed},
        )
        tools = [{"type": "function", "function": function} for function in functions]
        for choice, names in (("required", {"weather", "time"}), (tools[1], {"time"})):
            called = server.chat(tools=tools, tool_choice=choice)["choices"][0]
            (call,) = called["message"]["tool_calls"]
            assert called["finish_reason"] == "tool_calls"
            assert call["function"]["name"] in names
            assert json.loads(call["function"]["arguments"]) in ({"city": "Paris"}, {"zone": "UTC"})
        body = {"input": "hi", "text": {"format": {"type": "json_schema", **form["json_schema"]}}}
        (item,) = server.ask("/v1/responses", body)[1]["output"]
        assert {*json.loads(item["content"][0]["text"])} == {"name", "age"}


def test_messages(server: Server) -> None:
    tools = [{"name": "weather", "input_schema": WEATHER["parameters"]}, {"type": "web_search"}]
    asked = {"model": "caller", "max_tokens": 60, "messages": [HI], "tools": tools}
    status, said, _ = server.ask("/v1/messages", asked)
    text, call = said["content"]
    assert (status, said["stop_reason"], text["text"]) == (200, "tool_use", "Well. ")
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Paris"})
    chat = server.chat(messages=[HI], tools=TOOLS)["usage"]
    counts = said["usage"]
    assert counts["input_tokens"] + counts["cache_read_input_tokens"] == chat["prompt_tokens"]

    stream = server.ask("/v1/messages", asked | {"stream": True})[1]
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events][:2] == ["message_start", "content_block_start"]
    assert [event["type"] for event in events][-2:] == ["message_delta", "message_stop"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Well. "
    assert json.loads(deltas[-1]["partial_json"]) == {"city": "Paris"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"

    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
    talk = [HI, {"role": "assistant", "content": said["content"]}]
    talk.append({"role": "user", "content": [result, {"type": "text", "text": "And now?"}]})
    more = server.ask("/v1/messages", asked | {"messages": talk, "system": "Be brief."})[1]
    assert more["stop_reason"]
    cut = server.ask("/v1/messages", asked | {"max_tokens": 1})[1]
    assert cut["stop_reason"] == "max_tokens"
    picture = {"role": "user", "content": [{"type": "image"}]}
    for wrong, word in (({"messages": [picture]}, "image"), ({"max_tokens": None}, "max_tokens")):
        status, error = server.refusal("/v1/messages", asked | wrong)
        assert status == 400
        assert word in error["message"]
