"""A conversation as a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ladecli.conversation import Conversation, Message
from ladecli.errors import LadeError, UsageError
from ladecli.repl import chat_file

TALK = Conversation("Be brief.").asked("one").answered("1").asked("two").answered("2", True)


@pytest.mark.parametrize(
    "talk",
    [
        Conversation(),
        TALK,
        Conversation(None, (Message("user", "é 你 👩‍💻\n\t\x1b[31m"),)),
        Conversation("s", TALK.messages, forgotten=2),
    ],
    ids=["empty", "talk", "unicode", "forgotten"],
)
def test_files_give_back_what_they_got(talk: Conversation, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    chat_file.save(path, talk, "demo")
    assert chat_file.load(path) == talk
    assert os.listdir(tmp_path) == ["talk.json"]


def row(**changes: Any) -> bytes:
    good: dict[str, Any] = {
        "format": "lade-chat",
        "version": 1,
        "model": "demo",
        "system": None,
        "forgotten": 0,
        "messages": [{"role": "user", "content": "a"}],
    }
    return json.dumps({**good, **changes}).encode()


BAD = {
    "cut": (row()[:-9], "is damaged or no saved chat (Unterminated"),
    "empty": (b"", "is damaged or no saved chat (Expecting value"),
    "binary": (b"\xff\xfe\x00", "is damaged or no saved chat ('utf-8' codec"),
    "foreign": (b'{"messages": []}', "is no saved chat of lade's; choose another file"),
    "a list": (b"[]", "is no saved chat of lade's; choose another file"),
    "newer": (row(version=2), "has version 2 and this program reads 1; use the version of lade"),
    "no messages": (row(messages=None), "is damaged ("),
    "no role": (row(messages=[{"content": "a"}]), "is damaged (message 1 has no role)"),
    "no text": (row(messages=[{"role": "user"}]), "is damaged (message 1 has no text)"),
    "half a character": (
        row(messages=[{"role": "user", "content": "\ud800"}]),
        "is damaged (message 1 has no text)",
    ),
    "odd system": (row(system=7), "is damaged (the system message is no text)"),
    "forgotten": (row(forgotten=2), "is damaged (it has 1 messages and 2 are forgotten)"),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_files_are_refused_and_left_untouched(name: str, tmp_path: Path) -> None:
    data, reason = BAD[name]
    path = tmp_path / "talk.json"
    path.write_bytes(data)
    with pytest.raises(UsageError) as refused:
        chat_file.load(path)
    assert str(refused.value).startswith(f"{path} {reason}")
    assert path.read_bytes() == data


@pytest.mark.parametrize("name", ["cut", "empty", "binary", "foreign", "a list", "newer"])
def test_what_is_no_chat_is_not_overwritten(name: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_bytes(BAD[name][0])
    with pytest.raises(UsageError, match=r"exists and is no saved chat; choose another name$"):
        chat_file.save(path, TALK, "demo")
    assert path.read_bytes() == BAD[name][0]


def test_who_may_read_a_chat_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    chat_file.save(path, TALK, "demo")
    path.chmod(0o600)
    chat_file.save(path, TALK.asked("three"), "demo")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "talk.json"
    chat_file.save(path, TALK, "demo")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(LadeError, match="cannot be written: No space left on device"):
        chat_file.save(path, TALK.asked("three"), "demo")
    monkeypatch.undo()
    assert chat_file.load(path) == TALK
    assert os.listdir(tmp_path) == ["talk.json"]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^there is no file .*; check the path$"):
        chat_file.load(tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"is a folder; name a file in it$"):
        chat_file.load(tmp_path)
    with pytest.raises(LadeError, match="cannot be written: No such file or directory"):
        chat_file.save(tmp_path / "no" / "talk.json", TALK, "demo")
