"""Folders for weights that memory has no room for; none of them outlives the program.

They may hold many gigabytes, and where a program ends at once, by Ctrl-C for example, nothing of
what Python does at its exit is done.
"""

from __future__ import annotations

import tempfile

_OPEN: list[tempfile.TemporaryDirectory[str]] = []


def make() -> str:
    """A new empty folder, which lives as long as the program."""
    folder = tempfile.TemporaryDirectory(prefix="lade-", ignore_cleanup_errors=True)
    _OPEN.append(folder)
    return folder.name


def remove_all() -> None:
    """Remove all of them: before a program ends that skips Python's own exit."""
    while _OPEN:
        _OPEN.pop().cleanup()
