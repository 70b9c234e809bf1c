"""Errors for people: one line that names the thing and the fix; and what messages are made of.

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
"""What is wrong with a key, by pydantic's name of the fault."""
# C0 but tab and newline, DEL and C1 could drive a terminal; the others turn the reading direction,
# of single words at least.  Files and pipes get them all.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST_ERROR = 1000
"""Characters of an error; names, and what templates raise, may be of any length."""


def printable(text: str) -> str:
    """`text` without control characters, so that no output can drive the terminal."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """`text` as an error shows it: printable, in one line of at most `LONGEST_ERROR`."""
    line = " ".join(printable(text[: 2 * LONGEST_ERROR]).split("\n"))
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}…"


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 line", "2 lines"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def describe_error(error: BaseException) -> str:
    """An error as one line, whatever raised it."""
    if isinstance(error, Error):
        return str(error)
    if isinstance(error, OSError):
        named = f" {error.filename}" if error.filename else ""
        return f"cannot read or write{named}: {error.strerror or error}"
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else 'no message'}"


def flaw(error: ValidationError) -> str:
    """The first thing that is wrong in the content of a file, and its place there."""
    # A misspelt key explains one that is missing.
    first = max(error.errors(), key=lambda each: _FAULTS.get(each["type"]) == "unknown key")
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
    """An error with the exit code that it ends the program with.

    Args:
        message: one line: what is wrong, and the fix.
    """

    exit_code = 1


class UsageError(LadeError):
    """Wrong usage or bad input; nothing was started."""

    exit_code = 2


class ArgumentError(UsageError, TypeError):
    """An argument of the Python API that is unknown, or of a wrong kind."""


class NoEmbeddingError(UsageError):
    """A prompt with a token that the tokenizer knows and the weights do not; a chat goes on."""


class LoadError(LadeError):
    """A model that cannot be loaded."""
