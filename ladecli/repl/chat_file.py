"""Saved chats: JSON, versioned, written whole or not at all, read with suspicion."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from .. import files
from ..conversation import Conversation, Message
from ..errors import UsageError

FORMAT = "lade-chat"
VERSION = 1


def save(path: Path, conversation: Conversation, model: str) -> None:
    """Write a conversation; what was there before stays until the new file is complete.

    Args:
        path: of the file; one that holds something else than a chat is refused.
        conversation: what was said.
        model: its name, for people.

    Raises:
        UsageError: the file that is there is no chat.
        LadeError: it cannot be written.
    """
    if path.exists():
        _require_chat(path)
    data = {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "system": conversation.system,
        "forgotten": conversation.forgotten,
        "messages": [_as_row(message) for message in conversation.messages],
    }
    files.write(path, json.dumps(data, ensure_ascii=False, indent=1) + "\n", "/save")


def save_lost(conversation: Conversation, model: str) -> Path:
    """Write a conversation that cannot go on to a new file of the user's state, and say which.

    Raises:
        LadeError, OSError: it cannot be written.
    """
    from platformdirs import user_state_path

    folder = user_state_path("lade", appauthor=False) / "chats"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Two chats may be lost at the same moment.
    path = folder / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}.json"
    save(path, conversation, model)
    return path


def load(path: Path) -> Conversation:
    """The conversation in a file.

    Raises:
        UsageError: it cannot be read, or is no chat of a version that this program knows; the
            file is left as it is.
    """
    try:
        data = json.loads(files.read(path).decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; name a file in it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
        raise UsageError(
            f"{path} is damaged or no saved chat ({error}); it was left as it is"
        ) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path} is no saved chat of lade's; choose another file")
    if data.get("version") != VERSION:
        raise UsageError(
            f"{path} has version {data.get('version')!r} and this program reads {VERSION};"
            " use the version of lade that wrote it"
        )
    try:
        return _conversation(data)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is damaged ({error}); it was left as it is") from None


def _conversation(data: dict[str, Any]) -> Conversation:
    system, forgotten = data["system"], data["forgotten"]
    if not (system is None or _is_text(system)):
        raise ValueError("the system message is no text")
    messages = tuple(_message(number, row) for number, row in enumerate(data["messages"], 1))
    if type(forgotten) is not int or not 0 <= forgotten <= len(messages):
        raise ValueError(f"it has {len(messages)} messages and {forgotten!r} are forgotten")
    return Conversation(system, messages, forgotten)


def _message(number: int, row: Any) -> Message:
    if not isinstance(row, dict) or row.get("role") not in ("user", "assistant"):
        raise ValueError(f"message {number} has no role")
    if not _is_text(row.get("content")):
        raise ValueError(f"message {number} has no text")
    return Message(row["role"], row["content"], row.get("interrupted") is True)


def _as_row(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    return row | {"interrupted": True} if message.interrupted else row


def _is_text(value: Any) -> bool:
    """Whether a value is a text that can be written; JSON can spell halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _require_chat(path: Path) -> None:
    """Refuse to overwrite what this program could not read again."""
    try:
        load(path)
    except UsageError:
        raise UsageError(f"{path} exists and is no saved chat; choose another name") from None
