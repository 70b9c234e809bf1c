"""What `/set` changes in a chat: the options that can, and their values as they are typed."""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

from ..errors import UsageError
from ..option_fields import default_of
from ..options import ChatRequest

LIVE = (
    *("strategy", "profile", "window", "ngram", "guesses", "budget", "sources"),
    *("temperature", "top-k", "top-p", "min-p", "repetition-penalty", "seed"),
    *("max-new-tokens", "stop", "ignore-eos"),
    *("markdown", "token-colors", "stats"),
)
"""Options that a chat can change as it goes, by their flags' names."""
SHOWN = (*LIVE, "parallel", "parallel-mode", "attention", "cuda-graphs", "compile")
"""Options that a chat shows: those, and what belongs to its start."""
SWITCHES = ("ignore-eos", "markdown", "token-colors", "stats")
"""Those of them that are on or off."""
SET_HERE = "set in this chat"
"""The origin of what `/set` changed."""
_OFF = {"top-k": 0, "top-p": 1.0, "min-p": 0.0, "repetition-penalty": 1.0}
"""What switches a way of sampling off, whatever the model's own is."""
_WORDS = {"on": True, "true": True, "yes": True, "1": True}
_WORDS |= {"off": False, "false": False, "no": False, "0": False}


def change(request: ChatRequest, name: str, text: str) -> ChatRequest:
    """The request with one option changed.

    The word "default" takes a change back, and "off" switches off what can be.

    Args:
        request: what held until now.
        name: of a flag, without its dashes.
        text: the value as it was typed.

    Raises:
        UsageError, ConfigError: there is no such option, it belongs to the start of the
            program, or it cannot have this value; the message says what it may be.
    """
    name = name.lstrip("-").replace("_", "-").lower()
    known = {each.name.replace("_", "-") for each in fields(ChatRequest)} - {"origins"}
    if name in known and name not in LIVE:
        raise UsageError(f"{name} belongs to the start: leave, and give --{name} to lade chat")
    if name not in LIVE:
        near = difflib.get_close_matches(name, LIVE, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; one of {', '.join(LIVE)}"
        raise UsageError(f"there is no setting {name!r}{hint}")
    key = name.replace("-", "_")
    value: Any
    origins = {**request.origins, key: SET_HERE}
    if text.lower() == "off" and name in _OFF:
        value = _OFF[name]
    elif text.lower() == "default" or (name not in SWITCHES and text.lower() in ("none", "off")):
        value = default_of(ChatRequest, key)
        del origins[key]
    else:
        value = _typed(name, text, get_type_hints(ChatRequest)[key])
    if value == [""]:
        raise UsageError(f"{name} needs a text; off takes it back")
    changed = replace(request, **{key: value}, origins=origins)
    changed.check()
    return changed


def _typed(name: str, text: str, kind: Any) -> Any:
    """A value of the type that an option has."""
    kinds = [k for k in (get_args(kind) or (kind,)) if k is not type(None)]
    if bool in kinds:
        if text.lower() not in _WORDS:
            raise UsageError(f"{name} is on or off, not {text!r}")
        return _WORDS[text.lower()]
    for number in (int, float):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                what = "a whole number" if number is int else "a number"
                raise UsageError(f"{name} must be {what}, not {text!r}") from None
    return text if str in kinds else [_literal(text)]


def _literal(text: str) -> str:
    r"""A text as it was typed, with \n and \t for what a line cannot hold; quotes keep blanks."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return text.replace("\\n", "\n").replace("\\t", "\t")
