"""Turn requests into prompts.  A conversation may contain earlier answers of the server, whose
tokens are used again, and texts that its answer is likely to quote, which drafts learn."""

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
from .schema import APIError, ChatBody, CompletionBody, TextBody

if TYPE_CHECKING:
    from ..session.session import Session, Settings

ANSWERS = 64
"""The most answers that are kept; the oldest are dropped first."""
TEXTS = 256
"""This many of the last texts are not learned a second time."""
SHORTEST = 200
"""Texts with fewer characters than this are not learned."""
_SYSTEM = ("system", "developer")
"""Roles of messages that replace `--system`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the settings of its answer."""

    ids: list[int]
    settings: Settings
    predicted: int  # the number of tokens in the text that the client predicts


class Prompts:
    """Turns requests into prompts.

    Args:
        session: encodes prompts, and learns texts for drafts.
        options: the defaults for settings that a request leaves out.
    """

    def __init__(self, session: Session, options: ServeRequest) -> None:
        self._session, self._options = session, options
        self._answers: dict[str, list[int]] = {}  # the tokens of answers that call tools
        self._learn = lru_cache(TEXTS)(self._learn_escaped)

    def prepare(self, body: CompletionBody) -> Prompt:
        """Return the prompt of a request.

        Raises:
            APIError, Error: the request cannot be answered.
        """
        session, changes = self._session, body.options
        origins = {key: o for key, o in self._options.origins.items() if key not in changes}
        options = replace(self._options, **changes, origins=origins)
        template: TemplateChoice | None = None
        if isinstance(body, TextBody):
            most = session.decoder.max_context
            ids = session.encode(body.prompts[0], most, body.suffix or None)
        else:
            ids, template = self._encoded(body, options)
        self._check_length(ids)
        for message in body.messages if isinstance(body, ChatBody) and body.tools else ():
            if message.role in ("user", "tool") and len(message.text) >= SHORTEST:
                self._learn(message.text)
        predicted = 0  # learned last: an answer is expected to begin like the newest text
        if body.prediction is not None:
            predicted = session.add_draft_text(body.prediction.text, lasting=False)
        sampling = session.loaded.defaults.without_samples
        settings = replace(
            opening.settings_of(options, session.choice, sampling, template),
            logprobs=body.alternatives,
            grammar=_grammar(body),
            calls=bool(body.callable),
            fills_in=isinstance(body, TextBody) and bool(body.suffix),
        )
        return Prompt(ids, settings, predicted)

    def keep(self, text: str, calls: Sequence[ToolCall], ids: list[int]) -> None:
        """Keep the tokens of an answer that calls tools, for later requests that contain it.

        The chat template may write the calls differently, and then their tokens are not cached.
        """
        self._answers[_key(text, [(call.name, call.arguments) for call in calls])] = ids
        if len(self._answers) > ANSWERS:
            del self._answers[next(iter(self._answers))]

    def _encoded(
        self, body: ChatBody, options: ServeRequest
    ) -> tuple[list[int], TemplateChoice | None]:
        """Return the ids of a conversation, and the template that was applied.

        Raises:
            UsageError: the template refuses the conversation.
        """
        session, tools = self._session, body.callable
        messages = self._messages(body, options)
        template = options.template(True)
        if template is not None:
            template = self._with_variables(template, body)
            with_tools = replace(template, arguments={**template.arguments, "tools": tools})
            if tools and "tools" in session.template(with_tools).variables:
                template, tools = with_tools, []
        called = any("tool_calls" in message or message["role"] == "tool" for message in messages)
        knows_calls = template is not None and session.template(template).mentions("tool_calls")
        if tools or (called and not knows_calls):
            messages = with_tools_as_text(messages, tools)
        return session.encode_chat(messages, template, session.decoder.max_context), template

    def _messages(self, body: ChatBody, options: ServeRequest) -> list[dict[str, Any]]:
        """Return the messages of a conversation, with the server's system message, and with the
        tokens of the server's own answers."""
        messages = for_template(body.messages)
        for message in messages:
            if "tool_calls" in message and "reasoning" not in message:
                functions = [call["function"] for call in message["tool_calls"]]
                calls = [(f["name"], arguments_of(f["arguments"])) for f in functions]
                if ids := self._answers.get(_key(message["content"], calls)):
                    message[TOKEN_IDS] = ids
        if options.system is not None and messages[0]["role"] not in _SYSTEM:
            messages.insert(0, {"role": "system", "content": options.system})
        return messages

    def _learn_escaped(self, text: str) -> None:
        """Let drafts learn a text in the form that it has in the arguments of a call.

        Arguments are JSON, in which line ends and quotes are escaped, so the tokens differ from
        those of the prompt.
        """
        escaped = json.dumps(text, ensure_ascii=False)[1:-1]
        self._session.add_draft_text(escaped, lasting=False)

    def _with_variables(self, template: TemplateChoice, body: ChatBody) -> TemplateChoice:
        """Return a template with the client's variables that the template knows.

        Others are dropped without a notice, with which clients could fill the server's terminal.
        """
        variables, effort = body.chat_template_kwargs or {}, body.effort
        if not variables and effort is None:
            return template
        plain = self._session.template(template)
        for key in variables:
            plain.check_argument(key)
        supported = {key: value for key, value in variables.items() if key in plain.variables}
        if effort is not None and plain.knows_effort:
            template = replace(template, effort=effort)
        return replace(template, arguments={**template.arguments, **supported})

    def _check_length(self, ids: Sequence[int]) -> None:
        """Refuse a prompt that leaves no room to answer, in OpenAI's words, which clients parse."""
        most = self._session.decoder.max_context
        if len(ids) >= most:
            count = len(ids) if len(ids) <= 2 * most else f"more than {2 * most}"
            message = (
                f"This model's maximum context length is {most} tokens, and the prompt has"
                f" {count}; shorten the prompt"
            )
            raise APIError(400, message, code="context_length_exceeded")


def _grammar(body: CompletionBody) -> Grammar | None:
    """Return the grammar that constrains an answer; None if there is none."""
    if (schema := body.schema_of_answers) is None:
        return None
    try:
        return Grammar.from_schema(schema)
    except UsageError as error:
        raise APIError(400, str(error), "response_format") from error


def _key(text: str, calls: Sequence[Any]) -> str:
    """Return the key of an answer, which does not depend on the form of its calls."""
    return json.dumps([text.strip(), calls], sort_keys=True)
