"""The web application: OpenAI's paths, its errors, and its streams of server-sent events."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import math
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ..errors import flaw, one_line
from ..options.answer import ServeRequest
from ..session.tool_calls import ToolCall
from .schema import ChatWanted, Refused, TextWanted, Wanted
from .worker import Job, Part, Worker, ending

MOST_BYTES = 4 << 20
"""Of a body."""
HELD_BYTES = 8 * MOST_BYTES
"""Of all bodies that are not complete."""
SMALL_BYTES = 64 << 10
"""Of a body that is read whatever else is."""
AT_ONCE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers by which proxies (nginx) pass on a stream as it comes."""


def make_app(worker: Worker, request: ServeRequest) -> FastAPI:
    """The application of a worker, as the options of the server have it."""
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(_admission(request.api_key, request.host))],
        exception_handlers=dict.fromkeys((HTTPException, Exception), _as_response),
    )
    if request.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=request.cors, allow_methods=["*"], allow_headers=["*"]
        )
    desk, began = _Desk(worker, request), int(time.time())
    model = {"id": worker.name, "object": "model", "created": began, "owned_by": "lade"}
    # vLLM's name for it, and that of other servers.
    model |= dict.fromkeys(("max_model_len", "context_length"), worker.context)

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        text = worker.counters.text(len(desk.open))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        if name != worker.name:
            raise Refused(404, f"the model here is {worker.name}", "model", "model_not_found")
        return model

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await desk.answer(request, ChatWanted, _Chat(worker.name))

    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        return await desk.answer(request, TextWanted, _Text(worker.name))

    return app


class _Reader:
    """Reads requests, no larger and no slower than they must be.

    Args:
        worker: that answers.
        seconds: for a client to send a body.
    """

    def __init__(self, worker: Worker, seconds: float) -> None:
        self._worker, self._seconds = worker, seconds
        self._held = 0  # bytes of bodies that are not complete

    async def read(self, request: Request, kind: type[Wanted]) -> Wanted:
        """What the body of a request wants.

        Raises:
            Refused: it is no such body.
        """
        # Forms of web pages cannot send it, whatever they write after the semicolon.
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not re.fullmatch(r"application/([\w.-]+\+)?json", media):
            raise Refused(415, "send JSON, with the header Content-Type: application/json")
        try:
            wanted = kind.model_validate_json(
                await asyncio.wait_for(self._body(request), self._seconds)
            )
        except asyncio.TimeoutError:
            late = Refused(408, f"the body did not come within {self._seconds:g} s")
            late.headers = {"Connection": "close"}
            raise late from None
        except ValidationError as error:
            place = error.errors()[0]["loc"]
            raise Refused(400, one_line(flaw(error)), str(place[0]) if place else None) from None
        wanted.check()
        return wanted

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async for piece in request.stream():
                body += piece
                self._held += len(piece)
                if len(body) > MOST_BYTES:
                    limit = f"{MOST_BYTES >> 20} MiB"
                    raise Refused(413, f"the body is larger than {limit}; send less")
                if len(body) > SMALL_BYTES and self._held > HELD_BYTES:
                    raise Refused(503, "too many large bodies at once; ask again after a second")
            return bytes(body)
        finally:
            self._held -= len(body)
            self._worker.untidy |= len(body) > SMALL_BYTES


def _admission(key: str | None, host: str) -> Callable[[Request], Coroutine[Any, Any, None]]:
    """What lets a request in, or refuses it.

    Args:
        key: that clients must have; None for no key.
        host: that the server listens at.
    """

    async def admit(request: Request) -> None:
        if key is not None and request.scope["path"] != "/health":
            given = re.sub("^bearer +", "", request.headers.get("authorization", ""), flags=re.I)
            if not hmac.compare_digest(given.encode("latin-1"), key.encode()):  # as it was sent
                raise Refused(401, "wrong or missing API key", code="invalid_api_key")
        # A name of the web may lead here, and its page would then be of the same origin.
        named = request.headers.get("host", "localhost")  # HTTP/1.0 may omit it, no browser does
        asked = re.sub(r":\d+$", "", named).strip("[]").lower()
        if key is None and is_loopback(host) and asked != host and not is_loopback(asked):
            raise Refused(403, f"{one_line(asked)} is not a name of this machine")

    return admit


def is_loopback(host: str) -> bool:
    """Whether a name or an address is of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _as_response(request: Request, error: Exception) -> Response:
    """An error in OpenAI's form, of one line."""
    if not isinstance(error, HTTPException):
        error = Refused(500, f"an error of the server's own ({type(error).__name__})")
    elif not isinstance(error, Refused):  # Starlette's, which has no such route
        asked = f"{request.method} {request.url.path}"
        error.detail = f"there is no {asked}; /v1/chat/completions and /v1/completions take POST"
    return JSONResponse(_described(error), error.status_code, error.headers)


def _described(error: HTTPException) -> dict[str, Any]:
    """The object of an error."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    usual = "invalid_request_error" if error.status_code < 500 else "server_error"
    kind = kinds.get(error.status_code, usual)
    names = {name: getattr(error, name, None) for name in ("param", "code")}
    return {"error": {"message": error.detail, "type": kind, **names}}


# Answers.


class _Chat:
    """The form of an answer to a conversation."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str) -> None:
        about = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time())}
        self._about: dict[str, Any] = about | {"model": model}
        self._opening = {"role": "assistant", "content": ""}  # of the first part
        self._called = 0  # calls of tools so far

    def shown(self, part: Part, name: str, **totals: Any) -> dict[str, Any]:
        """A part of the answer, or all of it, as the object of a name, with its totals."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": part.finish}
        if part.logprobs:
            choice["logprobs"] = self._logprobs(part.logprobs)
        choice |= self._said(part, "message" if name == self.whole else "delta")
        return self._about | {"object": name, "choices": [choice]} | totals

    def usage(self, part: Part) -> dict[str, Any]:
        """What comes after the last part, where a client asks for that."""
        return self._about | {"object": self.chunk, "choices": []} | part.totals

    def _said(self, part: Part, key: str) -> dict[str, Any]:
        said: dict[str, Any] = self._opening
        self._opening = {}
        said |= {"content": part.text} if part.text else {}
        said |= {"reasoning_content": part.reasoning} if part.reasoning else {}
        if part.calls:
            said["tool_calls"] = [self._call(call, key == "delta") for call in part.calls]
            said |= {} if part.text or key == "delta" else {"content": None}
        return {key: said}

    def _call(self, call: ToolCall, streamed: bool) -> dict[str, Any]:
        """A call of a tool, whole."""
        number = {"index": self._called} if streamed else {}
        self._called += 1
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        # Mistral's templates take ids of nine letters and digits alone.
        about = {"id": uuid.uuid4().hex[:9], "type": "function"}
        return number | about | {"function": {"name": call.name, "arguments": arguments}}

    def _logprobs(self, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"content": found}


class _Text(_Chat):
    """The form of a text that is continued."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def _said(self, part: Part, key: str) -> dict[str, Any]:
        return {"text": part.text}

    def _logprobs(self, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "tokens": [one["token"] for one in found],
            "token_logprobs": [one["logprob"] for one in found],
            "top_logprobs": [
                {each["token"]: each["logprob"] for each in one["top_logprobs"]} for one in found
            ],
        }


class _Desk:
    """Takes requests to the worker, and its answers back; all in the server's thread.

    Args:
        worker: that answers.
        request: the options of the server.

    Attributes:
        open: the jobs that wait or are answered now.
    """

    def __init__(self, worker: Worker, request: ServeRequest) -> None:
        self._worker, self._most = worker, request.queue
        self._reader = _Reader(worker, request.client_timeout)
        self.open: set[Job] = set()

    async def answer(self, request: Request, kind: type[Wanted], form: _Chat) -> Response:
        """The answer to a request: a stream, or an object.

        Raises:
            Refused: there is none; or it was cut short, of one that is no stream.
        """
        try:
            wanted = await self._reader.read(request, kind)
        except Refused:
            self._worker.counters.refuse()
            raise
        parts = self._parts(wanted)
        if not wanted.stream:
            part = await _while_there(request, _whole(parts))
            return JSONResponse(form.shown(part, form.whole, **part.totals))
        # What is wrong shows before the first part, and is no stream.
        first = await _while_there(request, anext(parts))
        events = _events(form, first, parts, wanted)
        return StreamingResponse(events, media_type="text/event-stream", headers=AT_ONCE)

    async def _parts(self, wanted: Wanted) -> AsyncGenerator[Part]:
        """The parts of an answer, as they come; closed early, the answer ends within a step."""
        if self._worker.until < math.inf:
            raise ending()
        if len(self.open) > self._most:
            message = f"the queue of {self._most} is full; ask again after a second"
            refusal = Refused(429, message, code="queue_full")
            refusal.headers = {"Retry-After": "1"}
            self._worker.counters.refuse()
            raise refusal
        loop, found = asyncio.get_running_loop(), asyncio.Queue[Part | Refused]()

        def take(part: Part | Refused) -> None:
            if isinstance(part, Refused) or part.finish is not None:
                self.open.discard(job)  # though the client may take its time to read the rest
            found.put_nowait(part)

        job = Job(wanted, lambda part: loop.call_soon_threadsafe(take, part))
        self.open.add(job)
        self._worker.jobs.put(job)
        try:
            while True:
                part = await found.get()
                if isinstance(part, Refused):
                    raise part
                yield part
                if part.finish is not None:
                    return
        finally:
            job.wanted = None
            self.open.discard(job)


async def _whole(parts: AsyncIterator[Part]) -> Part:
    """All parts of an answer as one."""
    found = [part async for part in parts]
    return replace(
        found[-1],
        text="".join(part.text for part in found),
        reasoning="".join(part.reasoning for part in found),
        calls=tuple(call for part in found for call in part.calls),
        logprobs=tuple(one for part in found for one in part.logprobs),
    )


async def _while_there(request: Request, work: Awaitable[Part]) -> Part:
    """The part that some work yields; where the client leaves, the work is cancelled."""
    task = asyncio.ensure_future(work)
    # The body was read: what else is received is that the client has left.
    left = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Refused(499, "the client has left")
    finally:
        left.cancel()
        task.cancel()


async def _events(
    form: _Chat, part: Part, rest: AsyncIterator[Part], wanted: Wanted
) -> AsyncIterator[str]:
    """A stream as server-sent events: a first part, and the rest."""
    separate = (wanted.stream_options or {}).get("include_usage")
    yield _event(form.shown(Part(), form.chunk))
    try:
        while part.finish is None:
            if part.text or part.reasoning or part.calls or part.logprobs:
                yield _event(form.shown(part, form.chunk))
            part = await anext(rest)
    except Refused as error:
        yield _event(_described(error))
        return
    yield _event(form.shown(part, form.chunk, **({} if separate else part.totals)))
    if separate:
        yield _event(form.usage(part))
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"
