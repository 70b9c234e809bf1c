"""The worker of a server, which answers one request after the other.

It runs in the program's main thread, as every command's decoder does; the server's own thread
sends it jobs and receives the deltas of the answers.
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import prometheus_client as prometheus

from ..decoder.errors import ConfigError, DeviceLostError, PromptError, RankError
from ..errors import UsageError, describe_error, one_line
from ..events import Ended, TextEvent, TextStep, pieces_of
from ..metrics import Tally
from ..options.answer import bytes_in
from ..options.commands import ServeRequest
from ..session.answer_memory import AnswerMemory
from ..session.text import REPLACEMENT
from ..session.tokens import bytes_of, speller
from ..session.tool_calls import CallReader, ToolCall
from ..view.terminal import Terminal
from .prompts import Prompt, Prompts
from .schema import APIError, ChatBody, CompletionBody

if TYPE_CHECKING:
    from ..session.session import Session

GRACE = 1.0
"""Seconds for the current answer to finish when the server shuts down."""
MIN_SEND_INTERVAL = 0.02
"""Seconds between deltas: if every fast step were sent, the server's thread would slow decoding."""
POLL_INTERVAL = 0.2
"""Seconds between checks for a shutdown."""


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """The part of an answer that one step, or several fast steps, added."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[dict[str, Any], ...] = ()  # of its tokens, in the form of OpenAI's chats
    finish: str | None = None  # the finish reason, only in the last delta
    totals: dict[str, Any] = field(default_factory=dict)  # usage and figures, only in the last one


@dataclass(slots=True, eq=False)
class Job:
    """A request in the queue or at work."""

    body: CompletionBody | None  # None once the client has disconnected
    give: Callable[[AnswerDelta | APIError], object]  # receives the answer, or an error
    since: float = field(default_factory=time.monotonic)


class Counters:
    """Counters of the requests so far, for Prometheus."""

    def __init__(self) -> None:
        # The extra series with creation times are of no use.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = prometheus.CollectorRegistry()
        counter = partial(prometheus.Counter, registry=self._registry)
        gauge = partial(prometheus.Gauge, registry=self._registry)
        self._requests = counter("lade_requests", "Requests by how they ended.", ["outcome"])
        self._tokens = counter("lade_tokens", "Tokens of prompts and answers.", ["kind"])
        self._steps = counter("lade_steps", "Forward passes that yielded tokens.")
        self._seconds = counter("lade_seconds", "Seconds in the queue and at work.", ["part"])
        self._mean = gauge("lade_tokens_per_step", "Tokens per step of the newest answer.")
        self._queue = gauge("lade_queue", "Requests that wait or are answered now.")

    def add(self, tally: Tally, outcome: str, waited: float) -> None:
        """Count a request.

        Args:
            tally: of its answer, complete or not.
            outcome: the finish reason, or the outcome of a request without an answer.
            waited: seconds in the queue.
        """
        self._requests.labels(outcome).inc()
        tokens = {"prompt": tally.prompt, "cached": tally.cached, "completion": tally.tokens}
        for kind, count in tokens.items():
            self._tokens.labels(kind).inc(count)
        seconds = {"prefill": tally.prefill_seconds, "decode": tally.decode_seconds}
        for part, duration in {"queue": waited, **seconds}.items():
            self._seconds.labels(part).inc(duration)
        self._steps.inc(tally.steps)
        if tally.steps:
            self._mean.set(tally.tokens_per_step)

    def refuse(self) -> None:
        """Count a request that was refused before it was queued."""
        self._requests.labels("refused").inc()

    def text(self, waiting: int) -> bytes:
        """Return all counters in Prometheus' text form; `waiting` is the number of requests in the
        queue or at work."""
        self._queue.set(waiting)
        return prometheus.generate_latest(self._registry)


class Worker:
    """Answers jobs until it is stopped.

    Args:
        session: of the model.
        request: the server's options, which are the defaults of requests.

    Attributes:
        name: of the model.
        context: the most tokens of a prompt with its answer.
        counters: of the requests so far.
        jobs: the queue.
        until: the time limit of the current answer, infinite until a shutdown begins.
    """

    def __init__(self, session: Session, request: ServeRequest) -> None:
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.name = request.served_name or session.loaded.name
        self.context = session.decoder.max_context
        self.counters = Counters()
        self._session, self._prompts = session, Prompts(session, request)
        session.keep_texts(bytes_in(request.keep_memory))
        self._terminal = Terminal(request.color, request.quiet)
        self._memory = AnswerMemory(session, request, self._terminal.say)
        self._spell = speller(session.loaded.tokenizer)
        # Prompts are encoded in their own thread: the main thread handles signals, and a tokenizer
        # would block it for seconds.
        self._thread = ThreadPoolExecutor(1, "prompt")
        self.until = math.inf

    def stop(self) -> None:
        """Let the current answer finish within `GRACE`, and start no other."""
        self.until = min(self.until, time.monotonic() + GRACE)

    def run(self, pressed: Callable[[], bool]) -> None:
        """Answer jobs until `stop`, then refuse the rest of the queue.

        Args:
            pressed: called after every step; True has the effect of `stop`.

        Raises:
            DeviceLostError, RankError: the model is lost; the client has received the error.
        """
        try:
            while self.until == math.inf and not pressed():
                # With a timeout, because a signal just before the wait would not end it.
                with contextlib.suppress(queue.Empty):
                    self._answer(self.jobs.get(timeout=POLL_INTERVAL), pressed)
        finally:
            self.stop()
            while not self.jobs.empty():
                self.jobs.get().give(ending())

    def _answer(self, job: Job, pressed: Callable[[], bool]) -> None:
        """Answer a job, with an error if that fails; errors as for `run`."""
        tally, began = Tally(), time.monotonic()
        outcome, body = "abandoned", job.body
        try:
            if body is not None:
                prompt = self._thread.submit(self._prompts.prepare, body)
                while not wait([prompt], POLL_INTERVAL).done:
                    if pressed() or self.until < math.inf:
                        raise ending()  # such a long prompt cannot be answered within `GRACE`

                def cancelled() -> bool:
                    if pressed():
                        self.stop()
                    return job.body is None or time.monotonic() > self.until

                for delta in self._deltas(body, prompt.result(), tally, cancelled):
                    job.give(delta)
        except Exception as error:
            refusal = _refusal(error)
            outcome = "refused" if refusal.status_code < 500 else "failed"
            job.give(refusal)
            if isinstance(error, DeviceLostError | RankError):
                raise
        finally:
            self.counters.add(tally, tally.reason or outcome, began - job.since)
            self._terminal.say(*self._session.new_notices())

    def _deltas(
        self,
        body: CompletionBody,
        prompt: Prompt,
        tally: Tally,
        cancelled: Callable[[], bool],
    ) -> Iterator[AnswerDelta]:
        """Decode an answer; `cancelled` is called after every step, and True ends the answer.

        Raises:
            APIError, Error: the answer was cut short.
        """
        session, settings = self._session, prompt.settings
        self._memory.recall(prompt.ids)
        hidden = session.stop_ids(settings)
        reader = CallReader(body.callable, self._special) if settings.calls else None
        one_call = isinstance(body, ChatBody) and body.parallel_tool_calls is False
        text, calls = "", list[ToolCall]()
        unsent, sent = list[TextEvent](), -math.inf
        with contextlib.closing(session.stream(prompt.ids, settings, cancelled)) as events:
            for event in events:
                tally.add(event)
                unsent.append(event)
                if time.monotonic() - sent < MIN_SEND_INTERVAL and not isinstance(event, Ended):
                    continue
                delta = self._delta(unsent, hidden, reader)
                if one_call:
                    delta = replace(delta, calls=delta.calls[:1])
                text, calls = text + delta.text, [*calls, *delta.calls]
                yield delta
                if calls and one_call:
                    break
                unsent, sent = [], time.monotonic()
        if tally.reason == "memory":
            raise APIError(507, tally.out_of_memory or "out of memory", code="out_of_memory")
        if not tally.ended_well and not (calls and one_call):
            raise ending()
        if calls and not tally.reasoning:  # the template decides about earlier reasoning
            ids = tally.token_ids
            self._prompts.keep(text, calls, ids[:-1] if ids[-1] in hidden else ids)
        # OpenAI's finish reasons.
        finish = "length" if tally.cut else "tool_calls" if calls else "stop"
        yield AnswerDelta(finish=finish, totals=_totals(tally, prompt))
        self._memory.keep(tally.token_ids)

    @cached_property
    def _special(self) -> list[str]:
        """The texts of the model's special tokens."""
        tokens = getattr(self._session.loaded.tokenizer, "added_tokens_decoder", {}).values()
        return [str(token) for token in tokens if token.special]

    def _delta(
        self,
        events: Sequence[TextEvent],
        hidden: frozenset[int],
        reader: CallReader | None,
    ) -> AnswerDelta:
        """Return the delta of some events; `hidden` are ids without log-probabilities."""
        pieces = [piece for event in events for piece in pieces_of(event)]
        logprobs = [
            self._token_object(token, choices.own)
            | {"top_logprobs": [self._token_object(*choice) for choice in choices.best]}
            for event in events
            if isinstance(event, TextStep)
            for token, choices in zip(event.token_ids, event.logprobs, strict=False)
            if token not in hidden
        ]
        text, calls = "".join(piece.text for piece in pieces), list[ToolCall]()
        if reader is not None:
            text, calls = reader.feed(text)
            if isinstance(events[-1], Ended):
                rest, more = reader.flush()
                text, calls = text + rest, calls + more
        reasoning = "".join(piece.reasoning for piece in pieces)
        return AnswerDelta(text, reasoning, tuple(calls), tuple(logprobs))

    def _token_object(self, token: int, logprob: float) -> dict[str, Any]:
        """Return a token and its log-probability in OpenAI's form."""
        text = self._spell(token)
        raw: bytes | None = text.encode()
        if REPLACEMENT in text and (raw := bytes_of(self._session.loaded.tokenizer, token)):
            text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)  # as OpenAI spells it
        numbers = None if raw is None else [*raw]
        # JSON has no infinity; OpenAI uses -9999 for it.
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": numbers}


def ending() -> APIError:
    """Return the error for requests while the server shuts down."""
    return APIError(503, "the server is shutting down; try again later", code="server_ending")


def _refusal(error: Exception) -> APIError:
    """Return the error response for an exception."""
    if isinstance(error, APIError):
        return error
    wrong_input = isinstance(error, UsageError | ConfigError | PromptError)
    message = one_line(describe_error(error))
    # Messages about options begin with the option's name.
    flag, _, fault = message.partition(" ")
    field = {"template-arg": "chat_template_kwargs"}.get(flag, flag.replace("-", "_"))
    if wrong_input and field in ChatBody.model_fields:
        return APIError(400, f"{field} {fault}", field)
    return APIError(400 if wrong_input else 500, message)


def _totals(tally: Tally, prompt: Prompt) -> dict[str, Any]:
    """Return OpenAI's counts of tokens, and figures named as in `lade generate --json`."""
    # Tokens accepted from any text count as accepted predictions, at most as many as predicted.
    predicted, sampling = prompt.predicted, prompt.settings.sampling
    accepted = min(tally.accepted["context"], predicted)
    usage = {
        "prompt_tokens": tally.prompt,
        "completion_tokens": tally.tokens,
        "total_tokens": tally.prompt + tally.tokens,
        "prompt_tokens_details": {"cached_tokens": tally.cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": predicted - accepted,
        },
    }
    seed = None if sampling.greedy else sampling.seed
    return {"usage": usage, "lade": {**tally.as_json(), "seed": seed}}
