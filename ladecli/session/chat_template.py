"""A model's chat template: messages to token ids, and what it puts after an answer."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import files
from ..errors import UsageError
from ..options.answer import TemplateChoice
from .limited import LimitError, limited
from .text import token_ids

if TYPE_CHECKING:
    from jinja2 import TemplateSyntaxError

ChatMessage: TypeAlias = Mapping[str, Any]
"""A message as chat templates take it: with `role` and `content`."""
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""What templates call the reasoning of an earlier message."""
NOT_ARGUMENTS = frozenset({"messages", "add_generation_prompt"})
"""What a template is told by us alone."""
LONGEST = 1_000_000
"""Characters that a template may add to a conversation."""
GREETING: tuple[ChatMessage, ...] = ({"role": "user", "content": "hi"},)
"""The plainest conversation, which every template should take."""
_TRAINING = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""Tags around answers, which transformers alone knows."""
FIX = "use --chat-template FILE, or --raw"
_PROBES = {
    "system": "speak plainly",
    "user": "what is new",
    "assistant": "nothing at all",
    "reasoning": "let me see",
}
"""What shows by an example what a template makes of each role, and of earlier reasoning."""


class _RefusedError(UsageError):
    """A template raises an error of its own about messages."""


class ChatTemplate:
    """The chat template of a tokenizer, ready for use.

    Templates differ in what they take.  Each is tried with an example first: does the prompt hold
    the user's words, or are they wanted as typed parts?  Is there a place for a system message?

    Args:
        tokenizer: of transformers.
        choice: which of its templates, and with which arguments.

    Raises:
        UsageError: there is no such template, it is ambiguous, or cannot have such an argument.
    """

    def __init__(self, tokenizer: Any, choice: TemplateChoice) -> None:
        self._tokenizer = tokenizer
        self._name, self._source = _find(getattr(tokenizer, "chat_template", None), choice.name)
        self._arguments = copy.deepcopy(dict(choice.arguments))
        taken = set(inspect.signature(tokenizer.apply_chat_template).parameters)
        for key in self._arguments.keys() & (taken - {"tools", "documents"} | NOT_ARGUMENTS):
            raise UsageError(f"template-arg {key} is no variable of chat templates; leave it out")
        # Lines about what was done to messages, or does nothing.
        self.notices = [
            f"{self._name} has no variable {key!r}: it changes nothing"
            for key in self._arguments
            if not re.search(rf"\b{re.escape(key)}\b", self._source)
        ]

    def encode(self, messages: Sequence[ChatMessage]) -> list[int]:
        """The ids of a conversation, which waits for an answer.

        Args:
            messages: with `role` and `content`.

        Raises:
            UsageError: the template is broken, refuses the messages, or drops what the user says.
        """
        text = self._apply(self._prepared(messages), reply=True)
        return token_ids(self._tokenizer, text, special=False)  # as transformers goes on

    @cached_property
    def end_token(self) -> int | None:
        """The token that closes an assistant's turn; None where not a single added token does."""
        answer = _PROBES["assistant"]
        messages = self._prepared([_probe("user"), _probe("assistant")])
        text = self._tried(messages, reply=False) or ""
        if answer not in text:
            return None
        after = text.rpartition(answer)[2].lstrip()
        added = self._tokenizer.get_added_vocab()
        known = sorted(filter(None, added), key=len, reverse=True)
        first = next((each for each in known if after.startswith(each)), None)
        if first is None or after.removeprefix(first).startswith(tuple(known)):
            return None
        return int(added[first])

    def _prepared(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """The messages as this template takes them."""
        messages = [self._with_reasoning(message) for message in messages]
        if messages and messages[0]["role"] == "system" and not self._takes_system:
            messages = self._without_system(messages)
        takes_text, takes_parts = self._forms
        if not takes_text and takes_parts:
            return [*map(_as_parts, messages)]
        return messages if takes_parts else [*map(_as_text, messages)]

    def _with_reasoning(self, message: ChatMessage) -> ChatMessage:
        """A message with its reasoning where this template reads that, if anywhere."""
        thought = next(filter(None, map(message.get, REASONING_KEYS)), None)
        if thought is None:
            return message
        others = {key: value for key, value in message.items() if key not in REASONING_KEYS}
        if self._thinks_in_parts:
            return _as_parts(others, {"type": "thinking", "thinking": thought})
        return others | {name: thought for name in REASONING_KEYS if name in self._source}

    def _without_system(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """The messages with the system's before the first one of the user."""
        system, *others = messages
        for number, message in enumerate(others):
            if message["role"] == "user":
                line = f"{self._name} has no system message: it goes before your first message"
                if line not in self.notices:
                    self.notices.append(line)
                others[number] = {**message, "content": _after(system["content"], message)}
                return others
        return messages

    @cached_property
    def _forms(self) -> tuple[bool, bool]:
        """Whether contents may be texts, and whether they may be lists of typed parts, as in models
        that see pictures.

        Raises:
            UsageError: the user's words do not reach the prompt either way.
        """
        question = _probe("user")
        plain, typed = self._tried([question]), self._tried([_as_parts(question)])
        text, parts = (_holds(each, question["content"]) for each in (plain, typed))
        if not (text or parts) and plain is not None:
            raise UsageError(f"{self._name} drops what the user says; {FIX}")
        return text, parts

    @cached_property
    def _thinks_in_parts(self) -> bool:
        """Whether earlier reasoning is a typed part of a content, as Mistral's models have it."""
        thought, question, answer = _PROBES["reasoning"], _probe("user"), _probe("assistant")
        named = answer | dict.fromkeys(REASONING_KEYS, thought)
        typed = _as_parts(answer, {"type": "thinking", "thinking": thought})
        if "thinking" not in self._source or _holds(self._tried([question, named], False), thought):
            return False
        text = self._tried([question, typed], False)
        return _holds(text, thought) and _holds(text, answer["content"])

    @cached_property
    def _takes_system(self) -> bool:
        """Whether a system message reaches the prompt."""
        messages = [_probe("system"), _probe("user")]
        text = self._tried(messages if self._forms[0] else [*map(_as_parts, messages)])
        alone = self._tried(self._prepared(messages[1:]))
        # Where not even a question alone is taken, the template itself says what is wrong.
        return alone is None or _holds(text, messages[0]["content"])

    def _tried(self, messages: Sequence[ChatMessage], reply: bool = True) -> str | None:
        """The text of an example; None if the template refuses it."""
        try:
            return self._apply(messages, reply)
        except _RefusedError:
            return None

    def _apply(self, messages: Sequence[ChatMessage], reply: bool) -> str:
        """The text of a conversation.

        Raises:
            UsageError: the template is broken, refuses the messages, or does not come to an end.
        """
        from jinja2 import TemplateSyntaxError

        try:
            with limited():
                text = self._tokenizer.apply_chat_template(
                    list(messages),
                    chat_template=self._source,
                    add_generation_prompt=reply,
                    tokenize=False,
                    **self._arguments,
                )
        except LimitError as error:
            raise UsageError(f"{self._name} {error}; {FIX}") from error
        except TemplateSyntaxError as error:
            raise _broken(self._name, error) from error
        except Exception as error:  # templates raise whatever they like
            raise _RefusedError(f"{self._name} refuses this: {error}") from error
        if len(text) > LONGEST + 4 * sum(len(str(each.get("content"))) for each in messages):
            raise UsageError(f"{self._name} adds more than {LONGEST:,} characters; {FIX}")
        return str(text)


def check_template(known: Mapping[str, str], choice: TemplateChoice) -> None:
    """Refuse a chat template that is none, without a tokenizer.

    Args:
        known: the templates in the files of a model, by name.
        choice: which of them, or which other one.

    Raises:
        UsageError: it is broken, or cannot be found.
    """
    # A tokenizer with code of its own may bring one that no file has.
    if not known and not (choice.name and files.expanded(choice.name).is_file()):
        return
    name, source = _find(known, choice.name)
    from jinja2 import Environment, TemplateSyntaxError

    try:
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(_TRAINING.sub("", source))
    except TemplateSyntaxError as error:
        raise _broken(name, error) from error
    except RecursionError as error:
        raise UsageError(f"{name} is broken: it is nested too deeply; use --raw") from error


def _broken(name: str, error: TemplateSyntaxError) -> UsageError:
    return UsageError(
        f"{name} is broken: {str(error.message).rstrip('.')} in line {error.lineno}; use --raw"
    )


def _find(known: str | Mapping[str, str] | None, name: str | None) -> tuple[str, str]:
    """A name for messages and the source of a template, by the name of a model's, or a file's."""
    named = known if isinstance(known, Mapping) else {"default": known} if known else {}
    if (chosen := name or "default") in named:
        return "the model's chat template", named[chosen]
    if name is None and not named:
        raise UsageError("this model has no chat template; use --raw, or --chat-template FILE")
    if name is None:
        raise UsageError(
            f"this model has the chat templates {', '.join(sorted(named))} and no default; choose"
            " one by --chat-template"
        )
    if files.expanded(name).is_file():
        return f"the chat template {name}", _source(name)
    has = f"only {', '.join(sorted(named))}" if isinstance(known, Mapping) else "only its own"
    has = has if named else "none"
    raise UsageError(
        f"there is no chat template {name!r}: the model has {has}, and no file has this name"
    )


def _source(name: str) -> str:
    """The template in a file; a .json holds it as a tokenizer's config does."""
    text = files.read_text(name)
    if not name.endswith(".json"):
        return text
    try:
        source = json.loads(text)["chat_template"]
    except (ValueError, LookupError, TypeError):
        source = None
    if not isinstance(source, str):
        raise UsageError(f"{name} has no text under chat_template; name another file")
    return source


def _probe(role: str) -> dict[str, str]:
    return {"role": role, "content": _PROBES[role]}


def _holds(text: str | None, words: str) -> bool:
    """Whether words reach the text of an example, which is None where the template refuses it.

    A template that does not know typed parts may write the list of them, which does not count.
    """
    return text is not None and words in text and "'type'" not in text


def _as_parts(message: ChatMessage, *before: Mapping[str, str]) -> ChatMessage:
    """A message whose content is a list of typed parts, with others before its own."""
    return {**message, "content": [*before, *_parts(message)]}


def _as_text(message: ChatMessage) -> ChatMessage:
    """A message whose content is a text, unless parts of it are something else."""
    parts, typed = _parts(message), isinstance(message.get("content"), list | tuple)
    if not typed or any(part.get("type") != "text" for part in parts):
        return message
    return {**message, "content": "".join(part["text"] for part in parts)}


def _parts(message: ChatMessage) -> list[Mapping[str, Any]]:
    """The content of a message as typed parts; messages that call tools may have none."""
    content = message.get("content")
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else [*content]


def _after(content: Any, message: ChatMessage) -> Any:
    """The content of a message after another content, as its own paragraph."""
    if isinstance(content, str) and isinstance(message.get("content"), str):
        return f"{content}\n\n{message['content']}"
    gap = {"type": "text", "text": "\n\n"}
    return [*_parts({"content": content}), gap, *_parts(message)]
