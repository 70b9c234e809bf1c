"""Files of prompts, and standard input in place of one: their text, and their rows."""

from __future__ import annotations

import sys
from pathlib import Path

from .. import files
from ..errors import UsageError
from .rows import Row, parse

STDIN = "-"
"""The name of standard input."""


def spoken(name: str) -> str:
    """How a message calls a file of prompts."""
    return "standard input" if name == STDIN else f"the prompt file {name}"


def short(name: str) -> str:
    """The same before the number of a line, or as the name of a suite."""
    return "standard input" if name == STDIN else name


def read_text(name: str) -> str:
    """The text of a file, or of standard input.

    Raises:
        UsageError: it cannot be read, or holds no text; the message names it and the fix.
    """
    data = _bytes(name)
    if b"\0" in data:
        raise UsageError(f"{spoken(name)} is binary (a zero byte); give a text file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{spoken(name)} is not UTF-8 (byte {error.start}); convert it, for example with"
            " iconv -f latin1 -t utf-8"
        ) from None


def read_rows(name: str) -> dict[int, Row]:
    """The rows of a JSONL file, or of standard input, by the numbers of their lines.

    Raises:
        UsageError: it cannot be read, a row is broken, or there is none.
    """
    text = read_text(name)
    rows = parse(text, short(name))
    if not rows:
        problem = "holds no prompts" if text else "is empty"
        raise UsageError(f'{spoken(name)} {problem}; write rows like {{"prompt": "Hello"}}')
    return rows


def _bytes(name: str) -> bytes:
    if name == STDIN and sys.stdin is None:
        raise UsageError("standard input is closed; name a file in place of -")
    try:
        if name == STDIN:
            return files.read_stream(sys.stdin.buffer)
        return files.read(Path(name).expanduser())
    except FileNotFoundError:
        raise UsageError(f"there is no prompt file {name}; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"the prompt file {name} is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{spoken(name)} cannot be read: {reason}") from error
