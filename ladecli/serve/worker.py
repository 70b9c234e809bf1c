"""The one decoder of a server: requests in, parts of answers out, one answer after the other.

It works in the program's main thread, as every command's decoder does; the server's own thread
hands it jobs and takes the parts.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import prometheus_client as prometheus

from ..decoder.errors import ConfigError, DeviceLostError, PromptError, RankError
from ..errors import UsageError, describe_error, one_line
from ..events import Ended, TextEvent, TextStep, pieces_of
from ..metrics import Tally
from ..options.answer import ServeRequest, TemplateChoice, bytes_in
from ..session import opening
from ..session.answer_memory import AnswerMemory
from ..session.chat_template import ChatMessage
from ..session.grammar import Grammar
from ..session.text import REPLACEMENT, bytes_of, speller
from ..session.tool_calls import CallReader, ToolCall, with_tools_as_text
from ..view.terminal import Terminal
from .known import Answer, KnownTexts
from .schema import ChatBody, CompletionBody, Refused, TextBody

if TYPE_CHECKING:
    from ..session.session import Session, Settings

GRACE = 1.0
"""Seconds that the answer under way has when the server is told to end."""
SHORTEST_PART = 0.02
"""Seconds of an answer that are sent at once: the server's thread takes time from faster steps."""
LONGEST_WAIT = 0.2
"""Seconds until the worker checks again whether it was stopped."""


_SYSTEM = ("system", "developer")
"""Roles of messages that take the place of `--system`."""


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
        self._requests = self._counter("requests", "Requests by how they ended.", "outcome")
        self._tokens = self._counter("tokens", "Tokens of prompts and answers.", "kind")
        self._steps = self._counter("steps", "Forward passes that yielded tokens.")
        self._seconds = self._counter("seconds", "Seconds in the queue and at work.", "part")
        self._mean = self._gauge("tokens_per_step", "Tokens per step of the newest answer.")
        self._queue = self._gauge("queue", "Requests that wait or are answered now.")

    def _counter(self, name: str, help: str, *labels: str) -> prometheus.Counter:
        return prometheus.Counter(f"lade_{name}", help, labels, registry=self._registry)

    def _gauge(self, name: str, help: str) -> prometheus.Gauge:
        return prometheus.Gauge(f"lade_{name}", help, registry=self._registry)

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
        untidy: whether much memory was freed that the C library may still keep.
    """

    def __init__(self, session: Session, request: ServeRequest) -> None:
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.name = request.served_name or session.loaded.name
        self.context = session.decoder.max_context
        self.counters = Counters()
        self._session, self._request = session, request
        session.keep_texts(bytes_in(request.keep_memory))
        self._terminal = Terminal(request.color, request.quiet)
        self._answers = KnownTexts()
        self._memory = AnswerMemory(session, request, self._terminal.say)
        self._spell = speller(session.loaded.tokenizer)
        # Signals are handled in the main thread, which a tokenizer would hold for seconds.
        self._thread = ThreadPoolExecutor(1, "prompt")
        self.until = math.inf
        self.untidy = False

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
        from ..decoder.backends.load import return_freed_memory

        try:
            while self.until == math.inf and not pressed():
                # A signal just before the wait would not end one without a limit.
                with contextlib.suppress(queue.Empty):
                    self._answer(self.jobs.get(timeout=LONGEST_WAIT), pressed)
                if self.untidy:
                    self.untidy = False
                    return_freed_memory()
        finally:
            self.stop()
            while not self.jobs.empty():
                self.jobs.get().give(ending())

    def _is_over(self, pressed: Callable[[], bool]) -> bool:
        if pressed():
            self.stop()
        return time.monotonic() > self.until

    def _answer(self, job: Job, pressed: Callable[[], bool]) -> None:
        """Answer a job, whatever is wrong with it; errors as `run`."""
        tally, began = Tally(), time.monotonic()
        outcome, wanted = "abandoned", job.wanted
        try:
            if wanted is not None:
                prepared = self._thread.submit(self._prepare, wanted)
                while not wait([prepared], LONGEST_WAIT).done:
                    if pressed() or self.until < math.inf:
                        raise ending()  # a prompt that takes so long has no answer within `GRACE`
                for part in self._parts(
                    wanted,
                    *prepared.result(),
                    tally,
                    lambda: job.wanted is None or self._is_over(pressed),
                ):
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

    def _prepare(self, wanted: CompletionBody) -> tuple[list[int], Settings, int]:
        """Return the ids of a prompt, how to answer it, and how many tokens are predicted.

        It runs on a thread of its own.

        Raises:
            Refused, Error: it cannot be answered.
        """
        session = self._session
        given = wanted.options
        origins = {key: o for key, o in self._request.origins.items() if key not in given}
        request = replace(self._request, **given, origins=origins)
        prompt, template = self._prompt(wanted, request)
        sampling = session.loaded.defaults.without_samples
        settings = opening.settings_of(request, session.choice, sampling, template)
        predicted = 0
        if wanted.prediction is not None:
            predicted = session.add_draft_text(wanted.prediction.text, lasting=False)
        calls = isinstance(wanted, ChatBody) and bool(wanted.callable)
        if isinstance(wanted, ChatBody) and calls:
            for text in self._answers.new_texts(wanted.messages):
                session.add_draft_text(json.dumps(text, ensure_ascii=False)[1:-1], lasting=False)
        fills_in = isinstance(wanted, TextBody) and bool(wanted.suffix)
        grammar = None
        if isinstance(wanted, ChatBody) and (schema := wanted.schema_of_answers) is not None:
            try:
                grammar = Grammar.from_schema(schema)
            except UsageError as error:
                raise Refused(400, str(error), "response_format") from error
        settings = replace(settings, logprobs=wanted.alternatives, grammar=grammar)
        self._memory.recall(prompt)
        return prompt, replace(settings, calls=calls, fills_in=fills_in), predicted

    def _parts(
        self,
        wanted: CompletionBody,
        prompt: list[int],
        settings: Settings,
        predicted: int,
        tally: Tally,
        cancelled: Callable[[], bool],
    ) -> Iterator[Part]:
        """Decode an answer; `cancelled` is asked after every step, and true ends it.

        Raises:
            Refused, Error: it was cut short.
        """
        session, called, answer = self._session, False, Answer()
        hidden, held, sent = session.stop_ids(settings), list[TextEvent](), -math.inf
        reader, most = None, math.inf
        if isinstance(wanted, ChatBody) and settings.calls:
            reader = CallReader(wanted.callable, self._special)
            most = 1 if wanted.parallel_tool_calls is False else math.inf
        with contextlib.closing(session.stream(prompt, settings, cancelled)) as events:
            for event in events:
                tally.add(event)
                held.append(event)
                if time.monotonic() - sent >= SHORTEST_PART or isinstance(event, Ended):
                    part = self._part(held, hidden, reader, isinstance(event, Ended))
                    if most == 1:
                        part = replace(part, calls=part.calls[:1])
                    called = called or bool(part.calls)
                    answer.text += part.text
                    answer.calls += part.calls
                    answer.reasoned = answer.reasoned or bool(part.reasoning)
                    answer.ids += [i for e in held if isinstance(e, TextStep) for i in e.token_ids]
                    yield part
                    if called and most == 1:
                        break
                    held, sent = [], time.monotonic()
        if tally.reason == "memory":
            raise Refused(507, tally.out_of_memory or "out of memory", code="out_of_memory")
        if not tally.ended_well and not (called and most == 1):
            raise ending()
        if isinstance(wanted, ChatBody):
            self._answers.keep(answer, hidden)
        # In OpenAI's words.
        finish = "length" if tally.cut else "tool_calls" if called else "stop"
        yield Part(finish=finish, totals=_totals(tally, settings, predicted))
        self._memory.keep(tally.token_ids)

    def _prompt(
        self, wanted: CompletionBody, request: ServeRequest
    ) -> tuple[list[int], TemplateChoice | None]:
        """The ids of a prompt, and the template that it went through.

        Raises:
            UsageError, Refused: the template refuses it, or it does not fit.
        """
        session, template = self._session, None
        most = session.decoder.max_context
        if isinstance(wanted, ChatBody):
            template = request.template(True)
            if template is not None:
                template = self._with_variables(template, wanted)
            messages = self._messages(wanted, request)
            known = self._answers.put_back(messages)
            try:
                ids, template = self._encoded(messages, wanted.callable, template, most, known)
            except UsageError:
                if not known:
                    raise
                messages = self._messages(wanted, request)
                ids, template = self._encoded(messages, wanted.callable, template, most)
        else:
            ids = session.encode(wanted.prompts[0], most, wanted.suffix or None)
        if len(ids) >= most:
            # In OpenAI's words, by which clients know it.
            told = f"This model's maximum context length is {most} tokens, and the prompt has"
            count = len(ids) if len(ids) <= 2 * most else f"more than {2 * most}"
            message = f"{told} {count}; shorten the prompt"
            raise Refused(400, message, code="context_length_exceeded")
        return ids, template

    def _messages(self, wanted: ChatBody, request: ServeRequest) -> list[ChatMessage]:
        """The messages of a conversation, with the system message of the server."""
        names: dict[str, str] = {}
        messages = [message.for_template(names) for message in wanted.messages]
        if request.system is not None and messages[0]["role"] not in _SYSTEM:
            messages.insert(0, {"role": "system", "content": request.system})
        return messages

    def _encoded(
        self,
        messages: list[ChatMessage],
        tools: list[dict[str, Any]],
        template: TemplateChoice | None,
        most: int,
        known: Mapping[str, Sequence[int]] | None = None,
    ) -> tuple[list[int], TemplateChoice | None]:
        """The ids of a conversation, and the template that it went through, with the tools."""
        session = self._session
        if template is not None and tools:
            choice = replace(template, arguments={**template.arguments, "tools": tools})
            if "tools" in session.template(choice).variables:
                template, tools = choice, []
        called = any("tool_calls" in message or message["role"] == "tool" for message in messages)
        if tools or (called and not self._knows_calls(template)):
            messages = with_tools_as_text(messages, tools)
        if template is None:
            text = "\n".join(str(message["content"]) for message in messages)
            return session.encode(text, most), None
        return session.encode_chat(messages, template, most, known), template

    def _knows_calls(self, template: TemplateChoice | None) -> bool:
        """Whether a template has a place for earlier calls of tools."""
        return template is not None and self._session.template(template).mentions("tool_calls")

    @cached_property
    def _special(self) -> list[str]:
        """The texts of the model's special tokens."""
        tokens = getattr(self._session.loaded.tokenizer, "added_tokens_decoder", {}).values()
        return [str(token) for token in tokens if token.special]

    def _with_variables(self, template: TemplateChoice, wanted: ChatBody) -> TemplateChoice:
        """A template with a client's variables, without those that it does not have: a line about
        each would be the client's to fill the terminal with."""
        variables, effort = wanted.chat_template_kwargs or {}, wanted.reasoning_effort
        if not variables and effort is None:
            return template
        plain = self._session.template(template)
        for key in variables:
            plain.check_argument(key)
        known = {key: value for key, value in variables.items() if key in plain.variables}
        if effort is not None and plain.knows_effort:
            template = replace(template, effort=effort)
        return replace(template, arguments={**template.arguments, **known})

    def _part(
        self,
        events: Sequence[TextEvent],
        hidden: frozenset[int],
        reader: CallReader | None,
        ended: bool,
    ) -> Part:
        """What events add."""
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
            if ended:
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
    return Refused(503, "the server is ending; ask again when it is back", code="server_ending")


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


def _totals(tally: Tally, settings: Settings, predicted: int) -> dict[str, Any]:
    """Return OpenAI's counts of tokens, and figures named as in `lade generate --json`."""
    accepted = min(tally.accepted["context"], predicted)  # drafts of texts, which it is one of
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
    figures = {
        **tally.as_json(),
        "seed": None if settings.sampling.greedy else settings.sampling.seed,
    }
    return {"usage": usage, "lade": figures}
