"""From requests to prompts.  A conversation may contain earlier answers of the server, whose tokens
are used again, and texts that its answer is likely to quote, which drafts learn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..options.answer import TemplateChoice
from ..options.commands import ServeRequest
from ..session import opening
from ..session.chat_template import TOKEN_IDS
from ..session.conversation import for_template
from ..session.grammar import Grammar
from ..session.tool_calls import ToolCall, arguments_of, with_tools_as_text
from .schema import ChatBody, CompletionBody, Refused, TextBody

if TYPE_CHECKING:
    from ..session.session import Session, Settings

ANSWERS = 64
"""The most answers that are kept; the oldest are dropped first."""
TEXTS = 256
"""How many of the last texts are not learned again if they come again."""
SHORTEST = 200
"""Texts with fewer characters than this are not learned."""
_SYSTEM = ("system", "developer")
"""Roles of messages that take the place of `--system`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, and the settings of its answer."""

    ids: list[int]
    settings: Settings
    predicted: int  # the number of tokens in the text that the client predicts


class Prompts:
    """Turns requests into prompts.

    Args:
        session: encodes prompts, and learns texts for drafts.
        options: the settings that a request does not give.
    """

    def __init__(self, session: Session, options: ServeRequest) -> None:
        self._session, self._options = session, options
        self._answers: dict[str, list[int]] = {}  # the tokens of those that call tools
        self._learn = lru_cache(TEXTS)(self._learn_escaped)

    def prepare(self, wanted: CompletionBody) -> Prompt:
        """Return the prompt of a request.

        Raises:
            Refused, Error: the request cannot be answered.
        """
        session, given = self._session, wanted.options
        origins = {key: o for key, o in self._options.origins.items() if key not in given}
        options = replace(self._options, **given, origins=origins)
        template: TemplateChoice | None = None
        if isinstance(wanted, TextBody):
            most = session.decoder.max_context
            ids = session.encode(wanted.prompts[0], most, wanted.suffix or None)
        else:
            ids, template = self._encoded(wanted, options)
        self._check_length(ids)
        for message in wanted.messages if isinstance(wanted, ChatBody) and wanted.tools else ():
            if message.role in ("user", "tool") and len(message.text) >= SHORTEST:
                self._learn(message.text)
        predicted = 0  # learned last: an answer is expected to begin like the newest text
        if wanted.prediction is not None:
            predicted = session.add_draft_text(wanted.prediction.text, lasting=False)
        sampling = session.loaded.defaults.without_samples
        settings = replace(
            opening.settings_of(options, session.choice, sampling, template),
            logprobs=wanted.alternatives,
            grammar=_grammar(wanted),
            calls=bool(wanted.callable),
            fills_in=isinstance(wanted, TextBody) and bool(wanted.suffix),
        )
        return Prompt(ids, settings, predicted)

    def keep(self, text: str, calls: Sequence[ToolCall], ids: list[int]) -> None:
        """Keep the tokens of an answer that calls tools, for later requests that contain it.

        The chat template may write the calls in another form, whose tokens are not in the cache.
        """
        self._answers[_key(text, [(call.name, call.arguments) for call in calls])] = ids
        if len(self._answers) > ANSWERS:
            del self._answers[next(iter(self._answers))]

    def _encoded(
        self, wanted: ChatBody, options: ServeRequest
    ) -> tuple[list[int], TemplateChoice | None]:
        """Return the ids of a conversation, and the template that was applied.

        Raises:
            UsageError: the template refuses the conversation.
        """
        session, tools = self._session, wanted.callable
        messages = self._messages(wanted, options)
        template = options.template(True)
        if template is not None:
            template = self._with_variables(template, wanted)
            with_tools = replace(template, arguments={**template.arguments, "tools": tools})
            if tools and "tools" in session.template(with_tools).variables:
                template, tools = with_tools, []
        called = any("tool_calls" in message or message["role"] == "tool" for message in messages)
        knows_calls = template is not None and session.template(template).mentions("tool_calls")
        if tools or (called and not knows_calls):
            messages = with_tools_as_text(messages, tools)
        return session.encode_chat(messages, template, session.decoder.max_context), template

    def _messages(self, wanted: ChatBody, options: ServeRequest) -> list[dict[str, Any]]:
        """Return the messages of a conversation, with the server's system message, and with the
        tokens of answers that the server gave."""
        messages = for_template(wanted.messages)
        for message in messages:
            if "tool_calls" in message and "reasoning" not in message:
                functions = [call["function"] for call in message["tool_calls"]]
                calls = [(one["name"], arguments_of(one["arguments"])) for one in functions]
                if ids := self._answers.get(_key(message["content"], calls)):
                    message[TOKEN_IDS] = ids
        if options.system is not None and messages[0]["role"] not in _SYSTEM:
            messages.insert(0, {"role": "system", "content": options.system})
        return messages

    def _learn_escaped(self, text: str) -> None:
        """Teach drafts a text in the form that it has in the arguments of a call.

        These are JSON, in which line ends and quotes are escaped, so the tokens are not those of
        the prompt.
        """
        escaped = json.dumps(text, ensure_ascii=False)[1:-1]
        self._session.add_draft_text(escaped, lasting=False)

    def _with_variables(self, template: TemplateChoice, wanted: ChatBody) -> TemplateChoice:
        """Return a template with those of a client's variables that it has.

        Others are dropped without a notice: clients could fill the server's terminal with those.
        """
        variables, effort = wanted.chat_template_kwargs or {}, wanted.effort
        if not variables and effort is None:
            return template
        plain = self._session.template(template)
        for key in variables:
            plain.check_argument(key)
        known = {key: value for key, value in variables.items() if key in plain.variables}
        if effort is not None and plain.knows_effort:
            template = replace(template, effort=effort)
        return replace(template, arguments={**template.arguments, **known})

    def _check_length(self, ids: Sequence[int]) -> None:
        """Refuse a prompt that leaves no room to answer, in OpenAI's words, which clients know."""
        most = self._session.decoder.max_context
        if len(ids) >= most:
            count = len(ids) if len(ids) <= 2 * most else f"more than {2 * most}"
            message = (
                f"This model's maximum context length is {most} tokens, and the prompt has"
                f" {count}; shorten the prompt"
            )
            raise Refused(400, message, code="context_length_exceeded")


def _grammar(wanted: CompletionBody) -> Grammar | None:
    """Return the grammar that constrains an answer; None if there is none."""
    if (schema := wanted.schema_of_answers) is None:
        return None
    try:
        return Grammar.from_schema(schema)
    except UsageError as error:
        raise Refused(400, str(error), "response_format") from error


def _key(text: str, calls: Sequence[Any]) -> str:
    """Return the key of an answer, which is the same however its calls are written."""
    return json.dumps([text.strip(), calls], sort_keys=True)
