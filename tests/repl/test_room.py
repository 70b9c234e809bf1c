"""Room for a reply: what is forgotten for it, and when."""

from __future__ import annotations

from dataclasses import replace

from ladecli.conversation import Conversation
from ladecli.repl.room import with_room


def test_room_is_made_generously_and_only_where_it_must_be() -> None:
    talk = Conversation()
    for number in range(8):
        talk = talk.asked(f"q{number}").answered("a")
    talk = talk.asked("last")

    def count(conversation: Conversation) -> int:
        return 10 * len(conversation.seen)

    assert with_room(talk, count, 300) is talk
    assert with_room(talk, count, 194) is talk, "an eighth of the context is enough"
    made = with_room(talk, count, 180)
    assert made is not None
    assert made.messages == talk.messages
    assert (made.forgotten, count(made)) == (4, 130), "a quarter of the context is free"
    assert with_room(talk, count, 12) == replace(talk, forgotten=16)
    assert with_room(talk, count, 10) is None
