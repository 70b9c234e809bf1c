"""Files of chats that are kept while they are held, for `--continue`."""

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

KEPT = 100
"""Conversations that are kept; the oldest go first."""
QUOTED = 60
"""Characters of a message that is quoted."""


class Journal:
    """The file of one conversation, which each change replaces as a whole: whatever ends the
    program or the machine, no more is lost than the last seconds.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Keep what follows in a file of its own."""
        # Several may begin at the same moment.  There is no file before the first message.
        name = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{secrets.token_hex(4)}.json"
        self.path = _folder() / name
        self._written = Conversation()

    def record(self, conversation: Conversation, model: str) -> None:
        """Keep a conversation as it is now.

        Raises:
            LadeError: it cannot be written; the next time is a new try.
        """
        new = not self.path.exists()
        if conversation == self._written or (new and not conversation.messages):
            return
        if new:
            with contextlib.suppress(OSError):  # writing says what is wrong
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                for old in _kept_files()[: -KEPT + 1]:
                    old.unlink(missing_ok=True)
        files.write(self.path, conversation.as_json(model), "the chat in", private=True)
        self._written = conversation


class KeptChat(NamedTuple):
    """A conversation in a file."""

    conversation: Conversation
    model: str  # that it was held with last; "" if the file does not say
    changed: float  # when that was, in seconds of the clock

    @property
    def where(self) -> str:
        """The model and the time, for people."""
        time_of_day = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.changed))
        return " · ".join(filter(None, (self.model, time_of_day)))


def newest() -> KeptChat:
    """Return the conversation that was held last; UsageError if there is none."""
    if chats := kept_chats():
        return chats[0]
    raise UsageError("there is no conversation to continue; leave --continue out")


def kept_chats(own: Path | None = None) -> list[KeptChat]:
    """Return the conversations that were kept, the newest first; without one that another began
    with, without damaged files, and without the one in the file `own`."""
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
    """Return a conversation by its number among the `kept_chats`, or by the file it was saved to.

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


def rows_of(kept: Sequence[KeptChat]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each kept chat: its number, what it began with, and where that was."""
    for number, chat in enumerate(kept, start=1):
        messages = chat.conversation.messages
        about = f"{counted(len(messages), 'message')} · {chat.where}"
        yield str(number), printable(shorten(messages[0].content, QUOTED)), printable(about)


def _read(path: Path) -> KeptChat:
    """Return the conversation in a file; errors as for reading, and ValueError if it has none."""
    chat = from_json(files.read_text(str(path)))
    return KeptChat(chat.conversation, chat.model, path.stat().st_mtime)


def _kept_files() -> list[Path]:
    """Return the files of kept conversations; the one that was held last is at the end."""
    times = {}
    for path in _folder().glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another chat has just removed it
            times[path] = path.stat().st_mtime_ns
    return sorted(times, key=times.__getitem__)


def _folder() -> Path:
    return user_state_path("lade", appauthor=False) / "chats"
