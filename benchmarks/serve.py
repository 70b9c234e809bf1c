"""Test `lade serve`: texts, clients that disconnect, memory, delay, speed, abuse.

    python benchmarks/serve.py --model HuggingFaceTB/SmolLM2-135M-Instruct \
        --json benchmarks/results/serve.json
    python benchmarks/serve.py --quick                      # a smoke run with the demo model
    python benchmarks/serve.py --only speed --only clients

Servers are separate programs, with requests over real sockets.  This needs the extra `test`, and
the program `llm` for that client.  The exit code is 1 if there is a violation.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from common import Report, argument_parser, run_parts

import ladecli
from ladecli.events import TextStep
from tests.support import processes
from tests.support.server import JSON, Server, http_post

KINDS = ((None, 16), (1, 6), (2, 10), (3, 16))
"""Seeds, of which None is greedy, and tokens of answers."""
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
SUBJECTS = (
    *("a river", "the moon", "a sorting algorithm", "bread", "a small town", "an old clock"),
    *("the sea", "a bicycle", "winter", "a library", "prime numbers", "a garden", "the heart"),
)
WISHES = (
    *("Say one thing about {}.", "Write a line of verse about {}.", "What is {}?"),
    *("Name three words that belong to {}.", "Explain {} to a child.", "Ask me about {}."),
)


def events(port: int, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream as they arrive."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        data = json.dumps(body | {"stream": True})
        connection.request("POST", "/v1/chat/completions", data, JSON)
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def text_of(event: dict[str, Any]) -> str:
    """Return the text of an event."""
    assert "error" not in event, event
    return "".join(choice["delta"].get("content", "") for choice in event["choices"])


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# Texts.


def texts(report: Report, args: Namespace, place: Path) -> None:
    """Random requests by eight clients at once; some disconnect, all others get the right text."""
    draw, count = random.Random(1), 24 if args.quick else 200
    model, asked, expected = ladecli.load(args.model), [], []
    for number in range(count):
        said = messages(draw.choice(WISHES).format(draw.choice(SUBJECTS)) + f" ({number})")
        seed, tokens = draw.choice(KINDS)
        sampling = {} if seed is None else SAMPLED | {"seed": seed}
        asked.append({"messages": said, "max_tokens": tokens} | sampling)
        expected.append(model.generate(said, max_new_tokens=tokens, **sampling))
    left: list[int] = []
    wrong: list[int] = []

    def one(number: int) -> None:
        body = asked[number]
        if number % 3 == 0:  # a client that disconnects, before another sends the same request
            with contextlib.suppress(StopIteration):
                stream = events(server.port, body | {"max_tokens": 200})
                for _ in range(random.Random(number).randrange(4)):
                    next(stream)
                stream.close()
            left.append(number)
        if number % 2:
            text = "".join(map(text_of, events(server.port, body)))
        else:
            text = server.ask("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
        if text != expected[number]:
            wrong.append(number)

    began = time.perf_counter()
    with Server(place, model=args.model) as server, ThreadPoolExecutor(8) as pool:
        server.patience = 600.0
        list(pool.map(one, range(count)))
        failed = server.outcome("failed")
    seconds = round(time.perf_counter() - began)
    figures = {"clients that left": len(left), "other texts": len(wrong), "seconds": seconds}
    report.row(f"{count} random requests, 8 at once", figures)
    report.holds(not wrong, f"texts differ from those of the Python API: {wrong}")
    report.holds(not failed, f"{failed} answers failed")


# Memory.


def memory(report: Report, args: Namespace, place: Path) -> None:
    """Short answers of the demo, one after the other: memory does not grow.

    Lookahead first learns the few words that all these requests have, in bounded tables
    (`benchmarks/drafting.py` fills them).
    """
    count, parts = (200, 4) if args.quick else (2000, 8)
    for strategy, first in (("autoregressive", count // 4), ("lookahead", 3 * count // 2)):
        draw, used = random.Random(2), []
        with Server(place, "--strategy", strategy) as server:
            program = psutil.Process(server.pid)
            began = program.memory_info().rss
            for number in range(first + count):
                prompt = " ".join(draw.choices(SUBJECTS, k=4))
                body = {"messages": messages(prompt), "max_tokens": 8, "stream": number % 2 == 0}
                status, said, _ = server.ask("/v1/chat/completions", body)
                report.holds(status == 200, f"request {number}: {said}")
                if number + 1 >= first and (number + 1 - first) % (count // parts) == 0:
                    used.append(round(program.memory_info().rss / 1e6, 1))
        learned = {"MB by the first requests": round(used[0] - began / 1e6, 1)}
        figures = {"first requests": first} | learned | {"MB after each part": used}
        report.row(f"{count} more requests of the demo, {strategy}", figures)
        grown = used[-1] - used[0]
        report.holds(args.quick or grown < 2, f"{strategy}: {grown:.1f} MB more")


# Speed.


def speed(report: Report, args: Namespace, place: Path) -> None:
    """Compare one stream over HTTP with a session of this process, alternating prompt by prompt."""
    draw, count, tokens = random.Random(3), 6 if args.quick else 31, 64
    model = ladecli.load(args.model, max_context=1024)
    later, rates, work = [], [], []

    def session(said: Any) -> Iterator[str]:
        answer = model.stream(said, max_new_tokens=tokens, ignore_eos=True)
        return (event.text for event in answer if isinstance(event, TextStep))

    def over_http(said: Any) -> Iterator[str]:
        body = {"messages": said, "max_tokens": tokens, "ignore_eos": True}
        return map(text_of, events(server.port, body))

    with Server(place, "--max-context", "1024", model=args.model) as server:
        ways = [(session, psutil.Process()), (over_http, psutil.Process(server.pid))]
        for number in range(count):
            said = messages(f"{number}: {draw.choice(WISHES).format(draw.choice(SUBJECTS))}")
            times = {way: _times(way(said), program) for way, program in draw.sample(ways, 2)}
            if number:  # the first one warms up
                ours, theirs = times[session], times[over_http]
                later.append(1000 * (theirs[0] - ours[0]))
                rates.append(ours[1] / theirs[1])
                work.append(theirs[2] / ours[2])
    figures = {
        "ms to the first token, over the session's": spread(later),
        "speed over the session's": spread(rates),
        "processor time over the session's": spread(work),
    }
    report.row(f"{count - 1} answers of {tokens} tokens, in turn", figures)
    report.holds(args.quick or statistics.median(later) <= 20, "the first token is late")
    report.holds(args.quick or statistics.median(rates) >= 0.97, "a stream is slower")


def spread(values: Sequence[float]) -> str:
    """Return the median and the quartiles around it."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _times(texts: Iterator[str], program: psutil.Process) -> tuple[float, float, float]:
    """Return the seconds to the first text, from there to the end, and of a program's processor."""
    before, began, first = program.cpu_times(), time.perf_counter(), 0.0
    for text in texts:
        if text and not first:
            first = time.perf_counter()
    end, after = time.perf_counter(), program.cpu_times()
    used = after.user + after.system - before.user - before.system
    return first - began, end - first, used


# Abuse.


def abuse(report: Report, args: Namespace, place: Path) -> None:
    """A thousand connections that send nonsense, half a request or nothing, and slow senders."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    count = 100 if args.quick else 1000
    body = json.dumps({"prompt": "def ", "max_tokens": 4}).encode()
    sent = {
        "nothing": b"",
        "half a line": b"POST /v1/compl",
        "half a body": http_post("/v1/completions", body[:9], len(body)),
        "no HTTP": b"\x16\x03\x01 nonsense\r\n\r\n",
        "no JSON": http_post("/v1/completions", b"{" * 50),
        "wrong types": http_post("/v1/completions", b'{"prompt": {}}'),
    }
    expected = {name: {"400 Bad Request"} for name in ("no HTTP", "no JSON", "wrong types")}
    if not args.quick:  # it takes as long as the server waits for the other half
        expected["half a body"] = {"408 Request Timeout"}
    answers: dict[str, set[str]] = {name: set() for name in expected}
    with Server(place) as server, contextlib.ExitStack() as stack:
        open_ones = []
        for number in range(count):
            name = [*sent][number % len(sent)]
            client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            stack.callback(client.close)
            client.sendall(sent[name])
            open_ones.append((name, client))
        began = time.perf_counter()
        status, said, _ = server.ask("/v1/completions", json.loads(body))
        seconds = time.perf_counter() - began
        report.holds(status == 200, f"beside {count} connections: {said}")
        for name, client in open_ones:
            if name in answers:
                answers[name].add(client.recv(4096).split(b"\r\n")[0].decode()[len("HTTP/1.1 ") :])
        left = server.ask("/health")[0]
    shown = {name: sorted(statuses) for name, statuses in answers.items()}
    report.row(f"{count} connections", {"s to an answer beside them": round(seconds, 2), **shown})
    report.holds(answers == expected, f"to nonsense and to halves: {shown}")
    report.holds(left == 200, "the server does not go on")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def slow(report: Report, args: Namespace, place: Path) -> None:
    """Slow heads and bodies are closed in time, and large requests leave no memory behind."""
    count, seconds = (60, 1.0) if args.quick else (600, 30.0)
    big = "some words of a text, and more " * 120_000
    wide = [{"role": "user", "content": "x"}] * 60_000
    large: list[tuple[str, Any]] = [
        ("/v1/completions", b"[" * (3 << 20)),
        ("/v1/completions", {"prompt": ["a"] * 700_000}),
        ("/v1/completions", {"prompt": big}),
        ("/v1/completions", {"prompt": "a", "prediction": {"type": "content", "content": big}}),
        ("/v1/chat/completions", {"messages": wide}),
        ("/v1/chat/completions", {"messages": messages(big)}),
        ("/v1/chat/completions", {"messages": wide[:1], "chat_template_kwargs": {big: 1}}),
    ]
    body = http_post("/v1/completions", b"{", 1000)
    with Server(place, "--client-timeout", str(seconds)) as server, contextlib.ExitStack() as stack:
        server.patience, program = 600.0, psutil.Process(server.pid)
        server.complete(max_tokens=4)
        before = program.memory_info().rss / 1e6
        for path, content in large * (1 if args.quick else 5):
            server.ask(path, content)
        slow_ones = []
        for number in range(count):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            stack.callback(client.close)
            client.sendall(body if number % 2 else b"POST /v1/compl")
            slow_ones.append(client)
        until = time.monotonic() + seconds + 2
        while time.monotonic() < until:  # they go on, a byte at a time
            time.sleep(seconds / 10)
            for client in slow_ones:
                with contextlib.suppress(OSError):
                    client.send(b" ")
        statuses = [connection.status for connection in program.net_connections()]
        held = statuses.count(psutil.CONN_ESTABLISHED)
        after = program.memory_info().rss / 1e6
    figures = {"open after": f"{held}, {seconds + 2:g} s", "MB": f"{before:.0f}, {after:.0f} after"}
    report.row(f"{count} slow heads and bodies, {len(large)} kinds of large requests", figures)
    report.holds(not held, f"{held} connections are still open")
    report.holds(after < 1.25 * before, f"{after - before:.0f} MB more")


# Other clients.


def clients(report: Report, args: Namespace, place: Path) -> None:
    """`llm` and curl, streamed and whole."""
    question = "What is lookahead decoding?"
    expected = processes.lade("generate", "demo", "-p", question, "-n", "20", "-q").stdout.strip()
    with Server(place, "-n", "20") as server:
        base = f"http://127.0.0.1:{server.port}/v1"
        entry = {"model_id": "lade", "model_name": "demo", "api_base": base}
        (place / "extra-openai-models.yaml").write_text(json.dumps([entry]))
        body = json.dumps({"messages": messages(question)})
        calls = {
            "llm": ["llm", "-m", "lade", "--key", "none", question],
            "llm, whole": ["llm", "-m", "lade", "--key", "none", "--no-stream", question],
            "curl": ["curl", "-s", f"{base}/chat/completions", "--json", body],
        }
        for name, call in calls.items():
            if shutil.which(call[0]) is None:
                report.row(name, {"text": "not tried: it is not installed"})
                continue
            env = os.environ | {"LLM_USER_PATH": str(place), "NO_PROXY": "127.0.0.1"}
            done = subprocess.run(call, capture_output=True, text=True, env=env, check=False)
            text = done.stdout.strip()
            if name == "curl":
                text = json.loads(text)["choices"][0]["message"]["content"]
            report.row(name, {"text": "generate's" if text == expected else "another"})
            report.holds(text == expected, f"{name}: {text!r}, {done.stderr[-300:]}")


PARTS = {
    **{"texts": texts, "memory": memory, "speed": speed},
    **{"abuse": abuse, "slow": slow, "clients": clients},
}


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="demo")
    return run_parts(parser, PARTS)


if __name__ == "__main__":
    sys.exit(main())
