"""Chats that are kept while they are held, for `--continue`: a line for every change."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_state_path

from .. import files
from ..errors import UsageError
from ..session.conversation import Conversation, from_json, model_of

KEPT = 100
"""Conversations that are kept; the oldest go first."""


class Journal:
    """A file of one conversation, which each change makes longer: whatever ends the program or the
    machine, no more is lost than the last seconds.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Keep what follows in a file of its own."""
        # Several may begin at the same moment.  There is no file before the first message.
        name = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{secrets.token_hex(4)}.jsonl"
        self.path = _folder() / name
        self._written = Conversation()
        self._torn = False  # whether the last line may lack its end

    def record(self, conversation: Conversation, model: str) -> None:
        """Keep a conversation as it is now.

        Raises:
            OSError: it cannot be written; the next time is a new try.
        """
        new = not self.path.exists()
        if self._torn:  # whether what was written last can be read is not known
            self._written = Conversation()
        elif conversation == self._written:
            return
        if new and not conversation.messages:
            return
        if new:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for old in kept_files()[: -KEPT + 1]:
                old.unlink(missing_ok=True)
            self._written = Conversation()
        line = conversation.as_change(self._written, model)
        start = "\n" if self._torn else ""
        self._torn = True
        with open(self.path, "a", encoding="utf-8", errors="replace", opener=files.guarded) as file:
            file.write(start + line)
            file.flush()
            os.fsync(file.fileno())
        self._written, self._torn = conversation, False


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
    """Return the newest conversation that was kept.

    Raises:
        UsageError: there is none, or its file is damaged.
    """
    for path in reversed(kept_files()):
        try:
            chat = _read(path)
        except ValueError as error:
            raise UsageError(f"{path} is not a saved chat ({error}); move it elsewhere") from None
        if chat is not None:
            return chat
    raise UsageError("there is no conversation to continue; leave --continue out")


def kept_chats(own: Path | None = None) -> list[KeptChat]:
    """Return the conversations that were kept, the newest first; without one that another began
    with, without damaged files, and without the one in the file `own`."""
    chats: dict[Path, KeptChat] = {}
    for path in reversed(kept_files()):
        with contextlib.suppress(ValueError):
            chat = _read(path)
            if chat is not None and not any(_begins(chat, other) for other in chats.values()):
                chats[path] = chat
    return [chat for path, chat in chats.items() if path != own]


def _begins(chat: KeptChat, other: KeptChat) -> bool:
    messages = chat.conversation.messages
    return other.conversation.messages[: len(messages)] == messages


def _read(path: Path) -> KeptChat | None:
    """Return the conversation in a file, or None if no whole message was written to it; ValueError
    if it is damaged."""
    # A line that was cut short may end inside a character.
    text = files.read_named(str(path), "chat").decode(errors="replace")
    if "\n" not in text:
        return None  # a full disk, or a kill, let no whole line in
    chat = KeptChat(from_json(text), model_of(text), path.stat().st_mtime)
    return chat if chat.conversation.messages else None


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
    path, text = files.expanded(name), files.read_text(name)
    try:
        return KeptChat(from_json(text), model_of(text), path.stat().st_mtime)
    except ValueError as error:
        if path.suffix == ".md":
            fix = "a .md is for reading; /save NAME without .md keeps a chat to load"
            raise UsageError(f"{name} is not a saved chat: {fix}") from None
        raise UsageError(f"{name} is not a saved chat ({error}); choose another file") from None


def kept_files() -> list[Path]:
    """The conversations that were kept, by when they were held last, the newest at the end."""
    found = {}
    for path in _folder().glob("*.json*"):
        with contextlib.suppress(FileNotFoundError):  # another chat has just removed it
            found[path] = path.stat().st_mtime_ns
    return sorted(found, key=found.__getitem__)


def _folder() -> Path:
    return user_state_path("lade", appauthor=False) / "chats"
