"""What followers are told, and when the ranks are lost: `Followers` at its door."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.errors import RankError
from ladecli.session.parallel import Followers, Order
from ladecli.session.session import Settings


class Sent:
    """A transport that keeps what is sent."""

    other = "rank 1"

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.lost: RankError | None = None

    def gather(self, order: Order) -> list[Any]:
        self.orders.append(order)
        return [order]

    def lose(self, reason: str) -> RankError:
        self.lost = RankError(reason)
        return self.lost

    def explain(self) -> RankError | None:
        return self.lost


@pytest.fixture
def crew() -> Any:
    """Followers, their transport, and answers that begin and may end with an error."""
    sent: Any = Sent()
    executor: Any = SimpleNamespace(begun=0)
    drafts = DraftStore()
    followers = Followers(sent, executor, split=False)

    def answer(error: BaseException | None = None, *, begins: bool = True) -> DraftStore | None:
        with followers.answering([1, 2], Settings(), drafts):
            executor.begun += begins
            if error is not None:
                raise error
        return sent.orders[-1].drafts

    return SimpleNamespace(answer=answer, drafts=drafts, sent=sent, followers=followers)


def test_drafts_are_sent_where_followers_have_not_learned_the_same(crew: Any) -> None:
    assert crew.answer() is crew.drafts
    assert crew.answer() is None
    crew.followers.drafts_changed()
    assert crew.answer() is crew.drafts
    assert crew.answer() is None
    with pytest.raises(KeyboardInterrupt):  # a follower may have learned a step more
        crew.answer(KeyboardInterrupt())
    assert crew.sent.lost is None
    assert crew.answer() is crew.drafts
    with pytest.raises(GeneratorExit):  # all ended within the same step
        crew.answer(GeneratorExit())
    assert crew.answer() is None


def test_an_answer_that_does_not_begin_loses_the_ranks(crew: Any) -> None:
    with pytest.raises(RankError, match="interrupted before it began"):
        crew.answer(MemoryError(), begins=False)
    assert crew.sent.lost is not None
