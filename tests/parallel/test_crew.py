from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.errors import RankError
from ladecli.parallel.crew import Crew, Task
from ladecli.session import Settings

LOOKAHEAD, PLAIN = Settings(), Settings(strategy="autoregressive")


class Followers:
    """Followers that remember what they were told."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.meeting = SimpleNamespace(
            losing=RankError, explained=lambda error: RankError(f"{error}, because it was tired")
        )
        self.group: Any = SimpleNamespace(begun=0)
        self.begins = 1

    def tell(self, task: Task) -> None:
        self.tasks.append(task)
        self.group.begun += self.begins


@pytest.fixture
def followers() -> Any:
    return Followers()


def crew_of(followers: Any, **options: Any) -> Crew:
    return Crew(followers, followers.group, **options)


def test_drafts_are_sent_where_followers_do_not_know_them(followers: Any) -> None:
    crew, drafts = crew_of(followers), DraftState()
    for known in (drafts, drafts, DraftState()):
        with crew.answering([1, 2], LOOKAHEAD, known):
            pass
    assert [task.drafts is not None for task in followers.tasks] == [True, False, True]
    assert followers.tasks[0].prompt == (1, 2)
    assert followers.tasks[0].settings is LOOKAHEAD


def test_drafts_are_sent_again_after_a_failure(followers: Any) -> None:
    crew, drafts = crew_of(followers), DraftState()
    with crew.answering([1], LOOKAHEAD, drafts):
        pass
    with pytest.raises(KeyboardInterrupt), crew.answering([1], LOOKAHEAD, drafts):
        raise KeyboardInterrupt
    with crew.answering([1], LOOKAHEAD, drafts):
        pass
    assert [task.drafts for task in followers.tasks] == [drafts, None, drafts]


def test_an_interrupt_before_ranks_have_begun_is_the_end_of_them(followers: Any) -> None:
    """They wait for the rest of a word, and nobody could tell them anything else."""
    followers.begins = 0
    line = "the ranks were interrupted before they began; start them again"
    answering = crew_of(followers).answering([1], LOOKAHEAD, DraftState())
    with pytest.raises(RankError, match=line), answering:
        raise KeyboardInterrupt


def test_a_rank_that_failed_is_told_with_its_reason(followers: Any) -> None:
    answering = crew_of(followers).answering([1], LOOKAHEAD, DraftState())
    with pytest.raises(RankError, match="rank 1 failed, because it was tired"), answering:
        raise RankError("rank 1 failed")


def test_an_answer_that_is_closed_leaves_drafts_alike(followers: Any) -> None:
    crew, drafts = crew_of(followers), DraftState()

    def answer() -> Generator[int]:
        with crew.answering([1], LOOKAHEAD, drafts):
            yield 1

    events = answer()
    next(events)
    events.close()
    with crew.answering([1], LOOKAHEAD, drafts):
        pass
    assert [task.drafts for task in followers.tasks] == [drafts, None]


def test_what_is_not_dealt_out_is_the_leaders_alone(followers: Any) -> None:
    with crew_of(followers).answering([1], PLAIN, DraftState()):
        assert followers.tasks == []
    with crew_of(followers, split=True).answering([1], PLAIN, DraftState()):
        assert len(followers.tasks) == 1
