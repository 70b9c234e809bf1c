"""Errors for people: one line that names the thing and the fix.  No torch."""

from __future__ import annotations

from .decoder.errors import DecoderError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def told(error: BaseException) -> str:
    """An error as one line, whatever raised it."""
    if isinstance(error, LadeError | DecoderError):
        return str(error)
    if isinstance(error, OSError):
        return f"cannot read or write: {error.strerror or error}"
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else 'no message'}"


class LadeError(Exception):
    """An error with the exit code that it ends the program with.

    Args:
        message: one line: what is wrong, and the fix.
    """

    exit_code = 1


class UsageError(LadeError):
    """Wrong usage or bad input; nothing was started."""

    exit_code = 2


class NoEmbeddingError(UsageError):
    """A prompt with a token that the tokenizer knows and the weights do not; a chat goes on."""


class LoadError(LadeError):
    """A model that cannot be loaded."""
