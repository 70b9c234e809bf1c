"""Folders for weights that memory has no room for; none of them outlives the program.

They may hold many gigabytes, and where a program ends at once, by Ctrl-C for example, nothing of
what Python does at its exit is done.
"""

from __future__ import annotations

import tempfile

_OPEN: set[tempfile.TemporaryDirectory[str]] = set()


def make() -> tempfile.TemporaryDirectory[str]:
    """A new empty folder, for as long as its model lives."""
    folder = tempfile.TemporaryDirectory(prefix="lade-", ignore_cleanup_errors=True)
    _OPEN.add(folder)
    return folder


def remove(folder: tempfile.TemporaryDirectory[str]) -> None:
    """Remove a folder with what it holds."""
    _OPEN.discard(folder)
    folder.cleanup()


def remove_all() -> None:
    """Remove all that are left: before a program ends that skips Python's own exit."""
    for folder in [*_OPEN]:
        remove(folder)
