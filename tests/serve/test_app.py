"""`lade serve` over real sockets: OpenAI's own client, plain HTTP, and hostile clients."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ladecli.serve.worker import GRACE
from tests.support.hub import DEMO, copied, stating
from tests.support.server import KEY, QUESTION, Server, http_post

pytestmark = pytest.mark.slow

(HI,) = QUESTION
CALLS = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
WEATHER = {"type": "function", "function": {"name": "weather"}}
NONE = {"type": "function", "function": {"name": "none"}}
UNKNOWN = {"type": "json_schema", "json_schema": {"schema": {"type": "unknown"}}}
ORIGIN = "http://localhost:3000"
RANDOM = {"temperature": 50, "top_k": 0, "seed": 1, "ignore_eos": True}
"""Sampling from nearly all tokens, so that no draft is right."""
CONTEXT = 20_000
SHORT = {"prompt": "def ", "max_tokens": 2}
LONG = {"prompt": "def ", "max_tokens": 19_000} | RANDOM
"""An answer that takes longer than any test waits for, however fast or busy the machine is."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the demo model, which has a longer context here."""
    home = tmp_path_factory.mktemp("home")
    longer = stating("config.json", max_position_embeddings=CONTEXT)
    folder = copied(DEMO, home / "demo", longer)
    with Server(home, "--queue", "2", "--name", "demo", model=folder) as started:
        yield started


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for others, with a key, an origin, and a template that may begin with reasoning."""
    home = tmp_path_factory.mktemp("home")
    template = home / "template"
    template.write_text(
        "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n"
        "{% endfor %}{{ kind }}{{ size }}<|assistant|>\n{% if thinks %}<think>\n{% endif %}"
        "{{ reasoning_effort }}"
    )
    options = ("--host", "0.0.0.0", "--api-key", KEY, "--cors", ORIGIN)
    options += ("--chat-template", str(template), "--template-arg", "kind=plain and long")
    with Server(home, *options, "--system", "Be brief.", "-n", "9") as started:
        yield started


# OpenAI's client.


def test_a_whole_answer_is_that_of_generate(server: Server, lade: Any) -> None:
    expected = lade("generate", "-p", QUESTION[0]["content"], "-n", "40", "--json").json()
    with server.client() as client:
        assert [model.id for model in client.models.list()] == ["demo"]
        answer = client.chat.completions.create(
            model="whatever", messages=QUESTION, max_completion_tokens=40
        )
    choice, usage = answer.choices[0], answer.usage
    assert (choice.message.content, choice.message.role) == (expected["text"], "assistant")
    assert choice.finish_reason == expected["finish_reason"] == "length"
    assert answer.model == "demo"
    assert usage.prompt_tokens == expected["usage"]["prompt_tokens"]
    assert usage.completion_tokens == len(expected["token_ids"])
    assert answer.lade["tokens_per_step"] == usage.completion_tokens / answer.lade["steps"]
    assert {"speedup", "speedup_from", "seconds", "accepted"} <= answer.lade.keys()


@pytest.mark.parametrize("usage", [None, {"include_usage": True}])
def test_a_stream_has_the_same_text_and_ends_with_figures(server: Server, usage: Any) -> None:
    asked = {"model": "demo", "messages": QUESTION, "max_tokens": 30}
    with server.client() as client:
        whole = client.chat.completions.create(**asked)
        options = {"stream_options": usage} if usage else {}
        with client.chat.completions.create(**asked, stream=True, **options) as stream:
            chunks = list(stream)
    assert stream.response.headers["X-Accel-Buffering"] == "no", "proxies wait for its end"
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join(delta.delta.content or "" for delta in deltas)
    assert text == whole.choices[0].message.content
    assert deltas[0].delta.role == "assistant"
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert chunks[-1].usage.completion_tokens == 30
    assert chunks[-1].lade["steps"] >= len(deltas) - 2
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert bool(chunks[-1].choices) == (usage is None)


def test_a_text_is_continued_with_the_seed_that_was_asked_for(server: Server, lade: Any) -> None:
    options = {"temperature": 0.9, "top_p": 0.95, "seed": -7}
    more: dict[str, Any] = {"top_k": 30, "min_p": 0.01, "repetition_penalty": 1.1}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in (options | more).items()]
    expected = lade("generate", "--raw", "-p", "def ", "-n", "30", "--json", *flags).json()
    with server.client() as client:
        asked = {"model": "demo", "prompt": "def ", "max_tokens": 30}
        first, again = (
            client.completions.create(**asked, **options, extra_body=more) for _ in range(2)
        )
        free = client.completions.create(**asked, temperature=1)
    assert first.choices[0].text == again.choices[0].text == expected["text"]
    assert first.lade["seed"] == -7
    assert free.lade["seed"] is not None


def test_simultaneous_clients_get_their_own_answers(server: Server) -> None:
    prompts = ["def ", "class Queue:\n", "import os"]
    alone = [*map(server.text, prompts)]
    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(server.text, prompts)] == alone


def test_a_client_that_leaves_ends_its_answer(server: Server) -> None:
    before = server.outcome("interrupted")
    with server.client() as client:
        endless: dict[str, Any] = {"max_tokens": 19_000, "extra_body": {"ignore_eos": True}}
        with client.completions.create(model="x", prompt="def ", stream=True, **endless) as stream:
            next(iter(stream))
        server.wait_for("interrupted", before + 1)
    with server.send("/v1/completions", LONG):
        server.wait_for_queue(1)
        time.sleep(0.2)
    server.wait_for("interrupted", before + 2)
    assert server.ask("/v1/completions", SHORT)[0] == 200


def test_a_full_queue_says_when_to_come_again(server: Server) -> None:
    before, refusals = server.outcome("interrupted"), server.outcome("refused")
    taken = [server.send("/v1/completions", LONG) for _ in range(3)]  # one is answered, two wait
    server.wait_for_queue(3)
    with server.client() as client, pytest.raises(openai.RateLimitError) as refused:
        client.completions.create(model="demo", prompt="def ")
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert server.outcome("refused") == refusals + 1
    taken.pop().close()  # a client that waits and leaves makes room
    server.wait_for_queue(2)
    with server.send("/v1/completions", SHORT) as waiting:
        for connection in taken:
            connection.close()
        assert waiting.recv(64).startswith(b"HTTP/1.1 200")
    server.wait_for("interrupted", before + 1)


def test_the_next_turn_reads_only_what_is_new(server: Server) -> None:
    first = server.chat()
    again = [*QUESTION, first["choices"][0]["message"]]
    second = server.chat(messages=[*again, {"role": "user", "content": "And the pool?"}])
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > len(first["usage"])
    other = server.chat(messages=[{"role": "user", "content": "Hello"}])
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] < 5
    assert server.chat()["choices"] == first["choices"]


# Fields.


def test_log_probabilities_are_the_models_own(server: Server) -> None:
    text = server.text("def ")
    answer = server.complete(logprobs=3, prediction={"type": "content", "content": text})
    assert answer["lade"]["steps"] < 20, "steps of several tokens are what is tested"
    logprobs = answer["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == answer["choices"][0]["text"] == text
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    ids = tokenizer("def ")["input_ids"]
    start, ids = len(ids), ids + tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        rows = model(torch.tensor([ids])).logits[0].log_softmax(-1)[start - 1 : -1]
    expected = rows.gather(1, torch.tensor(ids[start:])[:, None])[:, 0]
    assert logprobs["token_logprobs"] == pytest.approx(expected.tolist(), abs=1e-3)
    for best, values in zip(logprobs["top_logprobs"], rows.topk(3).values.tolist(), strict=True):
        assert sorted(best.values(), reverse=True) == pytest.approx(values, abs=1e-3)


def test_log_probabilities_of_a_chat(server: Server) -> None:
    for more in ({}, {"repetition_penalty": 1.3}):
        choice = server.chat(logprobs=True, top_logprobs=2, **more)["choices"][0]
        tokens = choice["logprobs"]["content"]
        assert "".join(token["token"] for token in tokens) == choice["message"]["content"]
        assert bytes(tokens[0]["bytes"]).decode() == tokens[0]["token"]
        assert {len(token["top_logprobs"]) for token in tokens} == {2}
        likely = [token["logprob"] == token["top_logprobs"][0]["logprob"] for token in tokens]
        assert all(likely) == (more == {}), "a penalty is no part of them"


def test_predictions_make_an_answer_faster(server: Server, lade: Any) -> None:
    prompt = "import "
    alone = lade("generate", "--raw", "-p", prompt, "-n", "60", "--json").json()
    known = [{"type": "text", "text": alone["text"]}]
    server.chat(**RANDOM | {"max_tokens": 200})
    prediction = {"type": "content", "content": known}
    answer = server.complete(prompt, max_tokens=60, prediction=prediction)
    assert answer["choices"][0]["text"] == alone["text"]
    assert answer["lade"]["steps"] < alone["decode"]["steps"] / 2
    counts = answer["usage"]["completion_tokens_details"]
    assert counts["accepted_prediction_tokens"] > 30
    assert counts["rejected_prediction_tokens"] >= 0


def test_several_prompts_as_texts_or_ids(server: Server) -> None:
    single = [server.complete(prompt) for prompt in ("def ", "import ")]
    texts = [answer["choices"][0]["text"] for answer in single]
    ids = AutoTokenizer.from_pretrained(DEMO)(["def ", "import "])["input_ids"]
    for prompts in (["def ", "import "], ids):
        answer = server.complete(prompts)
        assert [(c["index"], c["text"]) for c in answer["choices"]] == [*enumerate(texts)]
        total = sum(one["usage"]["total_tokens"] for one in single)
        assert answer["usage"]["total_tokens"] == total
    assert server.text(ids[0]) == texts[0]


def test_a_stop_string_ends_an_answer(server: Server) -> None:
    whole = server.chat()["choices"][0]["message"]["content"]
    word = whole.split()[3]
    for stop in (word, [word, "nowhere in it"]):
        choice = server.chat(stop=stop)["choices"][0]
        assert choice["message"]["content"] == whole[: whole.index(word)]
        assert choice["finish_reason"] == "stop"


def test_the_servers_options_are_the_defaults(guarded: Server) -> None:
    with guarded.client() as client:
        create, variables = client.chat.completions.create, {"chat_template_kwargs": {"thinks": 1}}
        usual = create(model="demo", messages=QUESTION)
        thinking: dict[str, Any] = {"model": "demo", "extra_body": variables}
        asked = [{"role": "developer", "content": "Be kind."}, *QUESTION]
        thinks = create(messages=asked, **thinking).choices[0].message
        with create(messages=QUESTION, stream=True, **thinking) as stream:
            deltas = [chunk.choices[0].delta for chunk in stream]
    assert usual.usage.completion_tokens == 9
    assert usual.choices[0].message.content
    assert (thinks.content, bool(thinks.reasoning_content)) == ("", True)
    assert "".join(delta.content or "" for delta in deltas) == ""
    assert any(hasattr(delta, "reasoning_content") for delta in deltas)


# Refusals.


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"n": 2}, "n", "only 1"),
        ({"tools": [{"type": "web_search"}]}, "tools", "type function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "no name"),
        ({"response_format": {"type": "regex"}}, "response_format", "type: "),
        ({"response_format": {"type": "json_schema"}}, "response_format", "is missing"),
        ({"response_format": UNKNOWN}, "response_format", "cannot be used"),
        ({"tools": [WEATHER], "tool_choice": NONE}, "tool_choice", "none of the tools"),
        ({"continue_final_message": True}, "continue_final_message", "only false"),
        ({"temperature": "hot"}, "temperature", "a valid number, not 'hot'"),
        ({"temperature": -1}, "temperature", "temperature must be"),
        ({"top_p": 1e400}, "top_p", "a finite number"),
        ({"stop": 5}, "stop", "a valid array"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": [""]}, "stop", "at least 1 "),
        ({"reasoning_effort": "much"}, "reasoning_effort", "'medium'"),
        ({"top_logprobs": 2}, "top_logprobs", '"logprobs": true'),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages", "'user'"),
        ({"messages": [HI | {"content": [{"type": "image_url"}]}]}, "messages", "image_url"),
        ({"messages": [HI | {"content": None}]}, "messages", "its content must be text"),
        ({"messages": [HI, CALLS | {"tool_calls": [{}]}]}, "messages", "function: "),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs", "tokenize is no"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_requests_that_are_refused(server: Server, change: Any, param: Any, words: str) -> None:
    body, before = {"messages": QUESTION, "max_tokens": 2} | change, server.outcome("refused")
    status, error = server.refusal("/v1/chat/completions", body)
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert words in error["message"]
    server.wait_for("refused", before + 1)


def test_fields_without_effect_are_ignored(server: Server) -> None:
    ignored = {"frequency_penalty": 0, "user": "me", "metadata": {}, "store": True, "n": 1}
    ignored |= {"top_k": -1, "tool_choice": "required"}
    assert "choices" in server.chat(max_tokens=2, tools=[], **ignored)


def test_openais_client_knows_the_errors(server: Server) -> None:
    with server.client() as client:
        with pytest.raises(openai.BadRequestError, match="equal to -1") as wrong:
            client.completions.create(model="demo", prompt="def ", max_tokens=-2)
        assert (wrong.value.param, wrong.value.type) == ("max_tokens", "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as long:
            client.completions.create(model="demo", prompt="a " * 20_000, stream=True)
        assert long.value.code == "context_length_exceeded"
        # Programs that see only the message search for these words.
        assert "This model's maximum context length is 20000 tokens" in long.value.message
        began = time.monotonic()
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.completions.create(model="demo", prompt="so much to say " * 270_000)
        assert time.monotonic() - began < 2, "all of it was tokenised"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("another")
        assert client.models.retrieve("demo").id == "demo"


def test_a_clients_messages_and_variables_are_merged_with_the_servers(guarded: Server) -> None:
    def prompt_tokens(*said: dict[str, str], effort: str | None = None, **variables: str) -> Any:
        body = {"messages": [*said, HI], "chat_template_kwargs": variables}
        body["reasoning_effort"] = effort
        status, answer, _ = guarded.ask("/v1/chat/completions", body, Authorization=f"Bearer {KEY}")
        assert status == 200, answer
        return answer["usage"]["prompt_tokens"]

    usual, brief = prompt_tokens(), {"content": "Be brief."}
    # A system message of the client's is the only one.
    assert prompt_tokens({"role": "system", **brief}) == usual
    assert prompt_tokens({"role": "developer", **brief}) == usual
    # Its variables are beside the server's, or replace them.
    assert prompt_tokens(size="") == prompt_tokens(kind="plain and long") == usual
    assert prompt_tokens(kind="") < usual < prompt_tokens(size=" and wide")
    assert usual < prompt_tokens(effort="high") == prompt_tokens(effort="xhigh")


def test_a_key_is_asked_for(guarded: Server) -> None:
    assert not [line for line in guarded.lines if "--api-key" in line], "nothing is warned of"
    assert guarded.ask("/health")[:2] == (200, {"status": "ok"})
    assert guarded.ask("/health", None, "HEAD")[0] == 200
    assert guarded.ask("/v1/models", None, Authorization=f"bEARER {KEY}")[0] == 200
    for key in ("", "Bearer another", "Bearer \xe4"):
        status, error = guarded.refusal("/v1/models", None, Authorization=key)
        assert (status, error["code"]) == (401, "invalid_api_key")
    assert guarded.ask("/metrics")[0] == 401
    assert guarded.ask("/v1/models", None, Host="a/health?")[0] == 401
    with guarded.client(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with guarded.client() as client:
        assert [model.id for model in client.models.list()] == ["demo"]


NOT_JSON = (
    *("text/plain", "text/plain; charset=json", "text/plain;x=json", ";application/json", "json"),
    *("application/x-www-form-urlencoded; json", "multipart/form-data; boundary=json"),
    *("text/plain;application/json", "text/plain, application/json", "application/jsonp"),
)
"""Content types other than JSON, some of which other origins may send without a preflight."""


def test_other_origins_need_permission(server: Server, guarded: Server) -> None:
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    status, _, headers = guarded.ask("/v1/chat/completions", None, "OPTIONS", **asked)
    assert (status, headers["access-control-allow-origin"]) == (200, ORIGIN)
    asked["Origin"] = "http://evil.example"
    assert guarded.ask("/v1/chat/completions", None, "OPTIONS", **asked)[0] == 400
    assert "access-control-allow-origin" not in server.ask("/v1/models", None, **asked)[2]
    # HTML forms cannot send JSON, and foreign host names that resolve to this machine are refused.
    for kind in NOT_JSON:
        assert server.refusal("/v1/completions", LONG, **{"Content-Type": kind})[0] == 415
    for kind in ("Application/JSON; charset=utf-8", "application/vnd.api+json ;x=text/plain"):
        assert server.refusal("/v1/completions", {"prompt": 5}, **{"Content-Type": kind})[0] == 400
    for host in ("evil.example:80", "[::1", "127.0.0.1.evil.example"):
        assert server.refusal("/v1/models", None, Host=host)[0] == 403
    for host in ("LocalHost:1", "[::1]:80", "127.0.0.1"):
        assert server.ask("/v1/models", None, Host=host)[0] == 200
    # A probe of HTTP/1.0, such as HAProxy's, names none.
    with server.connect() as probe:
        probe.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert probe.recv(64).startswith(b"HTTP/1.1 200")


BODIES: list[tuple[bytes, int, str]] = [
    (b"{", 400, "JSON"),
    (b'{"prompt": "\\ud800"}', 400, "JSON"),
    (b"[" * 100_000, 400, "JSON"),
    (b'{"prompt": ' + b"9" * 100_000 + b"}", 400, "JSON"),
    (b'"' + b"x" * (5 << 20) + b'"', 413, ""),
    (b'{"prompt": []}', 400, "prompt: "),
    (b'{"prompt": [1, "a"]}', 400, "prompt "),
    (b'{"prompt": [999999999]}', 400, "no embedding"),
    (b'{"prompt": ["a", "b"], "stream": true}', 400, "one prompt"),
    (b'{"prompt": [1], "suffix": "b"}', 400, "a text"),
]
"""Hostile or unsupported bodies, with the status and a word of the answer."""


@pytest.mark.parametrize(("body", "code", "words"), BODIES, ids=lambda value: str(value)[:12])
def test_a_body_that_is_refused(server: Server, body: bytes, code: int, words: str) -> None:
    status, error = server.refusal("/v1/completions", body)
    assert (status, len(error["message"]) < 200) == (code, True)
    assert words in error["message"]
    assert error["param"] == ("prompt" if words.startswith("prompt") else error["param"])


def test_a_large_body_in_pieces_is_not_read_to_its_end(server: Server) -> None:
    with server.connect() as client:
        head = http_post("/v1/completions", b"").replace(
            b"Content-Length: 0", b"Transfer-Encoding: chunked"
        )
        client.sendall(head)
        with contextlib.suppress(OSError):
            for _ in range(80):
                client.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        assert client.recv(64).startswith(b"HTTP/1.1 413")


def test_other_paths_and_methods(server: Server) -> None:
    status, error = server.refusal("/v1/embeddings", {})
    assert (status, error["message"].split(";")[0]) == (404, "there is no POST /v1/embeddings")
    status, content, _ = server.ask("/v1/completions", None, "PUT")
    assert (status, content["error"]["type"]) == (405, "invalid_request_error")
    assert server.ask("/docs")[0] == 404


# Beginning and end.


def test_a_signal_ends_the_server_within_seconds_and_answers_are_kept(tmp_path: Path) -> None:
    steps, known = [], {"prompt": "import ", "max_tokens": 60}
    endless: dict[str, Any] = {"prompt": "def ", "stream": True, "temperature": 1.0}
    endless["extra_body"] = {"ignore_eos": True}
    for number in (signal.SIGINT, signal.SIGHUP):  # other tests end their servers by SIGTERM
        with Server(tmp_path, "--host", "0.0.0.0") as server, server.client() as client:
            answer = server.ask("/v1/completions", known, Host="any.example")[1]
            steps.append(answer["lade"]["steps"])
            # With another seed, since the first server's answer is remembered.
            with client.completions.create(model="demo", seed=number, **endless) as stream:
                chunks = iter(stream)
                next(chunks)
                began = time.monotonic()
                os.kill(server.pid, number)
                with pytest.raises(openai.APIError, match="shutting down"):
                    list(chunks)
            assert server.wait(5) == 0
            assert time.monotonic() - began < 4
            assert "--api-key" in server.lines[-2], "its door is open"
    assert steps[1] < steps[0]


def test_slow_clients_are_disconnected(tmp_path: Path) -> None:
    (tmp_path / "template").write_text(
        "{% for message in messages %}{{ message.content }}{% endfor %}{% if count %}"
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    )
    options = ("--client-timeout", "0.4", "--chat-template", str(tmp_path / "template"))
    body = http_post("/v1/completions", b'{"pro', 1000)
    answered = http_post("/health", b'{"pro', 1000).replace(b"POST", b"GET")
    with Server(tmp_path, *options) as server, contextlib.ExitStack() as stack:
        clients = []
        for sent in (b"", b"POST ", body, body.replace(b"json", b"text"), answered) * 5:
            clients.append(stack.enter_context(server.connect()))
            clients[-1].sendall(sent)
        began, answers = time.monotonic(), []
        for _ in range(7):  # they go on, and do not finish
            time.sleep(0.1)
            for client in clients:
                with contextlib.suppress(OSError):
                    client.send(b"x")
        for client in clients:
            with contextlib.suppress(ConnectionResetError):
                answers.append(client.recv(65536)[9:12])
                while client.recv(65536):
                    pass
        assert time.monotonic() - began < 4
        assert {*answers} == {b"", b"408", b"415", b"200"}

        assert server.chat(max_tokens=2, chat_template_kwargs={"strange": 1})["choices"]
        counting = {"messages": QUESTION, "chat_template_kwargs": {"count": True}}
        client = stack.enter_context(server.send("/v1/chat/completions", counting))
        server.wait_for_queue(1)
        began = time.monotonic()
        os.kill(server.pid, signal.SIGINT)
        assert client.recv(64).startswith(b"HTTP/1.1 503")
        assert server.wait(5) == 0
        assert time.monotonic() - began < 2
    assert not [line for line in server.lines if "strange" in line]


def test_a_second_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    endless = LONG | {"max_tokens": 2000, "stream": True}
    with Server(tmp_path) as server, server.send("/v1/completions", endless) as connection:
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
        os.kill(server.pid, signal.SIGINT)
        time.sleep(0.1)
        os.kill(server.pid, signal.SIGINT)
        began = time.monotonic()
        server.code = 130
        server.wait(10)
        assert time.monotonic() - began < GRACE, "the first one lets an answer have so much"


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "prometheus_client"])
def test_the_extra_is_named(lade: Any, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'ladecli[serve]'" in lade("serve").refused()


def test_addresses_that_cannot_be_used(lade: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in lade("serve", "--port", port).refused()
    assert "nowhere.invalid" in lade("serve", "--host", "nowhere.invalid").refused()
    assert "port must be" in lade("serve", "--port", "70000").refused()
    assert "api-key is empty" in lade("serve", "--api-key", "").refused()
    for origin in ("localhost", "localhost:3000", "http://localhost:3000/"):
        assert f"cors {origin}" in lade("serve", "--cors", origin).refused()


def test_a_key_is_not_shown(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_API_KEY", "very secret")
    out = lade("config").out
    assert "LADE_API_KEY" in out
    assert "very secret" not in out
