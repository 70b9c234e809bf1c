"""`lade serve` as a program, with requests over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

from tests.support import processes

QUESTION = [{"role": "user", "content": "What is lookahead decoding?"}]
KEY = "a key"
JSON = {"Content-Type": "application/json"}


def http_post(path: str, body: bytes, length: int | None = None) -> bytes:
    """Return the bytes of a request."""
    size = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {size}\r\n\r\n".encode() + body


class Server(processes.Fork):
    """`lade serve` at a free port, until the block ends."""

    patience = 30.0
    """Seconds to wait for an answer."""
    code = 0
    """The expected exit code."""

    def __init__(self, home: Path, *options: str, model: str = "demo") -> None:
        ours, theirs = os.pipe()
        quiet = os.open(os.devnull, os.O_RDWR)
        env = {name: value for name, value in os.environ.items() if not name.startswith("LADE_")}
        env |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "HF_HUB_OFFLINE": "1"}
        super().__init__(["serve", model, "--port", "0", *options], [quiet, quiet, theirs], env)
        os.close(quiet)
        os.close(theirs)
        self._errors = os.fdopen(ours, encoding="utf-8")
        self.lines: list[str] = []
        while not (address := re.search(r"http://[\w.]+:(\d+)/v1", "".join(self.lines[-1:]))):
            self.lines.append(self._errors.readline())
            assert self.lines[-1], self.lines
        self.port = int(address[1])

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.exitcode is None:
            os.kill(self.pid, signal.SIGTERM)
        code = self.wait(10)
        self.lines += self._errors.readlines()
        self._errors.close()
        assert (code, [line for line in self.lines if "Traceback" in line]) == (self.code, [])

    def client(self, **options: Any) -> Any:
        """Return OpenAI's client of the server."""
        options = {"api_key": KEY, "max_retries": 0} | options
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", **options)

    def connect(self) -> socket.socket:
        """A connection to the server."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=self.patience)

    def send(self, path: str, body: object) -> socket.socket:
        """Return a connection after sending a request."""
        connection = self.connect()
        connection.sendall(http_post(path, json.dumps(body).encode()))
        return connection

    def ask(
        self, path: str, body: object = None, method: str | None = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """Return status, content and headers of an answer to a body, which need not be JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience)
        with contextlib.closing(connection):
            sent = (JSON if data is not None else {}) | headers
            connection.request(method or ("GET" if body is None else "POST"), path, data, sent)  # type: ignore[arg-type]
            response = connection.getresponse()
            text = response.read().decode()
            is_json = response.headers.get_content_type() == "application/json"
            content = json.loads(text) if is_json and text else text
            return response.status, content, response.headers

    def complete(self, prompt: str | list[Any] = "def ", **more: Any) -> Any:
        """Return the answer to a text completion."""
        return self.ask("/v1/completions", {"prompt": prompt, "max_tokens": 30} | more)[1]

    def text(self, prompt: str | list[Any]) -> Any:
        """The text of that answer."""
        return self.complete(prompt)["choices"][0]["text"]

    def chat(self, **more: Any) -> Any:
        """The answer to a question."""
        body = {"messages": QUESTION, "max_tokens": 60} | more
        return self.ask("/v1/chat/completions", body)[1]

    def refusal(self, path: str, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
        """Return status and error of a refused request."""
        status, content, _ = self.ask(path, body, **headers)
        error = content["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert "\n" not in error["message"]
        return status, error

    def outcome(self, name: str) -> int:
        """Return the number of requests with an outcome."""
        pattern = rf'lade_requests_total{{outcome="{name}"}} (\d+)'
        count = re.search(pattern, self.ask("/metrics")[1])
        return int(count[1]) if count else 0

    def wait_for(self, outcome: str, count: int) -> None:
        """Wait until a number of requests have ended with an outcome."""
        self.wait_until(lambda: self.outcome(outcome) >= count)

    def wait_for_queue(self, count: int) -> None:
        """Wait until a number of requests are in the queue or at work."""
        self.wait_until(lambda: f"lade_queue {count}.0" in self.ask("/metrics")[1])

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + self.patience
        while not holds():
            assert time.monotonic() < until, self.ask("/metrics")[1]
            time.sleep(0.02)
