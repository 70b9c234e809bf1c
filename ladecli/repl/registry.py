"""The table of slash commands: how one gets in, and how it is found."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .talk import Chat

Action = Callable[["Chat", str], None]


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command.

    Attributes:
        name: without the slash.
        arguments: as the help shows them.
        help: what it does, in a few words.
        action: does it, with the words behind the name.
    """

    name: str
    arguments: str
    help: str
    action: Action


COMMANDS: dict[str, Command] = {}
ALIASES = {"?": "help", "quit": "exit", "bye": "exit", "q": "exit", "clear": "reset"}
ALIASES |= {"retry": "regenerate"}


def command(arguments: str) -> Callable[[Action], Action]:
    """Register a function under its own name; its docstring is the help."""

    def register(action: Action) -> Action:
        name, meaning = action.__name__.strip("_"), (action.__doc__ or "").rstrip(".")
        COMMANDS[name] = Command(name, arguments, meaning, action)
        return action

    return register


def is_command(word: str, text: str) -> bool:
    """Whether an input that begins with a slash and a word is a command.

    An unknown word is taken for a misspelt command, but not before several lines: those were
    pasted, and are for the model.
    """
    return find(word) is not None or "\n" not in text.strip()


def perform(chat: Chat, word: str, argument: str) -> None:
    """Do what a command says.

    Raises:
        LadeError, DecoderError: there is no such command, or it cannot be done; the message
            says what helps.
    """
    found = find(word)
    if found is None:
        near = difflib.get_close_matches(word.lower(), [*COMMANDS, *ALIASES], n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists all"
        raise UsageError(
            f"there is no command /{word}; {hint} (a space before it sends it to the model)"
        )
    if argument and not found.arguments:
        raise UsageError(f"/{found.name} takes no arguments")
    found.action(chat, argument)


def find(word: str) -> Command | None:
    """The command of this name, or of this other name of its; None if there is none."""
    name = word.lower()
    return COMMANDS.get(ALIASES.get(name, name))
