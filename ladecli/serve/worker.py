"""The one decoder of a server: requests in, parts of answers out, one answer after the other.

It works in the program's main thread, as every command's decoder does; the server's own thread
hands it jobs and takes the parts.
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
from .schema import ChatBody, CompletionBody, Refused

if TYPE_CHECKING:
    from ..session.session import Session

GRACE = 1.0
"""Seconds that the answer under way has when the server is told to end."""
SHORTEST_PART = 0.02
"""Seconds of an answer that are sent at once: the server's thread takes time from faster steps."""
LONGEST_WAIT = 0.2
"""Seconds until the worker checks again whether it was stopped."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer: what a step added to it, or several fast ones."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[dict[str, Any], ...] = ()  # of its tokens, as OpenAI's chats have them
    finish: str | None = None  # why the answer ends, with its last part
    totals: dict[str, Any] = field(default_factory=dict)  # what the answer took, with that part


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way."""

    wanted: CompletionBody | None  # None once the client has left
    give: Callable[[Part | Refused], object]  # takes the parts of the answer, or why there is none
    since: float = field(default_factory=time.monotonic)


class Counters:
    """What was answered so far, in Prometheus' text form."""

    def __init__(self) -> None:
        # A series more for each, of when it began, is of no use.
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
            tally: of its answer, whole or not.
            outcome: why the answer ended, or what became of the request without one.
            waited: seconds in the queue.
        """
        self._requests.labels(outcome).inc()
        tokens = {"prompt": tally.prompt, "cached": tally.cached, "completion": tally.tokens}
        for kind, count in tokens.items():
            self._tokens.labels(kind).inc(count)
        seconds = {"prefill": tally.prefill_seconds, "decode": tally.decode_seconds}
        for part, each in {"queue": waited, **seconds}.items():
            self._seconds.labels(part).inc(each)
        self._steps.inc(tally.steps)
        if tally.steps:
            self._mean.set(tally.tokens_per_step)

    def refuse(self) -> None:
        """Count a request that was refused before it came into the queue."""
        self._requests.labels("refused").inc()

    def text(self, waiting: int) -> bytes:
        """All of them; `waiting` is the number of requests in the queue or at work."""
        self._queue.set(waiting)
        return prometheus.generate_latest(self._registry)


class Worker:
    """Answers jobs until it is stopped.

    Args:
        session: the model at work.
        request: what holds where clients do not say.

    Attributes:
        name: of the model.
        context: tokens of the longest prompt and its answer.
        counters: of what was answered.
        jobs: that wait.
        until: when the answer under way ends, at the latest; no other is taken before that.
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
        # Signals are handled in the main thread, which a tokenizer would hold for seconds.
        self._thread = ThreadPoolExecutor(1, "prompt")
        self.until = math.inf

    def stop(self) -> None:
        """Let the answer under way come to its end within `GRACE`, and take no other."""
        self.until = min(self.until, time.monotonic() + GRACE)

    def run(self, pressed: Callable[[], bool]) -> None:
        """Answer jobs until `stop`, and refuse those that still wait then.

        Args:
            pressed: asked after every step; once true it is as `stop`.

        Raises:
            DeviceLostError, RankError: nothing can be answered any more; the client knows.
        """
        try:
            while self.until == math.inf and not pressed():
                # A signal just before the wait would not end one without a limit.
                with contextlib.suppress(queue.Empty):
                    self._answer(self.jobs.get(timeout=LONGEST_WAIT), pressed)
        finally:
            self.stop()
            while not self.jobs.empty():
                self.jobs.get().give(ending())

    def _answer(self, job: Job, pressed: Callable[[], bool]) -> None:
        """Answer a job, whatever is wrong with it; errors as `run`."""
        tally, began = Tally(), time.monotonic()
        outcome, wanted = "abandoned", job.wanted
        try:
            if wanted is not None:
                prompt = self._thread.submit(self._prompts.prepare, wanted)
                while not wait([prompt], LONGEST_WAIT).done:
                    if pressed() or self.until < math.inf:
                        raise ending()  # a prompt that takes so long has no answer within `GRACE`

                def cancelled() -> bool:
                    if pressed():
                        self.stop()
                    return job.wanted is None or time.monotonic() > self.until

                for part in self._parts(wanted, prompt.result(), tally, cancelled):
                    job.give(part)
        except Exception as error:
            refusal = _refusal(error)
            outcome = "refused" if refusal.status_code < 500 else "failed"
            job.give(refusal)
            if isinstance(error, DeviceLostError | RankError):
                raise
        finally:
            self.counters.add(tally, tally.reason or outcome, began - job.since)
            self._terminal.say(*self._session.new_notices())

    def _parts(
        self,
        wanted: CompletionBody,
        prompt: Prompt,
        tally: Tally,
        cancelled: Callable[[], bool],
    ) -> Iterator[Part]:
        """Decode an answer; `cancelled` is asked after every step, and true ends it.

        Raises:
            Refused, Error: it was cut short.
        """
        session, settings = self._session, prompt.settings
        self._memory.recall(prompt.ids)
        hidden = session.stop_ids(settings)
        reader = CallReader(wanted.callable, self._special) if settings.calls else None
        one_call = isinstance(wanted, ChatBody) and wanted.parallel_tool_calls is False
        text, calls = "", list[ToolCall]()
        held, sent = list[TextEvent](), -math.inf
        with contextlib.closing(session.stream(prompt.ids, settings, cancelled)) as events:
            for event in events:
                tally.add(event)
                held.append(event)
                if time.monotonic() - sent < SHORTEST_PART and not isinstance(event, Ended):
                    continue
                part = self._part(held, hidden, reader)
                if one_call:
                    part = replace(part, calls=part.calls[:1])
                text, calls = text + part.text, [*calls, *part.calls]
                yield part
                if calls and one_call:
                    break
                held, sent = [], time.monotonic()
        if tally.reason == "memory":
            raise Refused(507, tally.out_of_memory or "out of memory", code="out_of_memory")
        if not tally.ended_well and not (calls and one_call):
            raise ending()
        if calls and not tally.reasoning:  # an answer with reasoning is the template's to write
            ids = tally.token_ids
            self._prompts.keep(text, calls, ids[:-1] if ids[-1] in hidden else ids)
        # In OpenAI's words.
        finish = "length" if tally.cut else "tool_calls" if calls else "stop"
        yield Part(finish=finish, totals=_totals(tally, prompt))
        self._memory.keep(tally.token_ids)

    @cached_property
    def _special(self) -> list[str]:
        """The texts of the model's special tokens."""
        tokens = getattr(self._session.loaded.tokenizer, "added_tokens_decoder", {}).values()
        return [str(token) for token in tokens if token.special]

    def _part(
        self,
        events: Sequence[TextEvent],
        hidden: frozenset[int],
        reader: CallReader | None,
    ) -> Part:
        """What events add; `hidden` are ids without log-probabilities."""
        pieces = [piece for event in events for piece in pieces_of(event)]
        found = [
            self._spelled(token, each.own)
            | {"top_logprobs": [self._spelled(*one) for one in each.best]}
            for event in events
            if isinstance(event, TextStep)
            for token, each in zip(event.token_ids, event.logprobs, strict=False)
            if token not in hidden
        ]
        text, calls = "".join(piece.text for piece in pieces), list[ToolCall]()
        if reader is not None:
            text, calls = reader.feed(text)
            if isinstance(events[-1], Ended):
                rest, more = reader.flush()
                text, calls = text + rest, calls + more
        reasoning = "".join(piece.reasoning for piece in pieces)
        return Part(text, reasoning, tuple(calls), tuple(found))

    def _spelled(self, token: int, logprob: float) -> dict[str, Any]:
        """A token with its log-probability."""
        text = self._spell(token)
        raw: bytes | None = text.encode()
        if REPLACEMENT in text and (raw := bytes_of(self._session.loaded.tokenizer, token)):
            text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)  # as OpenAI spells it
        found = None if raw is None else [*raw]
        # JSON has no infinity; OpenAI has this number for it.
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": found}


def ending() -> Refused:
    """What clients hear of a server that ends."""
    return Refused(503, "the server is shutting down; try again later", code="server_ending")


def _refusal(error: Exception) -> Refused:
    """An error as the client hears it."""
    if isinstance(error, Refused):
        return error
    wrong_input = isinstance(error, UsageError | ConfigError | PromptError)
    message = one_line(describe_error(error))
    # Such a message begins with the option's name.
    flag, _, fault = message.partition(" ")
    field = {"template-arg": "chat_template_kwargs"}.get(flag, flag.replace("-", "_"))
    if wrong_input and field in ChatBody.model_fields:
        return Refused(400, f"{field} {fault}", field)
    return Refused(400 if wrong_input else 500, message)


def _totals(tally: Tally, prompt: Prompt) -> dict[str, Any]:
    """Return OpenAI's counts of tokens, and figures named as in `lade generate --json`."""
    # The predicted text is one of those that are drafted from.
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
