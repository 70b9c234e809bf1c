"""The Python API: load a model, stream events or generate text."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from .decoder.config import LookaheadConfig
from .decoder.errors import PromptError
from .errors import ArgumentError, LadeError, UsageError, flaw
from .events import Ended, TextEvent
from .metrics import Tally
from .options.answer import EffortOptions, LengthOptions, SamplingOptions, TemplateChoice
from .options.declare import Options, options_of
from .options.drafting import DraftOptions
from .options.model import SessionOptions
from .session.conversation import OpenAIMessage, for_template
from .session.grammar import Grammar
from .session.opening import open_session
from .session.session import Session, Settings
from .view.terminal import Terminal

Prompt = str | Sequence[dict[str, str]]
"""A text to continue, or a conversation: messages with `role` and `content`."""


_MESSAGES = TypeAdapter(list[OpenAIMessage])
_Request = TypeVar("_Request", bound=Options)


@dataclass(frozen=True, kw_only=True)
class _LoadRequest(DraftOptions, SessionOptions):
    """The options of `load`, with its `name` as the model."""


@dataclass(frozen=True, kw_only=True)
class _AnswerRequest(SamplingOptions, LengthOptions, EffortOptions):
    """The options of an answer."""


class Model:
    """A loaded model that answers prompts.

    Args:
        session: of the model.
        lookahead: the default settings of calls.
    """

    def __init__(self, session: Session, lookahead: LookaheadConfig) -> None:
        self.session = session
        self.lookahead = lookahead

    def __repr__(self) -> str:
        loaded = self.session.loaded
        device, kind = loaded.device.torch_name, loaded.spec.weights
        return f"<ladecli.Model {loaded.name} on {device} in {kind}>"

    @property
    def notices(self) -> tuple[str, ...]:
        """The warnings of loading the model."""
        return self.session.notices

    def stream(
        self,
        prompt: Prompt,
        *,
        strategy: str = "lookahead",
        lookahead: LookaheadConfig | None = None,
        draft_text: str | Sequence[str] = (),
        chat_template: str | Path | None = None,
        template_args: Mapping[str, Any] | None = None,
        schema: str | Mapping[str, Any] | None = None,
        grammar: str | None = None,
        **options: Any,
    ) -> Iterator[TextEvent]:
        """Stream the answer as events; `TextStep` events hold the text.

        Args:
            prompt: a text to continue as it is; or messages, which go through the chat template.
            strategy: lookahead, autoregressive, jacobi or prompt-lookup.
            lookahead: window, n-grams and guesses; by default the profile's.
            draft_text: a text, or several, that this and later answers may repeat, such as code.
            chat_template: of the messages: the name of one of the model's templates, or of a file.
            template_args: variables of the chat template, such as `enable_thinking`.
            schema, grammar: of the answer: JSON's, as text, dict or pydantic model; Lark or GBNF.
            options: those of `lade generate` about length, sampling and `reasoning_effort`, such
                as `max_new_tokens`, `stop`, `temperature` and `seed`; by default it is greedy.

        Raises:
            PromptError, ConfigError, UsageError: a prompt or an option is invalid.
            ArgumentError: an option is unknown, or a value has a wrong type; a TypeError, too.
        """
        request = _request(_AnswerRequest(seed=0), "stream", options)
        _check("lookahead", lookahead, LookaheadConfig | None, "a LookaheadConfig")
        constraint, session = _grammar(schema, grammar), self.session
        template = _template(prompt, chat_template, template_args, request.reasoning_effort)
        ids = self._encode(prompt, template)
        for text in _texts("draft_text", draft_text):
            session.add_draft_text(text)
        for line in session.new_notices():
            warnings.warn(line, stacklevel=2)
        settings = Settings(
            strategy=strategy,
            lookahead=lookahead or self.lookahead,
            sampling=request.sampling(session.loaded.defaults.without_samples),
            max_new_tokens=request.max_new_tokens,
            stop=tuple(request.stop or ()),
            ignore_eos=request.ignore_eos,
            template=template,
            grammar=constraint,
        )
        return _with_figures(session.stream(ids, settings))

    def _encode(self, prompt: Prompt, template: TemplateChoice | None) -> list[int]:
        """Return the ids of a prompt."""
        if isinstance(prompt, str) and prompt:
            return self.session.encode(prompt)
        return self.session.encode_chat(_messages(prompt), template)

    def generate(self, prompt: Prompt, **options: Any) -> str:
        """Return the whole answer as text; options and errors as for `stream`.

        Raises:
            LadeError: memory ran out before the end; `stream` yields the text until then.
        """
        tally = Tally()
        for event in self.stream(prompt, **options):
            tally.add(event)
        if tally.reason == "memory":
            raise LadeError(tally.out_of_memory)
        return tally.text


def _with_figures(events: Generator[TextEvent]) -> Iterator[TextEvent]:
    """Yield the events of an answer, the last one with the figures."""
    tally = Tally()
    with contextlib.closing(events):
        for event in events:
            tally.add(event)
            yield replace(event, figures=tally.as_json()) if isinstance(event, Ended) else event


def _request(request: _Request, function: str, arguments: Mapping[str, Any]) -> _Request:
    """Return a request with the arguments of a function, checked as on the command line."""
    options = options_of(type(request))
    values: dict[str, Any] = {}
    for key, value in arguments.items():
        if key not in options or key in ("model", "strategy", "color"):
            raise ArgumentError(f"{function}() has no option {key!r}")
        if isinstance(value, tuple):
            value = [*value]
        try:
            plain = value.item() if isinstance(value, np.generic) else value
            values[key] = options[key].typed(plain)
        except UsageError as error:
            raise ArgumentError(str(error).replace(options[key].name, key, 1)) from None
    request = replace(request, **values)
    request.check()
    return request


def _check(name: str, value: object, kind: Any, description: str) -> None:
    """Raise an ArgumentError if a value is not of a type."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} must be {description}, not {value!r:.60}")


def _template(
    prompt: Prompt,
    name: str | Path | None,
    arguments: Mapping[str, Any] | None,
    effort: str | None,
) -> TemplateChoice | None:
    """Return the chat template of messages; None for a text, which must not have arguments."""
    _check("chat_template", name, str | Path | None, "a name")
    _check("template_args", arguments, Mapping | None, "a dict")
    _texts("the names in template_args", [*(arguments or ())])
    if not isinstance(prompt, str):
        return TemplateChoice(None if name is None else str(name), arguments or {}, effort)
    if name or arguments or effort:
        names = "chat_template, template_args and reasoning_effort"
        raise ArgumentError(f"{names} are for messages; a text has none")
    return None


def _grammar(schema: str | Mapping[str, Any] | None, grammar: str | None) -> Grammar | None:
    """Return the grammar of an answer; None without a schema and a grammar."""
    if schema is not None and grammar is not None:
        raise ArgumentError("schema and grammar both constrain the answer; give one")
    _check("grammar", grammar, str | None, "a text")
    if schema is not None:
        return Grammar.from_schema(schema)
    return None if grammar is None else Grammar.from_lark(grammar)


def _texts(name: str, value: object) -> list[str]:
    """Return the texts of an argument that is one text or several."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"{name} must be a text, or a list of texts; not {value!r:.60}")
    return [*texts]


def _messages(prompt: object) -> list[dict[str, Any]]:
    """Return the messages of a conversation for a chat template."""
    if isinstance(prompt, Sequence) and not prompt:
        raise PromptError("the prompt is empty")
    try:
        return for_template(_MESSAGES.validate_python(prompt))
    except ValidationError as error:
        example = {"role": "user", "content": "Hello"}
        raise ArgumentError(
            f"a prompt is a text, or a list of messages such as {example}; {flaw(error)}"
        ) from None


def load(name: str | Path = "demo", **options: Any) -> Model:
    """Load a model from the Hugging Face hub or a local folder.

    Notices that `lade generate` would print become warnings, and stay in the model's `notices`.
    Messages name arguments as on the command line: `--max-context` is `max_context`.

    Args:
        name: a hub id, a folder, or "demo" for the bundled model.
        options: those of `lade generate` about the model and its drafts, by the names of their
            flags: dtype, device, quantize, attention, cuda_graphs, max_context, profile, budget …

    Raises:
        UsageError, ConfigError: an option is out of range, or memory has no room for the requested
            context or steps.
        LadeError: the model cannot be loaded; the message has the reason and the fix.
        UnsupportedModelError: the model cannot be decoded here.
    """
    if not isinstance(name, str | Path):
        raise ArgumentError(f"name must be a hub id, a folder or demo, not {name!r:.60}")
    if isinstance(sources := options.get("sources"), list | tuple):
        options["sources"] = ",".join(map(str, sources))
    request = _request(_LoadRequest(model=str(name)), "load", options)
    session = open_session(request, Terminal(quiet=True), request, bars=True)
    for notice in session.notices:
        warnings.warn(notice, stacklevel=2)
    return Model(session, request.lookahead(session.choice.base(request.wants_paper)))
