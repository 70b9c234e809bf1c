"""A conversation as a value, and as a file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ladecli.session.conversation import Conversation, Message, from_json

TALK = Conversation("Be brief.").asked("one").answered("1").asked("two").answered("2", True)


def contents(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def test_a_conversation_grows_and_shrinks() -> None:
    assert contents(TALK) == ["one", "1", "two", "2"]
    assert contents(TALK.without_reply()) == ["one", "1", "two"]
    assert contents(TALK.without_exchange()) == ["one", "1"]
    assert contents(TALK.asked("three").without_exchange()) == ["one", "1", "two", "2"]
    assert TALK.last_question == "two"
    empty = Conversation()
    assert empty.without_exchange() == empty.without_reply() == empty
    assert empty.last_question is None


def test_taking_back_what_is_seen_brings_back_what_was_forgotten() -> None:
    forgetful = replace(TALK.asked("three"), forgotten=4)
    assert [m.content for m in forgetful.seen] == ["three"]
    assert forgetful.without_exchange().seen == TALK.messages
    assert replace(forgetful, forgotten=2).without_exchange().forgotten == 2


def test_room_is_made_generously_and_only_where_it_must_be() -> None:
    talk = Conversation()
    for number in range(8):
        talk = talk.asked(f"q{number}").answered("a")
    talk = talk.asked("last")

    def count(conversation: Conversation) -> int:
        return 10 * len(conversation.seen)

    assert talk.with_room(count, 300) is talk
    assert talk.with_room(count, 194) is talk, "an eighth of the context is enough"
    made = talk.with_room(count, 180)
    assert made is not None
    assert made.messages == talk.messages
    assert (made.forgotten, count(made)) == (4, 130), "a quarter of the context is free"
    assert talk.with_room(count, 12) == replace(talk, forgotten=16)
    assert talk.with_room(count, 10) is None


def test_what_templates_and_own_cache_models_see() -> None:
    forgetful = replace(TALK, forgotten=2)
    assert forgetful.for_template() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "2"},
    ]
    assert forgetful.as_text() == "Be brief.\ntwo\n2"


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
def test_files_give_back_what_they_got(talk: Conversation) -> None:
    assert from_json(talk.as_json("demo")) == talk


def row(**changes: Any) -> str:
    good = {"format": "lade-chat", "version": 1, "messages": [{"role": "user", "content": "a"}]}
    return json.dumps({**good, **changes})


@pytest.mark.parametrize(
    ("text", "named"),
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
def test_damaged_files_are_refused(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        from_json(text)


def test_a_file_that_forgets_more_than_it_has() -> None:
    assert from_json(row(forgotten=9)).seen == ()
