"""A session among ranks: who decodes what, and what becomes of an answer that nobody ends."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest

from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.errors import RankError
from ladecli.models.load import LoadedModel, load
from ladecli.session.parallel import Followers, Order
from ladecli.session.session import Session, Settings
from tests.support.decoding import text_ids
from tests.support.device import Again
from tests.support.hub import plan

pytestmark = pytest.mark.slow


class Crew:
    """Followers that note their tasks."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Sequence[int], Settings]] = []
        self.open = 0

    def drafts_changed(self) -> None:
        assert self.open == 0, "drafts change while followers decode with what they were"

    def takes_part(self, settings: Settings) -> bool:
        return settings.strategy == "lookahead"

    @contextlib.contextmanager
    def answering(self, prompt: Any, settings: Settings, _drafts: DraftStore) -> Iterator[None]:
        assert self.open == 0, "an answer begins while followers decode another one"
        self.open += 1
        self.tasks.append((prompt, settings))
        try:
            yield
        finally:
            self.open -= 1


PROMPT = [5, 6, 7]
SHARED = Settings(max_new_tokens=12, ignore_eos=True)
PLAIN = Settings("autoregressive", max_new_tokens=12, ignore_eos=True)


def answer(session: Session, prompt: Sequence[int], settings: Settings) -> list[int]:
    return text_ids(session.stream(prompt, settings))


@cache
def demo() -> LoadedModel:
    return load(plan("demo"))


@cache
def plain_answer() -> list[int]:
    return answer(Session(demo()), PROMPT, PLAIN)


def leading() -> tuple[Crew, Session]:
    crew, session = Crew(), Session(demo())
    session.followers = crew
    return crew, session


def test_followers_are_told_of_what_takes_them() -> None:
    crew, session = leading()
    assert answer(session, PROMPT, PLAIN) == answer(session, PROMPT, SHARED) == plain_answer()
    assert crew.tasks == [(PROMPT, SHARED)]
    assert crew.open == 0


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda session: answer(session, PROMPT, PLAIN),
        lambda session: session.add_draft_text("def area(width, height):"),
        Session.start_over,
    ],
    ids=["an answer of the leader's own", "a draft text", "another start"],
)
def test_an_answer_that_is_still_open_ends_before_anything_else(meanwhile: Any) -> None:
    """Followers would wait in it for ever, or learn otherwise."""
    crew, session = leading()
    first = session.stream([9, 9, 9], SHARED)
    next(first)
    meanwhile(session)
    assert crew.open == 0
    assert answer(session, PROMPT, SHARED) == plain_answer()
    assert not [*first]


def captured(patch: pytest.MonkeyPatch, capture: Again) -> Session:
    patch.setattr("ladecli.session.session.load_decoder", partial(load_decoder, capture=capture))
    return leading()[1]


def test_what_goes_wrong_with_captured_steps_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Again()
    session = captured(monkeypatch, capture)
    assert session.notices == ()
    assert answer(session, PROMPT, SHARED) == plain_answer()
    assert session.decoder.executor.graphs_made
    assert session.new_notices() == []
    capture.errors = [RuntimeError("no way")] * 99
    session.decoder.forget()
    assert answer(session, PROMPT, PLAIN) == plain_answer()
    (line,) = session.new_notices()
    assert re.search("without CUDA graphs.*no way", line)
    assert session.new_notices() == []
    failed_at_once = captured(monkeypatch, capture)
    assert failed_at_once.notices == (line.removeprefix("some "),)
    assert failed_at_once.new_notices() == []


def test_followers_get_the_widths_of_their_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    session = captured(monkeypatch, Again())
    crew, leader = leading()
    answer(leader, PROMPT, SHARED)
    ((_, settings),) = crew.tasks
    widths = session.decoder.executor.widths(SHARED.lookahead.step_limit)
    assert settings.lookahead.widths == tuple(widths)
    assert widths[-1] == SHARED.lookahead.step_limit


def test_transformers_gets_the_model_as_it_was_loaded() -> None:
    """Our forward keeps weights in an order of its own, in which that of transformers is slower."""
    session = Session(demo())
    assert session.stock_model is session.stock_model
    assert all(weight.is_contiguous() for weight in session.stock_model.parameters())


# What the followers of other processes are told, and when they are lost.


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
def leader() -> Any:
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


def test_drafts_are_sent_where_followers_have_not_learned_the_same(leader: Any) -> None:
    assert [leader.answer(), leader.answer()] == [leader.drafts, None]
    leader.followers.drafts_changed()
    assert [leader.answer(), leader.answer()] == [leader.drafts, None]
    with pytest.raises(KeyboardInterrupt):  # a follower may have learned a step more
        leader.answer(KeyboardInterrupt())
    assert (leader.sent.lost, leader.answer()) == (None, leader.drafts)
    with pytest.raises(GeneratorExit):  # all ended within the same step
        leader.answer(GeneratorExit())
    assert leader.answer() is None


def test_an_answer_that_does_not_begin_loses_the_ranks(leader: Any) -> None:
    with pytest.raises(RankError, match="interrupted before it began"):
        leader.answer(MemoryError(), begins=False)
    assert leader.sent.lost is not None
