"""Chats with templates that have the structure of published ones.

The right prompt is the result of `apply_chat_template` with the right arguments.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import ladecli
from ladecli.models.find import resolve
from ladecli.options.answer import TemplateChoice
from ladecli.trace.format import read_trace
from tests.support.hub import holding, stating
from tests.support.scripts import CHATML, FakeModel

SYSTEM, FIRST, SECOND = "Be brief.", "Where is the Louvre?", "And the Prado?"

LLAMA3 = """\
{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}\
{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}\
<|head|>system<|tail|>

Today is {{ date_string | default('some day') }}.

{{ system | trim }}<|eot|>{% for m in rest %}<|head|>{{ m.role }}<|tail|>

{{ m.content | trim }}<|eot|>{% endfor %}{% if add_generation_prompt %}<|head|>assistant<|tail|>

{% endif %}"""
MISTRAL = """\
{{ bos_token }}{% for m in messages %}\
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles alternate') }}\
{% endif %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]\
{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"""
GEMMA = """\
{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}\
{% endif %}{% for m in messages %}<turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<turn>model
{% endif %}"""
PHI3 = """\
{% for m in messages %}{% if m.role == 'user' %}<|user|>
{{ m.content }}<|close|>
{% elif m.role == 'assistant' %}<|assistant|>
{{ m.content }}<|close|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% else %}{{ eos_token }}{% endif %}"""
QWEN3 = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last and m.reasoning_content is defined %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
R1 = """\
{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\
{% elif m.role == 'user' %}<|User|>{{ m.content }}{% else %}<|Assistant|>\
{{ m.content.split('</think>')[-1] }}<|stop|>{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|Assistant|><think>
{% endif %}"""
CHANNELS = """\
<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>\
{% for m in messages %}{% if m.role == 'system' %}<|start|>developer<|message|>\
{{ m.content }}<|end|>\
{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>\
{% else %}{% if 'analysis' in m.content %}{{ raise_exception('channels in content') }}{% endif %}\
{% if loop.last and m.thinking is defined %}\
<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}\
<|start|>assistant<|channel|>final<|message|>{{ m.content }}\
{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endif %}\
{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
PARTS = """\
{% for m in messages %}{{ m.role | capitalize }}:\
{% for part in m.content %}{% if part.type == 'text' %} {{ part.text }}{% endif %}{% endfor %}<stop>
{% endfor %}{% if add_generation_prompt %}Assistant:
{% endif %}"""
MAGISTRAL = """\
{{ bos_token }}{% for m in messages %}\
{{ '[SYSTEM]' if m.role == 'system' else '[INST]' if m.role == 'user' }}\
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
{% if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]{% else %}{{ part.text }}\
{% endif %}{% endfor %}{% endif %}\
{{ '[/SYSTEM]' if m.role == 'system' else '[/INST]' if m.role == 'user' else eos_token }}\
{% endfor %}"""
NO_PARTS = PARTS.replace("part.type == 'text'", "part.type == 'poem'")


LEVELS = "{% if reasoning_effort in ('none', 'low', 'high') %}{{ reasoning_effort }}{% endif %}"


def plain(role: str, content: str, **more: str) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def parts(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": content}]}


def thinking(role: str, content: str, thinking: str | None = None) -> dict[str, Any]:
    """Return a message whose reasoning is a typed part."""
    if thinking is None:
        return plain(role, content)
    part, message = {"type": "thinking", "thinking": thinking}, parts(role, content)
    return message | {"content": [part, *message["content"]]}


@dataclass(frozen=True)
class Case:
    """A template, what its model says, and what is right of both.

    Attributes:
        thinks: the reasoning of the answer.
        system: the form of the system message: "role", or "user" if it goes before the first
            message.
        options: of `lade`.
        arguments: of `apply_chat_template` that are the same.
        message: makes a message.
        keeps: the name under which earlier reasoning is passed.
    """

    folder: FakeModel
    answer: str = "Paris."
    thinks: str | None = None
    system: str = "role"
    options: Sequence[str] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    message: Any = plain
    keeps: str = ""

    def messages(self, first: str, *others: str) -> list[dict[str, Any]]:
        """Return the conversation in the form that the template expects."""
        messages = [self.message("system", SYSTEM), self.message("user", first)]
        if self.system == "user":
            messages = [self.message("user", f"{SYSTEM}\n\n{first}")]
        reasoning = {self.keeps: self.thinks} if self.keeps else {}
        for number, text in enumerate(others):
            role, more = ("user", {}) if number % 2 else ("assistant", reasoning)
            messages.append(self.message(role, text, **more))
        return messages


IM, INST = ("<|im_start|>", "<|im_end|>"), ("[INST]", "[/INST]")
PARIS = ("Paris", ".", "<|im_end|>", "x")
THINK = ("<think>", "Hm", ", ", "</think>", "\n\n", "Paris", ".", "<|im_end|>", "lost")
# A token of a script occurs only once, so the answer begins with a single token.
LAST = "<|start|>assistant<|channel|>final<|message|>"
MARKS = ("<|start|>", "<|message|>", "<|channel|>", "<|return|>", LAST)
ANALYSED = ("<|channel|>", "analysis", "<|message|>", "Hm", ", ", "<|end|>", LAST, "Paris", ".")
MUSING = CHATML.replace("{{ m.content }}", "{{ m.thinking }}{{ m.content }}")
MUSES = ("<muse>", "Hm", ", ", "</muse>", "Paris", ".", "<|im_end|>", "lost")
SCHEMA = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<muse>", "close": "</muse>"},
        "content": {"close": "<|im_end|>"},
    },
}
CASES = {
    "chatml": Case(FakeModel(CHATML, PARIS, IM)),
    "llama3": Case(
        FakeModel(
            LLAMA3, (*PARIS[:2], "<|eot|>", "x"), ("<|head|>", "<|tail|>", "<|eot|>"), "\n\n"
        ),
        options=("--template-arg", "date_string=26 Jul 2024"),
        arguments={"date_string": "26 Jul 2024"},
    ),
    "mistral-v0.1": Case(
        FakeModel(MISTRAL, (*PARIS[:2], "<|end|>"), INST, "[/INST]"), system="user"
    ),
    "gemma": Case(
        FakeModel(GEMMA, (*PARIS[:2], "<end_of_turn>", "x"), ("<turn>", "<end_of_turn>")),
        system="user",
    ),
    "phi-3": Case(
        FakeModel(PHI3, (*PARIS[:2], "<|close|>", "x"), ("<|user|>", "<|assistant|>", "<|close|>")),
        system="user",
    ),
    "qwen3": Case(FakeModel(QWEN3, THINK, IM), thinks="Hm,", keeps="reasoning_content"),
    "qwen3-without": Case(
        FakeModel(QWEN3, PARIS, (*IM, "<think>", "</think>"), "\n\n"),
        options=("--reasoning-effort", "none"),
        arguments={"enable_thinking": False},
    ),
    "deepseek-r1": Case(
        FakeModel(R1, (*THINK[1:-2], "<|stop|>", "x"), ("<|User|>", "<|Assistant|>", "<|stop|>")),
        thinks="Hm,",
    ),
    "named": Case(
        FakeModel({"rag": MISTRAL, "talk": CHATML}, PARIS, IM),
        options=("--chat-template", "talk"),
        arguments={"chat_template": CHATML},
    ),
    "smolvlm": Case(FakeModel(PARTS, (*PARIS[:2], "<stop>", "x"), ("<stop>",)), message=parts),
    "gpt-oss": Case(
        FakeModel(CHANNELS, (*ANALYSED, "<|return|>"), MARKS, "assistant", "<|return|>"),
        thinks="Hm,",
        keeps="thinking",
        options=("--reasoning-effort", "low"),
        arguments={"reasoning_effort": "low"},
    ),
    "magistral": Case(
        FakeModel(
            MAGISTRAL,
            ("[THINK]", "Hm", ", ", "[/THINK]", *PARIS[:2], "<|end|>"),
            (*INST, "[SYSTEM]", "[/SYSTEM]"),
            "[/INST]",
        ),
        thinks="Hm,",
        message=thinking,
        keeps="thinking",
    ),
    "schema": Case(
        FakeModel(MUSING, MUSES, IM, tokenizer={"response_template": SCHEMA}),
        thinks="Hm,",
        keeps="thinking",
    ),
}


def expected(case: Case, tokenizer: Any, *said: str) -> tuple[int, str]:
    """Return the number of tokens and the text of the right prompt."""
    ids = right_ids(tokenizer, case.messages(*said), **case.arguments)
    return len(ids), tokenizer.decode(ids)


def right_ids(tokenizer: Any, messages: Any, **arguments: Any) -> Any:
    """Return transformers' ids of a conversation."""
    arguments |= {"add_generation_prompt": True, "return_dict": True}
    return tokenizer.apply_chat_template(messages, **arguments)["input_ids"]


def prompt_of(trace: Path) -> tuple[int, str]:
    header = read_trace(trace).header
    return header.prompt_tokens, header.prompt


@pytest.mark.parametrize("name", CASES)
def test_prompts_and_answers_of_two_turns(lade: Any, name: str, tmp_path: Path) -> None:
    case, trace = CASES[name], tmp_path / "trace"
    folder = case.folder.write(tmp_path / "model")
    common = (folder, "-s", SYSTEM, "--trace", str(trace), "-n", "20", *case.options)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    done = lade("generate", *common, "-p", FIRST, "--json")
    values = tuple(done.json()[name] for name in ("text", "reasoning", "finish_reason"))
    assert values == (case.answer, case.thinks, "eos")
    assert prompt_of(trace) == expected(case, tokenizer, FIRST)
    assert ("before your first message" in done.err) == (case.system == "user")

    done = lade("chat", *common, typed=f"{FIRST}\n{SECOND}\n")
    assert done.code == 0, done.err
    assert done.out == f"{case.answer}\n" * 2
    assert prompt_of(trace) == expected(case, tokenizer, FIRST, case.answer, SECOND)


def say(lade: Any, folder: str, *options: str) -> Any:
    return lade("generate", folder, "-p", FIRST, "-n", "20", *options)


def written(name: str) -> Any:
    """Return the folder of a case."""

    @pytest.fixture(scope="module")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
        return CASES[name].folder.write(tmp_path_factory.mktemp("model"))

    return folder


thinker, named, muser = written("qwen3"), written("named"), written("schema")


def test_a_template_that_drops_the_message_is_refused(lade: Any, tmp_path: Path) -> None:
    folder = FakeModel(NO_PARTS, ("Paris", "<stop>"), ("<stop>",)).write(tmp_path)
    assert "drops the user's messages" in say(lade, folder).refused()


def test_a_template_in_another_encoding_is_named(lade: Any, model_with: Any) -> None:
    folder = model_with(holding("chat_template.jinja", b'{{ "\xe9" }}'))
    assert "chat_template.jinja is not UTF-8" in say(lade, folder).refused()
    report = lade("doctor", folder)
    assert (report.code, "chat_template.jinja" in report.out) == (1, True)


def test_named_templates(lade: Any, named: str, tmp_path: Path) -> None:
    assert "rag, talk" in say(lade, named).refused()
    assert "'rug'" in say(lade, named, "--chat-template", "rug").refused()
    (tmp_path / "a.jinja").write_text(CHATML)
    done = say(lade, named, "--chat-template", str(tmp_path / "a.jinja"))
    assert (done.code, done.out) == (0, "Paris.\n")
    with pytest.raises(ladecli.errors.UsageError, match="rag, talk"):
        ladecli.load(named).generate([plain("user", FIRST)])
    assert ladecli.load(named).generate([plain("user", FIRST)], chat_template="talk") == "Paris."


def test_reserved_and_unused_template_arguments(lade: Any, thinker: str) -> None:
    assert "KEY=VALUE" in say(lade, thinker, "--template-arg", "thinking").refused()
    refused = say(lade, thinker, "--template-arg", "add_generation_prompt=false").refused()
    assert "add_generation_prompt" in refused
    assert "raw" in say(lade, thinker, "--raw", "--template-arg", "a=1").refused()
    done = say(lade, thinker, "--template-arg", "enable_thinkin=false")
    assert done.code == 0
    assert "no variable 'enable_thinkin'" in done.err


@pytest.mark.parametrize(
    ("source", "effort", "arguments", "words"),
    [
        (QWEN3, "none", {"enable_thinking": False}, ""),
        (QWEN3, "high", {"enable_thinking": True}, ""),
        (CHANNELS, "high", {"reasoning_effort": "high"}, ""),
        (CHANNELS, "none", {"reasoning_effort": "low"}, "cannot leave reasoning out"),
        (MISTRAL + LEVELS, "none", {"reasoning_effort": "none"}, ""),
        (QWEN3 + LEVELS, "none", {"enable_thinking": False}, ""),
        (QWEN3 + LEVELS, "low", {"enable_thinking": True, "reasoning_effort": "low"}, ""),
        (CHATML, "low", {}, "no variable 'reasoning_effort' nor 'enable_thinking'"),
    ],
)
def test_reasoning_effort(
    source: str, effort: str, arguments: dict[str, Any], words: str, lade: Any, tmp_path: Path
) -> None:
    file, trace = tmp_path / "template", tmp_path / "trace"
    file.write_text(source)
    options = ("--chat-template", str(file), "--reasoning-effort", effort, "--no-stats")
    done = lade("generate", "demo", "-p", FIRST, "-n", "1", *options, "--trace", str(trace))
    right = AutoTokenizer.from_pretrained(resolve("demo")).apply_chat_template(
        [plain("user", FIRST)],
        **{"chat_template": source, "add_generation_prompt": True, "tokenize": False},
        **arguments,
    )
    assert prompt_of(trace)[1] == right
    assert (words in done.err) if words else (done.err == "")


def test_variables_of_a_template(lade: Any, thinker: str) -> None:
    (row,) = (
        r for r in lade("doctor", thinker, "--json").json()["checks"] if "variables" in r["name"]
    )
    assert row["value"] == "enable_thinking"
    assert "raw" in say(lade, thinker, "--raw", "--reasoning-effort", "low").refused()


def test_reasoning_on_stdout(lade: Any, thinker: str) -> None:
    assert say(lade, thinker).out == "Paris.\n"
    assert say(lade, thinker, "--reasoning").out == "Reasoning:\nHm,\n\nAnswer:\nParis.\n"
    raw = lade("generate", thinker, "--raw", "-p", "assistant\n", "-n", "7")
    assert raw.out == "<think>Hm, </think>\n\nParis.\n", "a raw text is continued as it is"
    cut = say(lade, thinker, "-n", "2")
    assert cut.out.strip() == ""
    assert "inside its reasoning" in cut.err
    answer = say(lade, thinker, "-n", "2", "--json").json()
    assert (answer["text"], answer["reasoning"], answer["finish_reason"]) == ("", "Hm", "length")
    assert answer["usage"]["completion_tokens"] == 2


def test_reasoning_in_python(thinker: str) -> None:
    model = ladecli.load(thinker)
    question = [plain("user", FIRST)]
    assert model.generate(question) == "Paris."
    steps = [event for event in model.stream(question) if isinstance(event, ladecli.TextStep)]
    assert "".join(step.reasoning for step in steps) == "Hm,"
    off = {"enable_thinking": False}
    steps = [*model.stream(question, template_args=off)]
    assert "".join(getattr(step, "reasoning", "") for step in steps) == ""
    assert model.generate(question, reasoning_effort="none") == "Paris."
    with pytest.raises(ladecli.errors.UsageError, match="reasoning-effort 'much'"):
        model.generate(question, reasoning_effort="much")


def test_options_of_templates_in_a_chat(lade: Any, thinker: str, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    lines = [
        *("/set reasoning off", "/set reasoning-effort high", FIRST),
        *("/show reasoning-effort", "/set template-arg enable_thinking=true"),
        *("/set template-arg more=1", "/show template-arg", f"/save {saved}"),
    ]
    done = lade("chat", thinker, "-n", "20", typed="\n".join(lines))
    assert (done.code, done.out) == (0, "Paris.\n"), done.err
    assert "enable_thinking=true,more=1" in done.err
    assert "high" in done.err
    assert "no variable 'more'" in done.err
    (question, reply) = json.loads(saved.read_text())["messages"]
    assert (question["reasoning"], reply["reasoning"], reply["content"]) == (None, "Hm,", "Paris.")


def test_a_named_template_stays_with_its_model(lade: Any, named: str, thinker: str) -> None:
    lines = [FIRST, f"/model {thinker}", SECOND, "/show chat-template"]
    done = lade("chat", named, "--chat-template", "talk", "-n", "20", typed="\n".join(lines))
    assert (done.code, done.out) == (0, "Paris.\n" * 2), done.err
    assert re.search(r"chat-template +default +default", done.err)


def test_answers_without_text_say_so(lade: Any, thinker: str, tmp_path: Path) -> None:
    folder = CASES["gpt-oss"].folder.write(tmp_path)
    assert "the answer is empty" in say(lade, folder, "-n", "3").err
    done = lade("chat", thinker, "-n", "2", typed=f"{FIRST}\n/copy")
    assert "has no answer to copy" in done.err


def test_the_template_in_an_older_processors_file(lade: Any, tmp_path: Path) -> None:
    folder = Path(CASES["smolvlm"].folder.write(tmp_path))
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": PARTS}))
    assert say(lade, str(folder)).out == "Paris.\n"


@pytest.mark.slow
def test_benchmarks_prompt_as_a_chat_does(lade: Any, muser: str, rows_file: Any) -> None:
    """Later turns contain the reasoning, for every method, and notices are printed."""
    case, path = CASES["schema"], rows_file({"system": SYSTEM, "turns": [FIRST, SECOND]})
    tokenizer, turns = AutoTokenizer.from_pretrained(muser), ([FIRST], [FIRST, case.answer, SECOND])
    counts = [expected(case, tokenizer, *messages)[0] for messages in turns]
    asked = (muser, "--prompts", path, "--template-arg", "nothing=1", "-n", "20", "--json")
    verified = lade("verify", *asked)
    assert [answer["prompt_tokens"] for answer in verified.json()["answers"]] == counts
    measured = lade("bench", *asked, "--strategies", "lookahead,hf", "--repeat", "1")
    runs = measured.json()["runs"]
    for name in ("lookahead", "hf"):
        assert [run["prompt_tokens"] for run in runs if run["contender"] == name] == counts
    for done in (verified, measured):
        assert done.err.count("no variable 'nothing'") == 1


def test_contents_as_text_or_as_parts(tmp_path: Path) -> None:
    """Clients of servers send typed parts for any template, and messages without content."""
    typed, call = parts("user", FIRST), {"role": "assistant", "tool_calls": []}
    for name, template in (("text", GEMMA), ("parts", PARTS)):
        case = FakeModel(template, ("Paris", ".", "<stop>", "x"), ("<turn>", "<stop>"))
        model = ladecli.load(case.write(tmp_path / name))
        system = [parts("system", SYSTEM)]
        ids = model.session.encode_chat([*system, typed])
        assert ids == model.session.encode_chat([plain("system", SYSTEM), plain("user", FIRST)])
        assert FIRST in model.session.loaded.tokenizer.decode(ids)
    template = CHATML.replace("m.content", "m.content | default('called')")
    model = ladecli.load(FakeModel(template, ("Paris", "<|im_end|>"), IM).write(tmp_path / "call"))
    assert model.generate([plain("user", FIRST), call, plain("user", FIRST)]) == "Paris"


# Messages that reach the prompt.


CALLS = """\
{% if tools %}<|im_start|>system
Tools: {{ tools | tojson }}{{ documents | tojson if documents }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }} {{ m.tool_call_id }}
{{ m.content }}{% for call in m.tool_calls or [] %}
{{ call.function.name }}{% for key, value in call.function.arguments.items() %}
{{ key }}={{ value }}
{% endfor %}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
DEVELOPER = CHATML.replace("{{ m.role }}", "{{ 'DEV' if m.role == 'developer' else m.role }}")
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": WEATHER}]


def called(arguments: Any, **more: Any) -> dict[str, Any]:
    """Return a message that calls a tool."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call], **more}


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a session whose model's own template is not used."""
    folder = FakeModel(CHATML, ("Paris", "<|im_end|>"), IM).write(tmp_path_factory.mktemp("model"))
    return ladecli.load(folder).session


@pytest.fixture
def prompt_by(talker: Any, tmp_path: Path) -> Any:
    """Return the prompt of messages with a template, and transformers' prompt."""

    def call(template: str, said: Any, right: Any, **arguments: Any) -> tuple[str, str]:
        path, tokenizer = tmp_path / f"{abs(hash(template))}.jinja", talker.loaded.tokenizer
        path.write_text(template)
        choice = TemplateChoice(str(path), arguments)
        expected = tokenizer.apply_chat_template(
            right, chat_template=template, add_generation_prompt=True, tokenize=False, **arguments
        )
        return tokenizer.decode(talker.encode_chat(said, choice)), expected

    return call


CONTENT = "{{ m.content }}"
CHANGED = {
    "its own text": "Call {'type': 'function'}. " + CHATML,
    "upper case": CHATML.replace(CONTENT, "{{ m.content | upper }}"),
    "cut": CHATML.replace(CONTENT, "{{ m.content[:4] }}"),
    "JSON": CHATML.replace(CONTENT, "{{ {'text': m.content} | tojson }}"),
    "the user's words last": "{% for m in messages %}{{ m.content | length }}{% endfor %}"
    "{{ messages[-1].content | lower }}",
    "parts": PARTS.replace("{{ part.text }}", "{{ part.text | upper }}") + "'type'",
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_template_may_change_the_message(name: str, prompt_by: Any) -> None:
    said = [plain("system", SYSTEM), plain("user", FIRST)]
    right = [parts(**message) for message in said] if name == "parts" else said
    prompt, expected = prompt_by(CHANGED[name], said, right)
    assert prompt == expected
    if name != "parts":  # the template would write it as a list
        assert prompt_by(CHANGED[name], [parts(**message) for message in said], said)[0] == expected


def test_developer_messages_reach_the_prompt(prompt_by: Any) -> None:
    said = [plain("developer", SYSTEM), plain("user", FIRST)]
    first = [plain("user", f"{SYSTEM}\n\n{FIRST}")]
    as_system = [plain("system", SYSTEM), said[1]]
    cases = (
        *((DEVELOPER, said), (CHANNELS.replace("== 'system'", "== 'developer'"), said)),
        *((CHATML, as_system), (CHANNELS, as_system), (PHI3, first), (GEMMA, first)),
    )
    for template, right in cases:
        prompt, expected = prompt_by(template, said, right)
        assert prompt == expected
        assert SYSTEM in prompt


def test_calls_and_results_of_tools(prompt_by: Any, talker: Any) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    right = [plain("user", FIRST), called({"city": "Rome"}), result]
    typed = result | {"content": [{"type": "text", "text": "sunny"}]}
    for call in (called('{"city": "Rome"}', content=None), called({"city": "Rome"})):
        prompt, expected = prompt_by(CALLS, [right[0], call, typed], right, tools=TOOLS)
        assert prompt == expected
        assert "city=Rome" in prompt
    talker.new_notices()
    prompt, expected = prompt_by(CHATML, right, right)
    assert "sunny" in prompt
    assert "calls of tools are left out" in " ".join(talker.new_notices())
    with pytest.raises(ladecli.errors.UsageError, match="drops the results of tools"):
        prompt_by(PHI3, right, right)


@pytest.mark.parametrize("place", ["files", "list", "dict"])
def test_the_template_for_tools_is_taken_with_tools(lade: Any, place: str, tmp_path: Path) -> None:
    templates = {"default": CHATML, "tool_use": CALLS, "brief": "{{ messages[0].content }}\n"}
    folder = Path(FakeModel(templates, PARIS[:3], IM).write(tmp_path))
    if place != "files":
        shutil.rmtree(folder / "additional_chat_templates")
        (folder / "chat_template.jinja").unlink()
        stated: Any = templates
        if place == "list":
            stated = [{"name": key, "template": value} for key, value in templates.items()]
        stating("tokenizer_config.json", chat_template=stated)(folder)
    tokenizer, hi = AutoTokenizer.from_pretrained(folder), [plain("user", FIRST)]
    arguments = ("--template-arg", f"tools={json.dumps(TOOLS)}")
    for options, name, more in (
        ((), "default", {}),
        (("--chat-template", "default"), "default", {}),
        (arguments, "tool_use", {"tools": TOOLS}),
        ((*arguments, "--chat-template", "brief"), "brief", {"tools": TOOLS}),
    ):
        done = say(lade, str(folder), *options, "--json", "-n", "2")
        count = len(right_ids(tokenizer, hi, chat_template=name, **more))
        assert done.json()["usage"]["prompt_tokens"] == count
        assert ("changes nothing" in done.err) == (name == "brief")


def test_rows_bring_tools(lade: Any, rows_file: Any, tmp_path: Path) -> None:
    folder = FakeModel(CALLS, PARIS[:3], IM).write(tmp_path / "model")
    hi, result = plain("user", FIRST), {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    both = {"tools": TOOLS, "documents": [{"title": "a", "text": "b"}]}
    rows: list[tuple[dict[str, Any], list[Any], dict[str, Any]]] = [
        ({"messages": [hi], "tools": TOOLS}, [hi], {"tools": TOOLS}),
        ({"prompt": FIRST, "tools": TOOLS}, [hi], {"tools": TOOLS}),
        ({"messages": [hi], "tools": TOOLS, "tool_choice": "none"}, [hi], {}),
        ({"messages": [hi], "tool_choice": "auto"} | both, [hi], both),
        ({"messages": [hi], "chat_template_kwargs": {"tools": TOOLS}}, [hi], {"tools": TOOLS}),
        (
            {"messages": [hi, called('{"city": "Rome"}'), result], "tools": TOOLS},
            *([hi, called({"city": "Rome"}), result], {"tools": TOOLS}),
        ),
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = ("generate", folder, "-n", "1", "-f", rows_file(*(row for row, _, _ in rows)))
    for answer, (row, messages, more) in zip(lade(*asked, "--json").rows(), rows, strict=True):
        count = len(right_ids(tokenizer, messages, **more))
        assert answer["usage"]["prompt_tokens"] == count, row
    assert "tools need a chat template" in lade(*asked, "--raw").refused()
    other = FakeModel(CHATML, PARIS[:3], IM).write(tmp_path / "other")
    assert "no variable 'tools'" in lade("generate", other, *asked[2:]).err


# The end of an answer.


RUNAWAY = ("Paris", ".", "<|im_end|>", "system", "<|im_start|>", " user", "Q")


@pytest.fixture(scope="module")
def runaway(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a chat model whose configs have only the base model's end token."""
    return FakeModel(CHATML, RUNAWAY, IM).write(tmp_path_factory.mktemp("model"))


def answered(lade: Any, folder: str, *arguments: str) -> Any:
    return lade("generate", folder, "-p", "Where?", "-n", "7", "--json", *arguments).json()


def test_the_token_that_the_template_puts_after_an_answer_ends_it(lade: Any, runaway: str) -> None:
    answer = answered(lade, runaway)
    assert (answer["text"], answer["finish_reason"]) == ("Paris.", "eos")
    assert len(answer["token_ids"]) == 3
    for strategy in ("autoregressive", "jacobi"):
        assert answered(lade, runaway, "--strategy", strategy)["token_ids"] == answer["token_ids"]
    checks = lade("doctor", runaway, "--json").json()["checks"]
    (line,) = [check["value"] for check in checks if check["name"] == "end tokens"]
    assert line.index("<|end|>") < line.index("<|im_end|>")


@pytest.mark.parametrize("option", ["--ignore-eos", "--raw"])
def test_nothing_else_ends_an_answer(lade: Any, runaway: str, option: str) -> None:
    """A raw text is not a conversation, even if it contains the template's tokens."""
    prompt = "assistant\n" if option == "--raw" else "Where?"
    done = lade("generate", runaway, "-p", prompt, "-n", "7", "--json", option)
    assert done.json()["text"] == "Paris.system userQ"


@pytest.mark.parametrize(
    ("after", "ends"),
    [
        ("<|im_end|>\n", True),
        (" <|im_end|>", True),
        ("\n", False),
        ("<|im_end|><|im_start|>", False),
        (" and so on<|im_end|>", False),
    ],
)
def test_the_end_token_is_one_added_token(
    lade: Any, tmp_path: Path, after: str, ends: bool
) -> None:
    template = CHATML.replace("<|im_end|>\n", after)
    folder = FakeModel(template, RUNAWAY, IM).write(tmp_path)
    assert (answered(lade, folder)["finish_reason"] == "eos") == ends


@pytest.mark.parametrize(
    ("stop", "text", "count"),
    [(".<|im_end|>", "Paris", 3), ("end|>system<|im_st", "Paris.", 5), ("assistant\nPar", "", 1)],
)
def test_stop_strings_of_tokens(lade: Any, runaway: str, stop: str, text: str, count: int) -> None:
    answer = answered(lade, runaway, "--ignore-eos", "--stop", stop)
    assert (answer["text"], answer["finish_reason"]) == (text, "stop")
    assert len(answer["token_ids"]) == count
