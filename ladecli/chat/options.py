"""The options of a chat: what `/set` changes, and what `/show` shows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ..errors import UsageError
from ..settings import ChatRequest, default_of

if TYPE_CHECKING:
    from .session import Chat

_MODELS = ("temperature", "top-k", "top-p", "min-p", "repetition-penalty")
"""Options whose default is in the model's generation config."""
TUNED = ("window", "ngram", "guesses", "budget", "sources")
"""Options whose default is in the profile."""
SWITCHES = ("ignore-eos", "markdown", "token-colors", "stats")
"""Options that are on or off."""
LIVE = (
    *("strategy", "profile", *TUNED, *_MODELS, "seed"),
    *("max-new-tokens", "stop", *SWITCHES),
)
"""Options that a chat can change, by their flags' names."""
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
    name = known(name)
    key = name.replace("-", "_")
    origins = {**request.origins, key: SET_HERE}
    value: Any
    if text.lower() == "off" and name in _OFF:
        value = _OFF[name]
    elif text.lower() == "default" or (name not in SWITCHES and text.lower() in ("none", "off")):
        value = default_of(ChatRequest, key)
        del origins[key]
    else:
        value = _typed(name, text)
    changed = replace(request, **{key: value}, origins=origins)
    changed.check()
    return changed


def known(name: str) -> str:
    """The name of an option that a chat can change, as the tables here spell it.

    Raises:
        UsageError: there is none.
    """
    name = name.lstrip("-").replace("_", "-").lower()
    if name in LIVE:
        return name
    if name in {field.name.replace("_", "-") for field in fields(ChatRequest)} - {"origins"}:
        raise UsageError(
            f"{name} can only be set at start: leave, and restart with lade chat --{name}"
        )
    raise UsageError(
        f"there is no option {name!r}; {suggestion(name, LIVE) or 'one of ' + ', '.join(LIVE)}"
    )


def suggestion(word: str, names: Iterable[str], mark: str = "") -> str:
    """A hint at the name that a misspelt word may mean; empty if none is near."""
    names = list(names)
    longer = [name for name in names if word and name.startswith(word)]
    near = longer or difflib.get_close_matches(word, names, n=1)
    return f"did you mean {mark}{near[0]}?" if near else ""


def _typed(name: str, text: str) -> Any:
    """A value of the type that an option has."""
    hint = get_type_hints(ChatRequest)[name.replace("-", "_")]
    kind = next(each for each in (get_args(hint) or (hint,)) if each is not type(None))
    if kind not in _KINDS:  # a list of texts: quotes keep blanks, and a line cannot hold a break
        return [text.strip("\"'").replace("\\n", "\n").replace("\\t", "\t")]
    try:
        return TypeAdapter(kind).validate_strings(text)
    except ValidationError:
        raise UsageError(f"{name} must be {_KINDS[kind]}, not {text!r}") from None


def in_effect(chat: Chat) -> dict[str, tuple[str, str]]:
    """Value and origin of every option that a chat shows, by the names of their flags."""
    request, session, settings = chat.request, chat.session, chat.settings()
    special = {
        "profile": chat.choice.profile,
        "budget": settings.lookahead.step_limit,
        "seed": "a new one for each reply" if request.seed is None else request.seed,
        "max-new-tokens": settings.max_new_tokens or "until the context is full",
        "stats": chat.shows_stats,
        "parallel": session.ranks,
        "attention": session.attention,
        "cuda-graphs": session.decoder.runner.captures,
    }
    rows = {}
    for name in (*LIVE, *AT_START):
        if (value := special.get(name)) is None:
            key = name.replace("-", "_")
            holders = (settings.lookahead, settings.sampling, settings, request)
            value = next(getattr(each, key) for each in holders if hasattr(each, key))
        rows[name] = (_spelt(value), _origin(name, chat))
    return rows


def _spelt(value: object) -> str:
    """A value as `/set` takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(value) or "none" if isinstance(value, tuple) else str(value)


def _origin(name: str, chat: Chat) -> str:
    """Where the value of an option is from, short enough for a table."""
    request, key = chat.request, name.replace("-", "_")
    if key in request.origins:
        return request.origins[key]
    if getattr(request, key) != default_of(type(request), key):
        return "given"  # by a program, which does not say how
    if name in TUNED:
        paper = request.wants_paper
        used, profiles = chat.settings().lookahead, chat.choice.base(paper)
        if getattr(used, key) != getattr(profiles, key):
            return "follows from what you set"
        # "measured: AMD EPYC, 2026-11, torch 2.13": what, and the first thing about it.
        origin = chat.choice.paper_origin if paper else chat.choice.origins[key]
        return f"profile {chat.choice.profile}: {re.split(', | [(]', origin)[0]}"
    if name in ("profile", "attention", "cuda-graphs"):
        return "fits this machine"
    if name == "stats" and request.quiet:
        return "follows from what you set"
    return "the model's" if name in _MODELS else "default"
