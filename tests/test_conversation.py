"""A conversation as a value."""

from __future__ import annotations

from ladecli.conversation import Conversation

TALK = Conversation("Be brief.").asked("one").answered("1").asked("two").answered("2", True)


def contents(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def test_a_conversation_grows_and_shrinks() -> None:
    assert contents(TALK) == ["one", "1", "two", "2"]
    assert not TALK.waits_for_reply
    assert TALK.asked("three").waits_for_reply
    assert contents(TALK.without_reply()) == ["one", "1", "two"]
    assert contents(TALK.without_exchange()) == ["one", "1"]
    assert contents(TALK.asked("three").without_exchange()) == ["one", "1", "two", "2"]
    assert TALK.last_question == "two"
    assert contents(TALK) == ["one", "1", "two", "2"], "a value does not change"


def test_an_empty_conversation() -> None:
    empty = Conversation()
    assert empty.without_exchange() == empty.without_reply() == empty
    assert empty.last_question is None
    assert empty.without_oldest() is None
    assert empty.for_template() == []
    assert not empty.waits_for_reply


def test_the_oldest_are_forgotten_one_exchange_at_a_time() -> None:
    asked = TALK.asked("three")
    first = asked.without_oldest()
    assert first is not None
    assert [m.content for m in first.seen] == ["two", "2", "three"]
    second = first.without_oldest()
    assert second is not None
    assert [m.content for m in second.seen] == ["three"]
    assert second.without_oldest() is None
    assert contents(second) == contents(asked), "nothing is lost"
    assert second.for_template()[0] == {"role": "system", "content": "Be brief."}
    # Where all that the model saw is taken back, it sees again what it had forgotten.
    assert contents(second.without_exchange()) == ["one", "1", "two", "2"]
    assert second.without_exchange().seen == TALK.messages
    assert first.without_exchange().forgotten == 2


def test_what_templates_and_plain_models_see() -> None:
    assert TALK.for_template() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "2"},
    ]
    assert TALK.as_text() == "Be brief.\none\n1\ntwo\n2"
