"""Chats that are kept while they are held, for `--continue`: a line for every change."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

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


def newest() -> tuple[Conversation, str]:
    """The newest conversation that was kept, and the model that it was held with.

    Raises:
        UsageError: there is none, or its file is damaged.
    """
    for path in reversed(kept_files()):
        # A line that was cut short may end inside a character.
        text = files.read_named(str(path), "chat").decode(errors="replace")
        if "\n" not in text:
            continue  # a full disk, or a kill, let no whole line in
        try:
            found, model = from_json(text), model_of(text)
        except ValueError as error:
            raise UsageError(f"{path} is not a saved chat ({error}); move it elsewhere") from None
        if found.messages:
            return found, model
    raise UsageError("there is no conversation to continue; leave --continue out")


def kept_files() -> list[Path]:
    """The conversations that were kept, by when they were held last, the newest at the end."""
    found = {}
    for path in _folder().glob("*.json*"):
        with contextlib.suppress(FileNotFoundError):  # another chat has just removed it
            found[path] = path.stat().st_mtime_ns
    return sorted(found, key=found.__getitem__)


def _folder() -> Path:
    return user_state_path("lade", appauthor=False) / "chats"
