"""Files of chats, written while the chat goes on, for `--continue`."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from platformdirs import user_state_path

from .. import files
from ..errors import UsageError, counted, printable
from ..session.conversation import Conversation, from_json

MAX_CHATS = 100
"""The most conversations that are kept; the oldest are deleted first."""
QUOTED = 60
"""The most characters of a message in a list."""


class Journal:
    """The file of one conversation.  Each change replaces the whole file, so that a crash of the
    program or the machine loses no more than the last seconds.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start a new file, which is created with the first message."""
        # Random digits, since several chats may start in the same second.
        name = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{secrets.token_hex(4)}.json"
        self.path = _folder() / name
        self._written = Conversation()

    def record(self, conversation: Conversation, model: str) -> None:
        """Write a conversation to the file.

        Raises:
            LadeError: it cannot be written; the next call tries again.
        """
        new = not self.path.exists()
        if conversation == self._written or (new and not conversation.messages):
            return
        if new:
            with contextlib.suppress(OSError):  # the write below reports the error
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                for old in _kept_files()[: -MAX_CHATS + 1]:
                    old.unlink(missing_ok=True)
        files.write(self.path, conversation.as_json(model), "the chat in", private=True)
        self._written = conversation


class KeptChat(NamedTuple):
    """A conversation in a file."""

    conversation: Conversation
    model: str  # the last model; "" if the file does not say
    changed: float  # the time of the last change, in seconds since the epoch

    @property
    def where(self) -> str:
        """The model and the time of the last change, for display."""
        time_of_day = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.changed))
        return " · ".join(filter(None, (self.model, time_of_day)))


def newest() -> KeptChat:
    """Return the conversation that changed last; UsageError if there is none."""
    if chats := kept_chats():
        return chats[0]
    raise UsageError("there is no conversation to continue; leave --continue out")


def kept_chats(own: Path | None = None) -> list[KeptChat]:
    """Return the kept conversations, the newest first.

    This leaves out damaged files, the file `own`, and conversations that are the beginning of a
    newer one.
    """
    chats: dict[Path, KeptChat] = {}
    for path in reversed(_kept_files()):
        with contextlib.suppress(ValueError, UsageError):
            chat = _read(path)
            messages = chat.conversation.messages
            others = (other.conversation.messages for other in chats.values())
            if messages and all(other[: len(messages)] != messages for other in others):
                chats[path] = chat
    return [chat for path, chat in chats.items() if path != own]


def saved(name: str, own: Path | None = None) -> KeptChat:
    """Return a conversation by its number among the `kept_chats`, or by its file.

    Raises:
        UsageError: there is none; the message names the fix.
    """
    if name.isdecimal():
        chats = kept_chats(own)
        if not 0 < int(name) <= len(chats):
            raise UsageError(
                f"there is no kept chat {name}, but {len(chats)}; /chats and lade chat --list show"
                " them"
            )
        return chats[int(name) - 1]
    try:
        return _read(files.expanded(name))
    except ValueError as error:
        fix = f"({error}); choose another file"
        if name.endswith(".md"):
            fix = "because a .md is for reading; /save NAME without .md keeps a chat to load"
        raise UsageError(f"{name} is not a saved chat {fix}") from None


def rows_of(chats: Sequence[KeptChat]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each kept chat: its number, its first message, and its model and time."""
    for number, chat in enumerate(chats, start=1):
        messages = chat.conversation.messages
        about = f"{counted(len(messages), 'message')} · {chat.where}"
        yield str(number), printable(shorten(messages[0].content, QUOTED)), printable(about)


def _read(path: Path) -> KeptChat:
    """Return the conversation in a file; errors as for `read_text`, and ValueError if the file has
    no conversation."""
    chat = from_json(files.read_text(str(path)))
    return KeptChat(chat.conversation, chat.model, path.stat().st_mtime)


def _kept_files() -> list[Path]:
    """Return the files of kept conversations, the one that changed last at the end."""
    times = {}
    for path in _folder().glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another chat has just removed it
            times[path] = path.stat().st_mtime_ns
    return sorted(times, key=times.__getitem__)


def _folder() -> Path:
    return user_state_path("lade", appauthor=False) / "chats"
