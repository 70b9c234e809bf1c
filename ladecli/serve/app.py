"""The web application: OpenAI's paths, its errors, and its streams of server-sent events."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeAlias

from fastapi import Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ..errors import flaw, one_line
from ..options.commands import ServeRequest
from .forms import ChatForm, TextForm, joined
from .messages import MessagesBody, MessagesForm
from .responses import ResponseForm, ResponsesBody
from .schema import ChatBody, CompletionBody, Refused, TextBody
from .worker import Job, Part, Worker, ending

Body: TypeAlias = ChatBody | TextBody | ResponsesBody | MessagesBody
"""The body of a request."""
Form: TypeAlias = ChatForm | MessagesForm | ResponseForm
"""The form of an answer."""
MOST_BYTES = 4 << 20
"""Of a body."""
AT_ONCE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers by which proxies (nginx) pass on a stream as it comes."""
FORMS: dict[str, tuple[type[Body], Callable[[str, Any], Form]]] = {
    "/v1/chat/completions": (ChatBody, ChatForm),
    "/v1/completions": (TextBody, TextForm),
    "/v1/responses": (ResponsesBody, ResponseForm),
    "/v1/messages": (MessagesBody, MessagesForm),
}
"""The paths that are answered, with the forms of their requests and answers."""


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

    for path, (body, form) in FORMS.items():
        app.post(path)(desk.answering(body, form))
    return app


def _admission(key: str | None, host: str) -> Callable[[Request], Coroutine[Any, Any, None]]:
    """What lets a request in, or refuses it.

    Args:
        key: that clients must have; None for no key.
        host: that the server listens at.
    """

    async def admit(request: Request) -> None:
        if key is not None and request.scope["path"] != "/health":
            sent = request.headers.get("authorization") or request.headers.get("x-api-key", "")
            given = re.sub("^bearer +", "", sent, flags=re.I)
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
        error = Refused(500, f"an internal error ({type(error).__name__})")
    elif not isinstance(error, Refused):  # Starlette's, which has no such route
        asked = f"{request.method} {request.url.path}"
        error.detail = f"there is no {asked}; /v1/chat/completions, /v1/completions,"
        error.detail += " /v1/responses and /v1/messages take POST"
    return JSONResponse(_described(error), error.status_code, error.headers)


def _described(error: HTTPException) -> dict[str, Any]:
    """The object of an error."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    usual = "invalid_request_error" if error.status_code < 500 else "server_error"
    kind = kinds.get(error.status_code, usual)
    names = {name: getattr(error, name, None) for name in ("param", "code")}
    return {"error": {"message": error.detail, "type": kind, **names}}


class _Desk:
    """Takes requests to the worker, and its answers back; all in the server's thread.

    Args:
        worker: that answers.
        options: of the server.

    Attributes:
        open: the jobs that wait or are answered now.
    """

    def __init__(self, worker: Worker, options: ServeRequest) -> None:
        self._worker, self._options = worker, options
        self.open: set[Job] = set()

    def answering(
        self, kind: type[Body], form_of: Callable[[str, Any], Form]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request of a kind: with a stream, or an object."""

        async def answer(request: Request) -> Response:
            try:
                wanted = await self._read(request, kind)
            except Refused:
                self._worker.counters.refuse()
                raise
            form = form_of(self._worker.name, wanted)
            if not wanted.stream:
                answers = []
                for alone in wanted.alone():
                    part = await _while_there(request, _whole(self._parts(alone)))
                    answers.append(form.whole(part))
                return JSONResponse(joined(answers))
            parts = self._parts(wanted)
            # What is wrong shows before the first part, and is no stream.
            first = await _while_there(request, anext(parts))
            events = _events(form, first, parts)
            return StreamingResponse(events, media_type="text/event-stream", headers=AT_ONCE)

        return answer

    async def _read(self, request: Request, kind: type[Body]) -> CompletionBody:
        """What the body of a request wants.

        Raises:
            Refused: it is no such body.
        """
        # Forms of web pages cannot send it, whatever they write after the semicolon.
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not re.fullmatch(r"application/([\w.-]+\+)?json", media):
            raise Refused(415, "send JSON, with the header Content-Type: application/json")
        seconds = self._options.client_timeout
        try:
            body = await asyncio.wait_for(self._body(request), seconds)
            wanted = kind.model_validate_json(body).as_completion()
        except asyncio.TimeoutError:
            late, close = f"the body did not arrive within {seconds:g} s", {"Connection": "close"}
            raise Refused(408, late, headers=close) from None
        except ValidationError as error:
            place = error.errors()[0]["loc"]
            raise Refused(400, one_line(flaw(error)), str(place[0]) if place else None) from None
        wanted.check()
        return wanted

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                raise Refused(413, f"the body is larger than {MOST_BYTES >> 20} MiB; send less")
        return bytes(body)

    async def _parts(self, wanted: CompletionBody) -> AsyncGenerator[Part]:
        """The parts of an answer, as they come; closed early, the answer ends within a step."""
        if self._worker.until < math.inf:
            raise ending()
        if len(self.open) > self._options.queue:
            self._worker.counters.refuse()
            message = f"the queue of {self._options.queue} is full; try again after a second"
            raise Refused(429, message, code="queue_full", headers={"Retry-After": "1"})
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


async def _events(form: Form, part: Part, rest: AsyncIterator[Part]) -> AsyncIterator[str]:
    """A stream as server-sent events: a first part, and the rest."""
    for event in form.begin():
        yield event
    try:
        while part.finish is None:
            if part.text or part.reasoning or part.calls or part.logprobs:
                for event in form.add(part):
                    yield event
            part = await anext(rest)
    except Refused as error:
        yield form.failed(_described(error))
        return
    for event in form.end(part):
        yield event
