"""Room for a reply: what a conversation must forget when the context is full."""

from __future__ import annotations

from collections.abc import Callable

from ..conversation import Conversation

ENOUGH = 64
"""A reply needs room for so many tokens, or for an eighth of the context where that is less."""
GENEROUS = 4
"""Once something must be forgotten, one part of so many of the context becomes free."""


def with_room(
    asked: Conversation, count: Callable[[Conversation], int], limit: int
) -> Conversation | None:
    """The conversation itself where it leaves room for a reply, else one that forgets more.

    Forgetting makes the model read the rest again, so it is done seldom, and then for more
    than one reply.

    Args:
        asked: a conversation that waits for a reply.
        count: tokens of a conversation.
        limit: tokens of the context.

    Returns:
        None if the last message is too long by itself.
    """
    least = max(min(ENOUGH, limit // 8), 1)
    if count(asked) + least <= limit:
        return asked
    fitting: Conversation | None = None
    shorter = asked.without_oldest()
    while shorter is not None:
        room = limit - count(shorter)
        if room >= least:
            fitting = shorter
        if room >= limit // GENEROUS:
            break
        shorter = shorter.without_oldest()
    return fitting
