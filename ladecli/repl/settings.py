"""The options of a chat, for `/set` and `/show`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from .. import profiles
from ..decoder.config import SOURCES, SamplingConfig
from ..errors import UsageError
from ..options.answer import ChatRequest
from ..options.declare import Option, options_of

if TYPE_CHECKING:
    from .chat import Chat

_MODEL_DEFAULTS = ("temperature", "top-k", "top-p", "min-p", "repetition-penalty")
"""Options whose default is in the model's generation config."""
TUNED = ("window", "ngram", "guesses", "budget", "sources")
"""Options whose default is in the profile."""
LIVE = (
    *("strategy", "profile", *TUNED, *_MODEL_DEFAULTS, "seed"),
    *("max-new-tokens", "stop", "ignore-eos", "chat-template", "template-arg"),
    "reasoning-effort",
    *("reasoning", "markdown", "token-colors", "stats"),
)
"""The names of the options that a chat can change."""
_COMMANDS = {
    "system": "/system TEXT changes it",
    "model": "/model NAME goes on with another",
    "draft-text": "/draft FILE adds one",
    "message": "type it",
}
"""Options that have a command of their own, with a hint at it."""
_KINDS = {int: "a whole number", float: "a number", bool: "on or off", str: "text"}


def change(request: ChatRequest, name: str, text: str) -> ChatRequest:
    """Return the request with one option changed.

    Args:
        request: the current options.
        name: of a flag, without its dashes.
        text: the value as typed; "default" is the value without flags and config file, "off"
            switches the option off.

    Raises:
        UsageError, ConfigError: there is no such option, it can only be set at start, or the
            value is invalid; the message names the valid values.
    """
    option, word = find_live(name), text.lower()
    origins = {**request.origins, option.key: "set in this chat"}
    value: Any
    if word == "off" and option.name in _MODEL_DEFAULTS:  # whatever the model's own value is
        value = getattr(SamplingConfig(), option.key)
    elif word == "default":
        value = option.default
    elif option.kind is not bool and not option.choices and word in ("none", "off"):
        value = None
    elif option.kind is list:  # quotes keep blanks, and \n stands for a line break
        value = [text.strip("\"'").replace("\\n", "\n").replace("\\t", "\t")]
        if option.key == "template_arg":  # each command sets one variable
            name = text.partition("=")[0]
            others = [arg for arg in request.template_arg or () if arg.partition("=")[0] != name]
            value = [*others, text]
    else:
        try:
            value = TypeAdapter(option.kind).validate_strings(text)
        except ValidationError:
            kind = _KINDS[option.kind]
            raise UsageError(f"{option.name} must be {kind}, not {text!r}") from None
    if word == "default":
        del origins[option.key]
    changed = replace(request, **{option.key: value}, origins=origins)
    changed.check()
    return changed


def find_live(name: str) -> Option:
    """Return the option of this name that a chat can change.

    Raises:
        UsageError: there is none.
    """
    option = find_option(name)
    if option.name in _COMMANDS:
        raise UsageError(f"{option.name} is not an option of /set; {_COMMANDS[option.name]}")
    if option.name not in LIVE:
        raise UsageError(
            f"{option.name} can only be set at start: leave, and restart with lade chat"
            f" --{option.name}"
        )
    return option


def find_option(name: str) -> Option:
    """Return the option of this name; UsageError if there is none."""
    letter, name = f"-{name.lstrip('-')}", name.lstrip("-").replace("_", "-").lower()
    for option in options_of(ChatRequest).values():
        if option.name == name or option.flag == letter:
            return option
    hint = suggestion(name, LIVE) or f"one of {', '.join(LIVE)}"
    raise UsageError(f"there is no option {name!r}; {hint}")


def values_of(name: str) -> Iterable[str]:
    """Return the values of an option for completion; nothing if any text is valid."""
    if name == "profile":
        return profiles.names()
    if name == "sources":
        return SOURCES
    if name not in LIVE:
        return ()
    option = find_live(name)
    return ("on", "off") if option.kind is bool else option.choices


def suggestion(word: str, names: Iterable[str], mark: str = "") -> str:
    """Return a hint at the most similar name; empty if there is none."""
    names = list(names)
    longer = [name for name in names if word and name.startswith(word)]
    near = longer or difflib.get_close_matches(word, names, n=1, cutoff=0.65)
    return f"did you mean {mark}{near[0]}?" if near else ""


def in_effect(chat: Chat) -> dict[str, tuple[str, str]]:
    """Return value and origin of every option, by the names of their flags."""
    request, settings = chat.request, chat.settings()
    values = asdict(request) | asdict(settings.sampling) | asdict(settings.lookahead)
    values |= {
        "profile": chat.choice.profile,
        "budget": settings.lookahead.step_limit,
        "seed": "a new one for each reply" if request.seed is None else request.seed,
        "max_new_tokens": settings.max_new_tokens or "until the context is full",
        "chat_template": request.chat_template or "default",
        "reasoning_effort": request.reasoning_effort or "default",
        "stats": chat.shows_stats,
        "dtype": chat.session.loaded.spec.compute,
    }
    base, rows = chat.choice.base(request.wants_paper), {}
    for key, option in options_of(ChatRequest).items():
        name = option.name
        stated = name in _MODEL_DEFAULTS and chat.session.loaded.defaults.states(key)
        origin = "the model's" if stated else "default"
        if key in request.origins:
            origin = request.origins[key]
        elif name in TUNED and getattr(settings.lookahead, key) != getattr(base, key):
            origin = "follows from other settings"
        elif name in TUNED:
            origin = f"profile {chat.choice.profile}"
        elif name == "profile":
            origin = "fits this machine"
        rows[name] = (_spelt(values[key]), origin)
    return rows


def _spelt(value: object) -> str:
    """Return a value in the form that `/set` accepts."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or isinstance(value, tuple | list):
        return ",".join(value or ()).replace("\n", "\\n").replace("\t", "\\t") or "none"
    return str(value)
