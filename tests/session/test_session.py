"""Sessions: notices, weights, and messages to followers."""

from __future__ import annotations

import re
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
from tests.support.device import FakeCapture
from tests.support.hub import plan

pytestmark = pytest.mark.slow


@cache
def demo() -> LoadedModel:
    return load(plan("demo"))


def test_failures_of_captured_steps_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(strategy: str) -> list[int]:
        settings = Settings(strategy, max_new_tokens=12, ignore_eos=True)
        return text_ids(session.stream([5, 6, 7], settings))

    capture = FakeCapture()
    load = partial(load_decoder, capture=capture)
    monkeypatch.setattr("ladecli.session.session.load_decoder", load)
    session = Session(demo())
    assert session.notices == ()
    expected = answer("lookahead")
    assert session.decoder.executor.graphs_made
    assert session.new_notices() == []
    capture.errors = [RuntimeError("no way")] * 99
    session.decoder.forget()
    assert answer("autoregressive") == expected
    (line,) = session.new_notices()
    assert re.search("without CUDA graphs.*no way", line)
    assert session.new_notices() == []
    failed_at_once = Session(demo())
    assert failed_at_once.notices == (line.removeprefix("some "),)
    assert failed_at_once.new_notices() == []


def test_transformers_gets_the_model_as_it_was_loaded() -> None:
    """Our forward changes the layout of weights, with which transformers' forward is slower."""
    session = Session(demo())
    assert session.stock_model is session.stock_model
    assert all(weight.is_contiguous() for weight in session.stock_model.parameters())


class RecordingTransport:
    """A transport that records messages."""

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


def test_drafts_are_sent_if_followers_have_not_learned_the_same() -> None:
    sent: Any = RecordingTransport()
    executor: Any = SimpleNamespace(begun=0)
    drafts = DraftStore()
    followers = Followers(sent, executor, split=False)

    def answer(error: BaseException | None = None, *, begins: bool = True) -> DraftStore | None:
        with followers.answering([1, 2], Settings(), drafts):
            executor.begun += begins
            if error is not None:
                raise error
        return sent.orders[-1].drafts

    assert [answer(), answer()] == [drafts, None]
    followers.drafts_changed()
    assert [answer(), answer()] == [drafts, None]
    with pytest.raises(KeyboardInterrupt):  # a follower may have learned a step more
        answer(KeyboardInterrupt())
    assert (sent.lost, answer()) == (None, drafts)
    with pytest.raises(GeneratorExit):  # all ranks ended within the same step
        answer(GeneratorExit())
    assert answer() is None
    with pytest.raises(RankError, match="interrupted before it began"):
        answer(MemoryError(), begins=False)
    assert sent.lost is not None
