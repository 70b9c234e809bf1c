"""Conversations as values, and as files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ladecli.session.conversation import Conversation, from_json

TALK = Conversation("Be brief.").with_question("one").with_answer("1")
TALK = TALK.with_question("two").with_answer("2", True)


def test_a_saved_conversation_is_read_unchanged() -> None:
    odd = replace(TALK.with_question("é 你 👩‍💻\n\t\x1b[31m"), forgotten=2)
    odd = odd.with_answer("3", reasoning="Hm")
    for talk in (Conversation(), TALK, odd):
        assert from_json(talk.as_json("demo")).conversation == talk


def row(**changes: Any) -> str:
    good = {"format": "lade-chat", "version": 1, "messages": [{"role": "user", "content": "a"}]}
    return json.dumps({**good, **changes})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (row()[:-9], "JSON"),
        ("[]", "object"),
        (row(version=2), "version"),
        (row(messages=None), "messages"),
        (row(messages=[{"role": "user", "content": 3}]), "content"),
        (row(forgotten=-1), "forgotten"),
    ],
)
def test_damaged_files_are_refused(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        from_json(text)
