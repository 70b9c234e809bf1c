"""Errors with one-line messages that name the fault and the fix, and helpers for messages.

No torch.
"""

from __future__ import annotations

import re
import reprlib
from typing import TYPE_CHECKING

from .decoder.errors import Error

if TYPE_CHECKING:
    from pydantic import ValidationError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
_FAULTS = {
    "missing": "it is missing",
    "tuple_type": "it must be a list",
    "too_short": "it is empty",
    "union_tag_not_found": "it has an unknown type",
    **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), "unknown key"),
}
"""Descriptions of faults, by pydantic's names for them."""
# C0 except tab and newline, DEL and C1 control a terminal; the others change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST_ERROR = 1000
"""The most characters of an error, which may quote names and messages of any length."""


def printable(text: str) -> str:
    """Return a text without characters that control a terminal."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """Return a text for an error: printable, in one line of at most `LONGEST_ERROR`."""
    line = " ".join(printable(text[: 2 * LONGEST_ERROR]).split("\n"))
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}…"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 line", "2 lines"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def describe_error(error: BaseException) -> str:
    """Return any exception as one line."""
    if isinstance(error, Error):
        return str(error)
    if isinstance(error, OSError):
        named = f" {error.filename}" if error.filename else ""
        return f"cannot read or write{named}: {error.strerror or error}"
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else 'no message'}"


def flaw(error: ValidationError) -> str:
    """Return the first fault in the content of a file, and its place there."""
    # An unknown key comes first, since a misspelt key is also a missing one.
    first = max(error.errors(), key=lambda fault: _FAULTS.get(fault["type"]) == "unknown key")
    place = " ".join(str(step + 1 if isinstance(step, int) else step) for step in first["loc"])
    what = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    if first["type"] in _FAULTS:
        what = _FAULTS[first["type"]]
    elif first["type"] == "value_error":  # one of ours
        what = str(first["ctx"]["error"])
    elif first["type"] != "json_invalid":
        what += f", not {reprlib.repr(first['input'])}"
    return f"{place}: {what}" if place else what


class LadeError(Error):
    """An error with an exit code for the program.

    Args:
        message: one line with the fault and the fix.
    """

    exit_code = 1


class UsageError(LadeError):
    """Wrong usage or bad input; nothing was started."""

    exit_code = 2


class ArgumentError(UsageError, TypeError):
    """An argument of the Python API that is unknown, or of a wrong type."""


class NoEmbeddingError(UsageError):
    """A prompt with a token that the tokenizer knows and the weights do not; a chat goes on."""


class LoadError(LadeError):
    """A model that cannot be loaded."""
