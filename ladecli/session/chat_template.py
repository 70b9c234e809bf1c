"""A model's chat template: turns messages into token ids, and names the token after an answer."""

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
"""The names that templates use for the reasoning of an earlier message."""
_EFFORTS = ("reasoning_effort", "enable_thinking", "thinking")
"""Template variables about reasoning: its level, and two that turn it on or off."""
NOT_ARGUMENTS = frozenset({"messages", "add_generation_prompt"})
"""Variables that only we set."""
TOKEN_IDS = "token_ids"
"""The key of a message's own tokens.  They replace the tokens that the template would write for the
message, unless the template changes or drops messages."""
_MARK = "\ufdd1"
"""A placeholder for such tokens in a text; Unicode has no character of this number."""
GREETING: tuple[ChatMessage, ...] = ({"role": "user", "content": "hi"},)
"""The plainest conversation, which every template should take."""
_TRAINING = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""Tags around answers that only transformers defines."""
FIX = "use --chat-template FILE, or --raw"
_EXAMPLES = ("What is new?", "Hello")
"""Two texts: a template reads a part of a message if the prompt changes with it."""


class _TemplateError(UsageError):
    """The template itself raised an error about the messages."""


class ChatTemplate:
    """The chat template of a tokenizer, ready for use.

    Templates differ in the messages that they accept: contents as text or as typed parts, system,
    developer and tool messages.  Examples show what a template accepts.

    Args:
        tokenizer: of transformers.
        choice: names one of its templates, and the arguments.

    Attributes:
        variables: the names that the template reads, except those that only we set.
        notices: lines about changes to messages, and about arguments without effect.

    Raises:
        UsageError: there is no such template, it is ambiguous or broken, or an argument is
            reserved.
    """

    def __init__(self, tokenizer: Any, choice: TemplateChoice) -> None:
        self._tokenizer = tokenizer
        self._name, self._source = _choose(getattr(tokenizer, "chat_template", None), choice)
        self.variables = _variables(self._name, self._source)
        for key in choice.arguments:
            self.check_argument(key)
        self.notices = [
            f"{self._name} has no variable {key!r}: it changes nothing"
            for key in choice.arguments
            if key not in self.variables
        ]
        self._arguments = self._effort_args(choice.effort) | copy.deepcopy(dict(choice.arguments))

    def _effort_args(self, effort: str | None) -> dict[str, Any]:
        """Return the arguments that set the reasoning effort."""
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
            has_none = re.search(r"""(["'])none\1""", self._source)
            arguments[level] = "none" if has_none else "low"
            if not has_none:
                self._say(f"{self._name} cannot leave reasoning out: reasoning-effort is low")
        return arguments

    @cached_property
    def knows_effort(self) -> bool:
        """True if the template has a variable for the reasoning effort."""
        return not self.variables.isdisjoint(_EFFORTS)

    def check_argument(self, key: str) -> None:
        """Raise a UsageError if a name is a parameter of transformers' own."""
        reserved = set(inspect.signature(self._tokenizer.apply_chat_template).parameters)
        reserved |= {"conversations", "self"}
        if key in reserved - {"tools", "documents"} | NOT_ARGUMENTS:
            raise UsageError(f"template-arg {key} is not a template variable; leave it out")

    def encode(self, messages: Sequence[ChatMessage], most: int | None = None) -> list[int]:
        """Return the token ids of a conversation, up to the start of the next answer.

        Args:
            messages: with `role` and `content`, and some with `TOKEN_IDS`.
            most: see `Session.encode`.

        Raises:
            UsageError: the template refuses the messages, or drops their contents.
        """
        answers = [message[TOKEN_IDS] for message in messages if TOKEN_IDS in message]
        if answers:
            marked = [_message(m["role"], _MARK) if TOKEN_IDS in m else m for m in messages]
            first, *others = (self._try_render(self._prepared(marked)) or "").split(_MARK)
            if len(others) == len(answers):
                ids = self._token_ids(first, most)
                for tokens, text in zip(answers, others, strict=True):
                    ids += [*tokens, *self._token_ids(text, most)]
                return ids
        return self._token_ids(self._render(self._prepared(messages), reply=True), most)

    def _token_ids(self, text: str, most: int | None) -> list[int]:
        """Return the ids of a text that the template wrote."""
        if most is not None:
            text = shortened(self._tokenizer, text, most)
        return token_ids(self._tokenizer, text, special=False)  # as `apply_chat_template` does

    @cached_property
    def end_token(self) -> int | None:
        """The token that closes an assistant's turn; None unless it is one added token."""
        texts = [
            self._try_render(self._prepared([*GREETING, _message("assistant", text)]), reply=False)
            for text in _EXAMPLES
        ]
        if None in texts or texts[0] == texts[1]:
            return None
        # Text that follows both answers follows every answer.
        one, other = (str(text)[::-1] for text in texts)
        after = one[: common_prefix(one, other)][::-1].lstrip()
        added = self._tokenizer.get_added_vocab()
        names = sorted(filter(None, added), key=len, reverse=True)
        first = next((name for name in names if after.startswith(name)), None)
        if first is None or after.removeprefix(first).startswith(tuple(names)):
            return None
        return int(added[first])

    def _prepared(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the messages in a form that this template accepts.

        Raises:
            UsageError: the template drops messages of the user or of a tool.
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
        """Return the messages with contents as text or as parts, as this template accepts them."""
        takes_text, takes_parts = self._forms
        return [*map(_as_parts if takes_parts and not takes_text else _as_text, messages)]

    def _with_reasoning(self, message: ChatMessage) -> ChatMessage:
        """Return a message with its reasoning under the keys that this template reads, if any."""
        thought = next(filter(None, map(message.get, REASONING_KEYS)), None)
        if thought is None:
            return message
        others = {key: value for key, value in message.items() if key not in REASONING_KEYS}
        if self._thinks_in_parts:
            return _as_parts(others, {"type": "thinking", "thinking": thought})
        return others | {name: thought for name in REASONING_KEYS if name in self._source}

    def _without_system(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the messages with system messages merged into the next message of the user."""
        self._say(f"{self._name} has no system message: it goes before your first message")
        others: list[ChatMessage] = []
        pending: list[ChatMessage] = []  # system messages before the next message of the user
        for message in messages:
            if message["role"] == "system":
                pending.append(message)
                continue
            if message["role"] == "user":
                for system in reversed(pending):
                    gap = {"type": "text", "text": "\n\n"}
                    message = _as_parts(message, *_parts(system), gap)
                pending = []
            others.append(message)
        return [*others, *(_renamed(message, "system", "user") for message in pending)]

    def _say(self, line: str) -> None:
        """Add a notice once."""
        if line not in self.notices:
            self.notices.append(line)

    def mentions(self, name: str) -> bool:
        """Return True if the template has a variable, or a key, of this name."""
        return re.search(rf"\b{re.escape(name)}\b", self._source) is not None

    @cached_property
    def _forms(self) -> tuple[bool, bool]:
        """Two bools: contents may be texts; contents may be lists of typed parts, as in models that
        see pictures.

        Raises:
            UsageError: the prompt does not depend on the user's messages.
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
        """True if earlier reasoning is a typed part of a content, as for Mistral's models."""

        def thought(words: str) -> list[ChatMessage]:
            part = {"type": "thinking", "thinking": words}
            return [*GREETING, _as_parts(_message("assistant", "a"), part)]

        supports = "thinking" in self._source and self._forms[1]
        return supports and bool(self._changes(thought, reply=False))

    @cached_property
    def _takes_system(self) -> bool:
        """True if a system message reaches the prompt."""
        takes = self._changes(lambda words: self._shaped([_message("system", words), *GREETING]))
        # If the template refuses even a single question, its own error says what is wrong.
        return bool(takes) or self._try_render(self._shaped(GREETING)) is None

    @cached_property
    def _knows_developer(self) -> bool:
        """True if the template treats the role "developer" specially, as that of gpt-oss does;
        others write any role into the prompt, or treat unknown roles as the assistant."""
        developer, unknown_role = (
            self._try_render(self._shaped([_message(role, "a"), *GREETING]))
            for role in ("developer", "stranger")
        )
        if developer is None or unknown_role is None:
            return developer is not None
        return developer.lower() != unknown_role.lower().replace("stranger", "developer")

    @cached_property
    def _takes_tool_results(self) -> bool:
        """True if the result of a tool reaches the prompt, or the template refuses an example."""
        call = {"type": "function", "id": "abcdefghi", "function": {"name": "a", "arguments": {}}}
        called = {"role": "assistant", "tool_calls": [call]}

        def answered(words: str) -> list[ChatMessage]:
            result = {"role": "tool", "name": "a", "tool_call_id": call["id"], "content": words}
            return self._shaped([*GREETING, called, result])

        return self._changes(answered) is not False

    def _changes(
        self, example: Callable[[str], Sequence[ChatMessage]], reply: bool = True
    ) -> bool | None:
        """Return True if the prompt changes with a text in an example; None if the template refuses
        the example."""
        first, second = (self._try_render(example(text), reply) for text in _EXAMPLES)
        return None if first is None or second is None else first != second

    def _try_render(self, messages: Sequence[ChatMessage], reply: bool = True) -> str | None:
        """Return the text of an example; None if the template refuses it."""
        try:
            return self._render(messages, reply)
        except _TemplateError:
            return None

    def _render(self, messages: Sequence[ChatMessage], reply: bool) -> str:
        """Return the text of a conversation.

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
            raise _TemplateError(f"{self._name} refuses this: {why}") from error
        return str(text)


def check_template(templates: Mapping[str, str], choice: TemplateChoice) -> None:
    """Check the chosen chat template without loading a tokenizer.

    Args:
        templates: the templates in the files of a model, by name.
        choice: names one of them, or another file.

    Raises:
        UsageError: it is broken, or cannot be found.
    """
    # A tokenizer with custom code may bring a template that no file has.
    if not templates and not (choice.name and files.expanded(choice.name).is_file()):
        return
    _variables(*_choose(templates, choice))


def _variables(name: str, source: str) -> set[str]:
    """Return the variables that a template reads, except those that only we set.

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


def _choose(sources: str | Mapping[str, str] | None, choice: TemplateChoice) -> tuple[str, str]:
    """Return a description for error messages and the source of the chosen template: one of the
    model's, a file, or by default, as in transformers, the model's for tools or its default."""
    named = sources if isinstance(sources, Mapping) else {"default": sources} if sources else {}
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
    """Return a message with its role changed to `other` if it is `role`."""
    return {**message, "role": other} if message["role"] == role else message


def _with_calls(message: ChatMessage) -> ChatMessage:
    """Return a message whose tool calls have arguments as objects, as templates expect them;
    OpenAI's protocol has a text of JSON."""
    calls = copy.deepcopy(message.get("tool_calls") or [])
    for call in calls:
        with contextlib.suppress(TypeError, LookupError):
            call["function"]["arguments"] = arguments_of(call["function"]["arguments"])
    return {**message, "tool_calls": calls} if calls else message


def _as_parts(message: ChatMessage, *before: Mapping[str, str]) -> ChatMessage:
    """Return a message whose content is a list of typed parts, the parts `before` first."""
    return {**message, "content": [*before, *_parts(message)]}


def _as_text(message: ChatMessage) -> ChatMessage:
    """Return a message with its content as text, unless some parts are not text."""
    parts, typed = _parts(message), isinstance(message.get("content"), list | tuple)
    if not typed or any(part.get("type") != "text" for part in parts):
        return message
    return {**message, "content": "".join(part["text"] for part in parts)}


def text_of(message: ChatMessage) -> str:
    """Return the text of a message for models without a template."""
    return str(_as_text(message).get("content") or "")


def _parts(message: ChatMessage) -> list[Mapping[str, Any]]:
    """Return the content of a message as typed parts; messages that call tools may have none."""
    content = message.get("content")
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else [*content]
