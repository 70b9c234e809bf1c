"""Completion of slash commands, their settings and file names, for prompt-toolkit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from .. import profiles
from ..decoder.config import SOURCES, STRATEGIES
from .changes import LIVE, SWITCHES
from .commands import COMMANDS

FILES = ("load", "save", "paste")


class CommandCompleter(Completer):
    """Completes inputs that begin with a slash; everything else is prose and left alone."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """What could stand at the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        word, space, rest = text[1:].partition(" ")
        if not space:
            yield from _matching(word, {c.name: c.help for c in COMMANDS.values()})
        elif word in FILES:
            yield from self._paths.get_completions(Document(rest, len(rest)), event)
        elif word in ("set", "show") and " " not in rest:
            yield from _matching(rest, dict.fromkeys(LIVE, ""))
        elif word == "profile":
            yield from _matching(rest, dict.fromkeys(profiles.names(), ""))
        elif word == "set":
            name, _, value = rest.partition(" ")
            yield from _matching(value, dict.fromkeys(_values(name), ""))


def _matching(typed: str, known: dict[str, str]) -> Iterator[Completion]:
    for name, meaning in known.items():
        if name.startswith(typed.lower()):
            yield Completion(name, start_position=-len(typed), display_meta=meaning)


def _values(name: str) -> tuple[str, ...]:
    """What a setting may be, where that is a matter of a few words."""
    if name in SWITCHES:
        return ("on", "off")
    known = {"strategy": STRATEGIES, "sources": SOURCES, "profile": tuple(profiles.names())}
    return known.get(name, ())
