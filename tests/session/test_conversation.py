"""A conversation as a value, and as a file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ladecli.session.conversation import Conversation, from_json

TALK = Conversation("Be brief.").asked("one").answered("1").asked("two").answered("2", True)


def test_taking_back_what_is_seen_brings_back_what_was_forgotten() -> None:
    forgetful = replace(TALK.asked("three"), forgotten=4)
    assert [m.content for m in forgetful.seen] == ["three"]
    assert forgetful.without_exchange().seen == TALK.messages
    assert replace(forgetful, forgotten=2).without_exchange().forgotten == 2


def test_room_is_made_generously_and_only_where_it_must_be() -> None:
    def count(conversation: Conversation) -> int:
        return 10 * len(conversation.seen)

    talk = Conversation()
    for number in range(8):
        talk = talk.asked(f"q{number}").answered("a")
    talk = talk.asked("last")
    assert talk.with_room(count, 300) is talk
    assert talk.with_room(count, 194) is talk, "an eighth of the context is enough"
    made = talk.with_room(count, 180)
    assert made is not None
    assert made.messages == talk.messages
    assert (made.forgotten, count(made)) == (4, 130), "a quarter of the context is free"
    assert talk.with_room(count, 12) == replace(talk, forgotten=16)
    assert talk.with_room(count, 10) is None


def test_files_give_back_what_they_got() -> None:
    odd = replace(TALK, forgotten=2).asked("é 你 👩‍💻\n\t\x1b[31m").answered("3", reasoning="Hm")
    for talk in (Conversation(), TALK, odd):
        assert from_json(talk.as_json("demo")).conversation == talk


def row(**changes: Any) -> str:
    good = {"format": "lade-chat", "version": 1, "messages": [{"role": "user", "content": "a"}]}
    return json.dumps({**good, **changes})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (row()[:-9], "JSON"),
        ("", "JSON"),
        ("[]", "object"),
        ('{"format": "lade-chat"}', "messages"),
        (row(format="other"), "format"),
        (row(version=2), "version"),
        (row(messages=None), "messages"),
        (row(messages=[{"content": "a"}]), "role"),
        (row(messages=[{"role": "user", "content": 3}]), "content"),
        (row(messages=[{"role": "user", "content": "\ud800"}]), "JSON"),
        (row(forgotten=-1), "forgotten"),
    ],
)
def test_damaged_files_are_refused(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        from_json(text)


def test_more_may_be_forgotten_than_there_is() -> None:
    assert from_json(row(forgotten=9)).conversation.seen == ()
