"""A model's chat template: messages to token ids, and what it puts after an answer."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from .. import files
from ..decoder.tree import common_prefix
from ..errors import UsageError
from ..options.answer import TemplateChoice
from .tokens import shortened, token_ids
from .tool_calls import arguments_of

ChatMessage: TypeAlias = Mapping[str, Any]
"""A message as chat templates take it: with `role` and `content`."""
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""What templates call the reasoning of an earlier message."""
_EFFORTS = ("reasoning_effort", "enable_thinking", "thinking")
"""Variables of templates about reasoning: its level, or whether there is any."""
NOT_ARGUMENTS = frozenset({"messages", "add_generation_prompt"})
"""Variables that only we set."""
TOKEN_IDS = "token_ids"
"""The key of a message's own tokens, which stand in the prompt in place of those that the template
would write; where that changes or drops them, the template's stand."""
_MARK = "\ufdd1"
"""Stands for such tokens in a text; Unicode has no character of this number."""
GREETING: tuple[ChatMessage, ...] = ({"role": "user", "content": "hi"},)
"""The plainest conversation, which every template should take."""
_TRAINING = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""Tags around answers, which transformers alone knows."""
FIX = "use --chat-template FILE, or --raw"
_EXAMPLES = ("What is new?", "Hello")
"""Two texts: a template reads a part of a message if the prompt changes with it."""


class _RefusedError(UsageError):
    """A template raises an error of its own about messages."""


class ChatTemplate:
    """The chat template of a tokenizer, ready for use.

    Templates differ in what they take: contents as text or as typed parts, messages of the system,
    of developers, of tools.  Each is tried with examples first.

    Args:
        tokenizer: of transformers.
        choice: which of its templates, and with which arguments.

    Attributes:
        variables: those that it reads, but for those that only we set.
        notices: lines about what was done to messages, or does nothing.

    Raises:
        UsageError: there is no such template, it is ambiguous, broken, or cannot have such an
            argument.
    """

    def __init__(self, tokenizer: Any, choice: TemplateChoice) -> None:
        self._tokenizer = tokenizer
        self._name, self._source = _find(getattr(tokenizer, "chat_template", None), choice)
        self.variables = _variables(self._name, self._source)
        for key in choice.arguments:
            self.check_argument(key)
        self.notices = [
            f"{self._name} has no variable {key!r}: it changes nothing"
            for key in choice.arguments
            if key not in self.variables
        ]
        self._arguments = self._of_effort(choice.effort) | copy.deepcopy(dict(choice.arguments))

    def _of_effort(self, effort: str | None) -> dict[str, Any]:
        """The template's variables for how much a model is to think."""
        if effort is None:
            return {}
        if not self.knows_effort:
            names = " nor ".join(map(repr, _EFFORTS[:2]))
            self._say(f"{self._name} has no variable {names}: reasoning-effort changes nothing")
            return {}
        level, *switches = _EFFORTS
        arguments: dict[str, Any] = {
            key: effort != "none" for key in switches if key in self.variables
        }
        if level in self.variables and effort != "none":
            arguments[level] = effort
        elif not arguments:  # Mistral's templates have a level "none"; gpt-oss's has not
            can = re.search(r"""(["'])none\1""", self._source)
            arguments[level] = "none" if can else "low"
            if not can:
                self._say(f"{self._name} cannot leave reasoning out: reasoning-effort is low")
        return arguments

    @cached_property
    def knows_effort(self) -> bool:
        """Whether the template has a variable for how much a model is to think."""
        return not self.variables.isdisjoint(_EFFORTS)

    def check_argument(self, key: str) -> None:
        """Refuse with a UsageError a name that transformers takes for something of its own."""
        taken = set(inspect.signature(self._tokenizer.apply_chat_template).parameters)
        taken |= {"conversations", "self"}
        if key in taken - {"tools", "documents"} | NOT_ARGUMENTS:
            raise UsageError(f"template-arg {key} is not a template variable; leave it out")

    def encode(self, messages: Sequence[ChatMessage], most: int | None = None) -> list[int]:
        """The ids of a conversation, which waits for an answer.

        Args:
            messages: with `role` and `content`, and some with `TOKEN_IDS`.
            most: see `Session.encode`.

        Raises:
            UsageError: the template refuses the messages, or drops what they say.
        """
        known = [message[TOKEN_IDS] for message in messages if TOKEN_IDS in message]
        if known:
            marked = [_message(m["role"], _MARK) if TOKEN_IDS in m else m for m in messages]
            first, *others = (self._tried(self._prepared(marked)) or "").split(_MARK)
            if len(others) == len(known):
                ids = self._token_ids(first, most)
                for tokens, text in zip(known, others, strict=True):
                    ids += [*tokens, *self._token_ids(text, most)]
                return ids
        return self._token_ids(self._apply(self._prepared(messages), reply=True), most)

    def _token_ids(self, text: str, most: int | None) -> list[int]:
        """The ids of a text that the template made."""
        if most is not None:
            text = shortened(self._tokenizer, text, most)
        return token_ids(self._tokenizer, text, special=False)  # as transformers goes on

    @cached_property
    def end_token(self) -> int | None:
        """The token that closes an assistant's turn; None where not a single added token does."""
        texts = [
            self._tried(self._prepared([*GREETING, _message("assistant", text)]), reply=False)
            for text in _EXAMPLES
        ]
        if None in texts or texts[0] == texts[1]:
            return None
        # What follows both answers follows every answer.
        one, other = (str(text)[::-1] for text in texts)
        after = one[: common_prefix(one, other)][::-1].lstrip()
        added = self._tokenizer.get_added_vocab()
        known = sorted(filter(None, added), key=len, reverse=True)
        first = next((name for name in known if after.startswith(name)), None)
        if first is None or after.removeprefix(first).startswith(tuple(known)):
            return None
        return int(added[first])

    def _prepared(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The messages as this template takes them.

        Raises:
            UsageError: the template drops what the user, or a tool, says.
        """
        messages = [_with_calls(self._with_reasoning(message)) for message in messages]
        roles = {message["role"] for message in messages}
        if "developer" in roles and not self._knows_developer:
            messages = [_renamed(message, "developer", "system") for message in messages]
            roles.add("system")
        if "system" in roles and not self._takes_system:
            messages = self._without_system(messages)
        if "tool" in roles and not self._takes_tool_results:
            raise UsageError(f"{self._name} drops the results of tools; {FIX}")
        calls = any(message.get("tool_calls") for message in messages)
        if calls and not self.mentions("tool_calls"):
            self._say(f"{self._name} has no variable 'tool_calls': calls of tools are left out")
        return self._shaped(messages)

    def _shaped(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The messages with contents in a form that this template takes."""
        takes_text, takes_parts = self._forms
        return [*map(_as_parts if takes_parts and not takes_text else _as_text, messages)]

    def _with_reasoning(self, message: ChatMessage) -> ChatMessage:
        """A message with its reasoning where this template reads that, if anywhere."""
        thought = next(filter(None, map(message.get, REASONING_KEYS)), None)
        if thought is None:
            return message
        others = {key: value for key, value in message.items() if key not in REASONING_KEYS}
        if self._thinks_in_parts:
            return _as_parts(others, {"type": "thinking", "thinking": thought})
        return others | {name: thought for name in REASONING_KEYS if name in self._source}

    def _without_system(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The messages with those of the system before the next message of the user."""
        self._say(f"{self._name} has no system message: it goes before your first message")
        others: list[ChatMessage] = []
        told: list[ChatMessage] = []  # system messages that wait for a message of the user
        for message in messages:
            if message["role"] == "system":
                told.append(message)
                continue
            if message["role"] == "user":
                for system in reversed(told):
                    gap = {"type": "text", "text": "\n\n"}
                    message = _as_parts(message, *_parts(system), gap)
                told = []
            others.append(message)
        return [*others, *(_renamed(message, "system", "user") for message in told)]

    def _say(self, line: str) -> None:
        """Add a notice once."""
        if line not in self.notices:
            self.notices.append(line)

    def mentions(self, name: str) -> bool:
        """Whether the template has a variable, or a key, of this name."""
        return re.search(rf"\b{re.escape(name)}\b", self._source) is not None

    @cached_property
    def _forms(self) -> tuple[bool, bool]:
        """Whether contents may be texts, and whether they may be lists of typed parts, as in models
        that see pictures.

        Raises:
            UsageError: the prompt is the same, whatever the user says.
        """
        text = self._changes(lambda words: [_message("user", words)])
        parts = self._changes(lambda words: [_as_parts(_message("user", words))])
        if not text and not parts and text is not None:
            raise UsageError(f"{self._name} drops the user's messages; {FIX}")
        # A template that does not know parts may write all of the list into the prompt.
        writes = parts and self._changes(
            lambda words: [_message("user", [{"type": "text", "text": "a", "unknown": words}])]
        )
        return bool(text), bool(parts and not writes)

    @cached_property
    def _thinks_in_parts(self) -> bool:
        """Whether earlier reasoning is a typed part of a content, as Mistral's models have it."""

        def thought(words: str) -> list[ChatMessage]:
            part = {"type": "thinking", "thinking": words}
            return [*GREETING, _as_parts(_message("assistant", "a"), part)]

        known = "thinking" in self._source and self._forms[1]
        return known and bool(self._changes(thought, reply=False))

    @cached_property
    def _takes_system(self) -> bool:
        """Whether a system message reaches the prompt."""
        takes = self._changes(lambda words: self._shaped([_message("system", words), *GREETING]))
        # If not even a question alone is taken, the template itself says what is wrong.
        return bool(takes) or self._tried(self._shaped(GREETING)) is None

    @cached_property
    def _knows_developer(self) -> bool:
        """Whether the template has a place for developers' messages, as gpt-oss has; others write
        any role, or take any for the assistant's."""
        known, unknown = (
            self._tried(self._shaped([_message(role, "a"), *GREETING]))
            for role in ("developer", "stranger")
        )
        if known is None or unknown is None:
            return known is not None
        return known.lower() != unknown.lower().replace("stranger", "developer")

    @cached_property
    def _takes_tool_results(self) -> bool:
        """Whether what a tool says reaches the prompt, or the template refuses an example of it."""
        call = {"type": "function", "id": "abcdefghi", "function": {"name": "a", "arguments": {}}}
        called = {"role": "assistant", "tool_calls": [call]}

        def answered(words: str) -> list[ChatMessage]:
            result = {"role": "tool", "name": "a", "tool_call_id": call["id"], "content": words}
            return self._shaped([*GREETING, called, result])

        return self._changes(answered) is not False

    def _changes(
        self, example: Callable[[str], Sequence[ChatMessage]], reply: bool = True
    ) -> bool | None:
        """Whether the prompt changes with a text in an example; None if the template refuses it."""
        first, second = (self._tried(example(text), reply) for text in _EXAMPLES)
        return None if first is None or second is None else first != second

    def _tried(self, messages: Sequence[ChatMessage], reply: bool = True) -> str | None:
        """The text of an example; None if the template refuses it."""
        try:
            return self._apply(messages, reply)
        except _RefusedError:
            return None

    def _apply(self, messages: Sequence[ChatMessage], reply: bool) -> str:
        """The text of a conversation.

        Raises:
            UsageError: the template refuses the messages.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                chat_template=self._source,
                add_generation_prompt=reply,
                tokenize=False,
                **self._arguments,
            )
        except Exception as error:  # templates raise whatever they like
            why = str(error) or type(error).__name__
            raise _RefusedError(f"{self._name} refuses this: {why}") from error
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
    _variables(*_find(known, choice))


def _variables(name: str, source: str) -> set[str]:
    """The variables that a template reads, but for those that only we set.

    Raises:
        UsageError: it is broken.
    """
    from jinja2 import Environment, TemplateSyntaxError, meta

    try:
        environment = Environment(extensions=["jinja2.ext.loopcontrols"])
        parsed = environment.parse(_TRAINING.sub("", source))
    except TemplateSyntaxError as error:
        why = f"{str(error.message).rstrip('.')} in line {error.lineno}"
    except RecursionError:
        why = "it is nested too deeply"
    else:
        return meta.find_undeclared_variables(parsed) - NOT_ARGUMENTS
    raise UsageError(f"{name} is broken: {why}; use --raw")


def _find(known: str | Mapping[str, str] | None, choice: TemplateChoice) -> tuple[str, str]:
    """A name for messages and the source of a template: the model's of the name that was chosen, a
    file's, or, as transformers decides, the model's for tools or its default."""
    named = known if isinstance(known, Mapping) else {"default": known} if known else {}
    name, has_tools = choice.name, choice.arguments.get("tools") is not None
    names = ", ".join(sorted(map(str, named)))
    usual = "tool_use" if has_tools and "tool_use" in named else "default"
    if (chosen := name or usual) in named:
        if not isinstance(source := named[chosen], str):
            raise UsageError(f"the model's chat template is damaged (it is not text); {FIX}")
        return "the model's chat template", source
    if name is None and not named:
        raise UsageError("this model has no chat template; use --raw, or --chat-template FILE")
    if name is None:
        raise UsageError(
            f"this model has the chat templates {names} and no default; choose one by"
            " --chat-template"
        )
    if files.expanded(name).is_file():
        return f"the chat template {name}", files.read_text(name)
    raise UsageError(
        f"there is no chat template {name!r}: the model has {names or 'none'}, and no file has"
        " this name"
    )


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _renamed(message: ChatMessage, role: str, other: str) -> ChatMessage:
    """A message with another role, if it has a certain one."""
    return {**message, "role": other} if message["role"] == role else message


def _with_calls(message: ChatMessage) -> ChatMessage:
    """A message whose calls of tools have arguments as objects, as templates take them; OpenAI's
    protocol has a text of JSON."""
    calls = copy.deepcopy(message.get("tool_calls") or [])
    for call in calls:
        with contextlib.suppress(TypeError, LookupError):
            call["function"]["arguments"] = arguments_of(call["function"]["arguments"])
    return {**message, "tool_calls": calls} if calls else message


def _as_parts(message: ChatMessage, *before: Mapping[str, str]) -> ChatMessage:
    """A message whose content is a list of typed parts, with others before its own."""
    return {**message, "content": [*before, *_parts(message)]}


def _as_text(message: ChatMessage) -> ChatMessage:
    """A message whose content is a text, unless parts of it are something else."""
    parts, typed = _parts(message), isinstance(message.get("content"), list | tuple)
    if not typed or any(part.get("type") != "text" for part in parts):
        return message
    return {**message, "content": "".join(part["text"] for part in parts)}


def text_of(message: ChatMessage) -> str:
    """The text of a message for models without a template."""
    return str(_as_text(message).get("content") or "")


def _parts(message: ChatMessage) -> list[Mapping[str, Any]]:
    """The content of a message as typed parts; messages that call tools may have none."""
    content = message.get("content")
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else [*content]
