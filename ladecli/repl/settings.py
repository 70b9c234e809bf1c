"""The options of a chat: what `/set` changes, and what `/show` shows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from .. import profiles
from ..decoder.config import SOURCES
from ..errors import UsageError
from ..options import ChatRequest
from ..options.declare import ALIASES, Setting, settings_of

if TYPE_CHECKING:
    from .session import Chat

_MODELS = ("temperature", "top-k", "top-p", "min-p", "repetition-penalty")
"""Options whose default is in the model's generation config."""
TUNED = ("window", "ngram", "guesses", "budget", "sources")
"""Options whose default is in the profile."""
LIVE = (
    *("strategy", "profile", *TUNED, *_MODELS, "seed"),
    *("max-new-tokens", "stop", "ignore-eos", "markdown", "token-colors", "stats"),
)
"""Options that a chat can change, by their names."""
AT_START = ("parallel", "parallel-mode", "attention", "cuda-graphs", "compile")
"""Options that a chat shows and cannot change."""
SET_HERE = "set in this chat"
"""The origin of what `/set` changed."""
_OFF = {"top-k": 0, "top-p": 1.0, "min-p": 0.0, "repetition-penalty": 1.0}
"""What switches a sampling option off, whatever the model's own value is."""
_KINDS = {int: "a whole number", float: "a number", bool: "on or off", str: "text"}


def change(request: ChatRequest, name: str, text: str) -> ChatRequest:
    """The request with one option changed.

    Args:
        request: the options until now.
        name: of a flag, without its dashes.
        text: the value as typed; "default" takes a change back, "off" switches off.

    Raises:
        UsageError, ConfigError: there is no such option, it can only be set at start, or it
            cannot have this value; the message says what it may be.
    """
    setting, word = known(name), text.lower()
    origins = {**request.origins, setting.key: SET_HERE}
    value: Any
    if word == "off" and setting.name in _OFF:
        value = _OFF[setting.name]
    elif word == "default" or (setting.kind is not bool and word in ("none", "off")):
        value = setting.default
        del origins[setting.key]
    else:
        value = _typed(setting, text)
    changed = replace(request, **{setting.key: value}, origins=origins)
    changed.check()
    return changed


def known(name: str) -> Setting:
    """The option of this name, which a chat can change.

    Raises:
        UsageError: there is none.
    """
    name = name.lstrip("-").replace("_", "-").lower()
    name = ALIASES.get(name, name)
    found = {setting.name: setting for setting in settings_of(ChatRequest).values()}
    if name in LIVE:
        return found[name]
    if name in found:
        raise UsageError(
            f"{name} can only be set at start: leave, and restart with lade chat --{name}"
        )
    hint = suggestion(name, LIVE) or f"one of {', '.join(LIVE)}"
    raise UsageError(f"there is no option {name!r}; {hint}")


def values_of(name: str) -> Iterable[str]:
    """The values of an option where they are few words; for completion."""
    setting = {each.name: each for each in settings_of(ChatRequest).values()}.get(name)
    if name in ("profile", "sources"):
        return profiles.names() if name == "profile" else SOURCES
    if setting is None:
        return ()
    return ("on", "off") if setting.kind is bool else setting.choices


def suggestion(word: str, names: Iterable[str], mark: str = "") -> str:
    """A hint at the name that a misspelt word may mean; empty if none is near."""
    names = list(names)
    longer = [name for name in names if word and name.startswith(word)]
    near = longer or difflib.get_close_matches(word, names, n=1)
    return f"did you mean {mark}{near[0]}?" if near else ""


def _typed(setting: Setting, text: str) -> Any:
    """A value of the type that an option has."""
    if setting.kind is list:  # quotes keep blanks, and a line cannot hold a break
        return [text.strip("\"'").replace("\\n", "\n").replace("\\t", "\t")]
    try:
        return TypeAdapter(setting.kind).validate_strings(text)
    except ValidationError:
        raise UsageError(f"{setting.name} must be {_KINDS[setting.kind]}, not {text!r}") from None


def in_effect(chat: Chat) -> dict[str, tuple[str, str]]:
    """Value and origin of every option that a chat shows, by the names of their flags."""
    request, session, settings = chat.request, chat.session, chat.settings()
    values = asdict(request) | asdict(settings.sampling) | asdict(settings.lookahead)
    values |= {
        "profile": chat.choice.profile,
        "budget": settings.lookahead.step_limit,
        "seed": "a new one for each reply" if request.seed is None else request.seed,
        "max_new_tokens": settings.max_new_tokens or "until the context is full",
        "stop": settings.stop,
        "stats": chat.shows_stats,
        "parallel": session.ranks,
        "attention": session.attention,
        "cuda_graphs": session.decoder.runner.captures,
    }
    names = {name: name.replace("-", "_") for name in (*LIVE, *AT_START)}
    return {name: (_spelt(values[key]), _origin(key, chat)) for name, key in names.items()}


def _spelt(value: object) -> str:
    """A value as `/set` takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(value) or "none" if isinstance(value, tuple) else str(value)


def _origin(key: str, chat: Chat) -> str:
    """Where the value of an option is from, short enough for a table."""
    request = chat.request
    if key in request.origins:
        return request.origins[key]
    if key in TUNED:
        paper = request.wants_paper
        used, base = chat.settings().lookahead, chat.choice.base(paper)
        if getattr(used, key) != getattr(base, key):
            return "follows from what you set"
        # "measured: AMD EPYC, 2026-11, torch 2.13": what, and the first thing about it.
        origin = chat.choice.paper_origin if paper else chat.choice.origins[key]
        return f"profile {chat.choice.profile}: {re.split(', | [(]', origin)[0]}"
    if key in ("profile", "attention", "cuda_graphs"):
        return "fits this machine"
    return "the model's" if key.replace("_", "-") in _MODELS else "default"
