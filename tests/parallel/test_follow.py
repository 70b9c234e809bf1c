from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch import distributed

from ladecli.decoder.errors import DecoderError, RankError
from ladecli.decoder.parallel import meeting as meetings
from ladecli.decoder.parallel.meeting import Meeting
from ladecli.errors import LadeError
from ladecli.parallel import follow
from ladecli.parallel.crew import Task
from ladecli.parallel.place import Place
from ladecli.parallel.start import Joined
from ladecli.session import Settings
from ladecli.settings import Request

PLACE = Place(1, 2, 1, 2)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> tuple[Meeting, Meeting]:
    """A meeting, as its leader and a follower see it; nothing here ends this process."""
    store = distributed.HashStore()
    monkeypatch.setattr(meetings, "_end_with", lambda *_: None)
    monkeypatch.setattr(meetings, "LINGER", 0.0)
    monkeypatch.setattr(follow.signal, "signal", lambda *_: None)
    return Meeting(lambda: store, 0, 2), Meeting(lambda: store, 1, 2)


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("opener", "message"),
    [
        (failing(LadeError("there is no such model")), "there is no such model"),
        (lambda _: failing(MemoryError("CUDA out of memory")), "MemoryError: CUDA out of memory"),
    ],
)
def test_the_leader_tells_why_a_follower_cannot_go_on(
    met: tuple[Meeting, Meeting],
    monkeypatch: pytest.MonkeyPatch,
    opener: follow.Opener,
    message: str,
) -> None:
    leader, meeting = met
    monkeypatch.setattr(follow, "join", lambda *_: Joined(SimpleNamespace(), None))
    code = follow.follow(PLACE, Request(device="cpu"), meeting, opener)
    assert code == 1
    with pytest.raises(RankError, match=f"^rank 1 failed: {message}$"):
        leader.look()


def test_what_a_follower_refuses_counts_for_that_answer(met: tuple[Meeting, Meeting]) -> None:
    """It did not do its part, and waits for the next word while others wait for it."""
    leader, meeting = met
    words = iter([Task((1,), Settings(), None), Task((2,), Settings(), None)])

    def hear() -> Task:
        word = next(words, None)
        if word is None:
            raise RankError("rank 0 ended")
        meeting.round += 1
        return word

    def stream(prompt: tuple[int, ...], _: Settings) -> Iterator[int]:
        if prompt == (1,):
            raise DecoderError("the drafts differ")
        yield 1

    processes: Any = SimpleNamespace(hear=hear, meeting=meeting)
    session: Any = SimpleNamespace(stream=stream)
    with pytest.raises(RankError, match=r"^rank 0 ended$"):
        follow.serve(processes, session)
    leader.round = 1
    with pytest.raises(RankError, match=r"^rank 1 failed: the drafts differ$"):
        leader.look()
    leader.lost, leader.round = None, 2
    leader.look()  # the next answer is another matter
