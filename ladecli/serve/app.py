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
from .schema import APIError, ChatBody, CompletionBody, TextBody
from .worker import AnswerDelta, Job, Worker, ending

Body: TypeAlias = ChatBody | TextBody | ResponsesBody | MessagesBody
"""The body of a request."""
Form: TypeAlias = ChatForm | MessagesForm | ResponseForm
"""The form of an answer."""
MAX_BYTES = 4 << 20
NO_BUFFER = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies (nginx) from buffering a stream."""
FORMS: dict[str, tuple[type[Body], Callable[[str, Any], Form]]] = {
    "/v1/chat/completions": (ChatBody, ChatForm),
    "/v1/completions": (TextBody, TextForm),
    "/v1/responses": (ResponsesBody, ResponseForm),
    "/v1/messages": (MessagesBody, MessagesForm),
}
"""The paths of the server, with the forms of their requests and answers."""


def make_app(worker: Worker, request: ServeRequest) -> FastAPI:
    """Return the web application in front of a worker; `request` has the server's options."""
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
    dispatcher, began = _Dispatcher(worker, request), int(time.time())
    model = {"id": worker.name, "object": "model", "created": began, "owned_by": "lade"}
    # Two names of the same value: vLLM's, and that of other servers.
    model |= dict.fromkeys(("max_model_len", "context_length"), worker.context)

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        text = worker.counters.text(len(dispatcher.open))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        if name != worker.name:
            raise APIError(404, f"the model here is {worker.name}", "model", "model_not_found")
        return model

    for path, (body, form) in FORMS.items():
        app.post(path)(dispatcher.handler(body, form))
    return app


def _admission(key: str | None, host: str) -> Callable[[Request], Coroutine[Any, Any, None]]:
    """Return a dependency that checks the API key and the host name of requests.

    Args:
        key: the API key that clients must send; None for no key.
        host: the address of the server.
    """

    async def admit(request: Request) -> None:
        if key is not None and request.scope["path"] != "/health":
            header = request.headers.get("authorization") or request.headers.get("x-api-key", "")
            sent = re.sub("^bearer +", "", header, flags=re.I)
            if not hmac.compare_digest(sent.encode("latin-1"), key.encode()):
                raise APIError(401, "wrong or missing API key", code="invalid_api_key")
        # Against DNS rebinding: a page whose domain resolves to this machine has the same origin.
        host_header = request.headers.get("host", "localhost")  # only HTTP/1.0 may omit it
        name = re.sub(r":\d+$", "", host_header).strip("[]").lower()
        if key is None and is_loopback(host) and name != host and not is_loopback(name):
            raise APIError(403, f"{one_line(name)} is not a name of this machine")

    return admit


def is_loopback(host: str) -> bool:
    """Return True if a name or an address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _as_response(request: Request, error: Exception) -> Response:
    """Return an error in OpenAI's form, in one line."""
    if not isinstance(error, HTTPException):
        error = APIError(500, f"an internal error ({type(error).__name__})")
    elif not isinstance(error, APIError):  # Starlette's, for an unknown route
        route = f"{request.method} {request.url.path}"
        error.detail = f"there is no {route}; /v1/chat/completions, /v1/completions,"
        error.detail += " /v1/responses and /v1/messages take POST"
    return JSONResponse(_described(error), error.status_code, error.headers)


def _described(error: HTTPException) -> dict[str, Any]:
    """Return the JSON object of an error."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    usual = "invalid_request_error" if error.status_code < 500 else "server_error"
    kind = kinds.get(error.status_code, usual)
    names = {name: getattr(error, name, None) for name in ("param", "code")}
    return {"error": {"message": error.detail, "type": kind, **names}}


class _Dispatcher:
    """Passes requests to the worker and returns its answers, all in the server's thread.

    Args:
        worker: answers the requests.
        options: of the server.

    Attributes:
        open: jobs in the queue or at work.
    """

    def __init__(self, worker: Worker, options: ServeRequest) -> None:
        self._worker, self._options = worker, options
        self.open: set[Job] = set()

    def handler(
        self, kind: type[Body], form_of: Callable[[str, Any], Form]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a path, which answers with a stream or an object."""

        async def answer(request: Request) -> Response:
            try:
                body = await self._read(request, kind)
            except APIError:
                self._worker.counters.refuse()
                raise
            form = form_of(self._worker.name, body)
            if not body.stream:
                answers = []
                for single in body.per_prompt():
                    delta = await _unless_disconnected(request, _whole(self._deltas(single)))
                    answers.append(form.whole(delta))
                return JSONResponse(joined(answers))
            deltas = self._deltas(body)
            # Errors before the first delta have their own HTTP status, outside of a stream.
            first = await _unless_disconnected(request, anext(deltas))
            events = _events(form, first, deltas)
            return StreamingResponse(events, media_type="text/event-stream", headers=NO_BUFFER)

        return answer

    async def _read(self, request: Request, kind: type[Body]) -> CompletionBody:
        """Read and check the body of a request.

        Raises:
            APIError: the body is invalid.
        """
        # Against cross-site requests: HTML forms cannot send this type.
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not re.fullmatch(r"application/([\w.-]+\+)?json", media):
            raise APIError(415, "send JSON, with the header Content-Type: application/json")
        seconds = self._options.client_timeout
        try:
            raw = await asyncio.wait_for(self._body(request), seconds)
            body = kind.model_validate_json(raw).as_completion()
        except asyncio.TimeoutError:
            late, close = f"the body did not arrive within {seconds:g} s", {"Connection": "close"}
            raise APIError(408, late, headers=close) from None
        except ValidationError as error:
            field = next(map(str, error.errors()[0]["loc"]), None)
            raise APIError(400, one_line(flaw(error)), field) from None
        body.check()
        return body

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BYTES:
                raise APIError(413, f"the body is larger than {MAX_BYTES >> 20} MiB; send less")
        return bytes(body)

    async def _deltas(self, body: CompletionBody) -> AsyncGenerator[AnswerDelta]:
        """Yield the deltas of an answer; closing the generator ends decoding within a step."""
        if self._worker.until < math.inf:
            raise ending()
        if len(self.open) > self._options.queue:
            self._worker.counters.refuse()
            message = f"the queue of {self._options.queue} is full; try again after a second"
            raise APIError(429, message, code="queue_full", headers={"Retry-After": "1"})
        loop, results = asyncio.get_running_loop(), asyncio.Queue[AnswerDelta | APIError]()

        def take(delta: AnswerDelta | APIError) -> None:
            if isinstance(delta, APIError) or delta.finish is not None:
                self.open.discard(job)  # although the client may still have to read the rest
            results.put_nowait(delta)

        job = Job(body, lambda delta: loop.call_soon_threadsafe(take, delta))
        self.open.add(job)
        self._worker.jobs.put(job)
        try:
            while True:
                delta = await results.get()
                if isinstance(delta, APIError):
                    raise delta
                yield delta
                if delta.finish is not None:
                    return
        finally:
            job.body = None
            self.open.discard(job)


async def _whole(deltas: AsyncIterator[AnswerDelta]) -> AnswerDelta:
    """Join all deltas of an answer into one."""
    received = [delta async for delta in deltas]
    return replace(
        received[-1],
        text="".join(delta.text for delta in received),
        reasoning="".join(delta.reasoning for delta in received),
        calls=tuple(call for delta in received for call in delta.calls),
        logprobs=tuple(token for delta in received for token in delta.logprobs),
    )


async def _unless_disconnected(request: Request, work: Awaitable[AnswerDelta]) -> AnswerDelta:
    """Return the result of some work, which is cancelled if the client disconnects."""
    task = asyncio.ensure_future(work)
    # After the body, the only further message is that the client has disconnected.
    disconnect = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise APIError(499, "the client has left")
    finally:
        disconnect.cancel()
        task.cancel()


async def _events(
    form: Form, delta: AnswerDelta, rest: AsyncIterator[AnswerDelta]
) -> AsyncIterator[str]:
    """Yield an answer as server-sent events: a first delta, and the rest."""
    for event in form.begin():
        yield event
    try:
        while delta.finish is None:
            if delta.text or delta.reasoning or delta.calls or delta.logprobs:
                for event in form.add(delta):
                    yield event
            delta = await anext(rest)
    except APIError as error:
        yield form.failed(_described(error))
        return
    for event in form.end(delta):
        yield event
