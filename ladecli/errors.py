"""Errors for people: one line that names the thing and the fix.  No torch."""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class LadeError(Exception):
    """An error with the exit code that it ends the program with.

    Args:
        message: one line: what is wrong, and the fix.
    """

    exit_code = 1


class UsageError(LadeError):
    """Wrong usage or bad input; nothing was started."""

    exit_code = 2


class LoadError(LadeError):
    """A model that cannot be loaded."""
