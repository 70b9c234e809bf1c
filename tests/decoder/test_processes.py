from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ladecli.decoder.errors import RankError
from ladecli.decoder.parallel import meeting as meetings
from ladecli.decoder.parallel.likeness import weights_digest
from ladecli.decoder.parallel.meeting import Meeting, Waiting
from ladecli.decoder.parallel.processes import Processes
from ladecli.decoder.parallel.store import hosted


@pytest.fixture
def store() -> Any:
    return dist.HashStore()


def leader(store: Any, size: int = 3, watch: Callable[[], str | None] | None = None) -> Meeting:
    """The leader's view of a meeting whose other ranks are what the test writes."""
    return Meeting(lambda: store, 0, size, watch=watch, patience=0.5)


def test_what_ranks_say_comes_in_their_order(store: Any) -> None:
    store.set("said/0/2", "c")
    timer = threading.Timer(0.05, lambda: store.set("said/0/1", "b"))
    timer.start()
    assert leader(store).collect("a") == ["a", "b", "c"]
    timer.join()


def test_the_first_reason_counts(store: Any) -> None:
    meeting = leader(store)
    meeting.look()
    store.compare_set("failed", "", "rank 2 failed: no memory")
    meeting.fail("rank 2 is gone")
    with pytest.raises(RankError, match=r"^rank 2 failed: no memory$"):
        meeting.look()
    assert str(meeting.gone()) == "rank 2 failed: no memory"


def test_a_refusal_counts_in_its_round_alone(store: Any) -> None:
    meeting = leader(store)
    meeting.round = 4
    store.set("refused/3", "rank 1 failed: long ago")
    meeting.look()
    store.set("refused/4", "rank 1 failed: the drafts differ")
    with pytest.raises(RankError, match=r"^rank 1 failed: the drafts differ$"):
        meeting.look()


@pytest.mark.parametrize(
    ("watch", "message"),
    [
        (lambda: "rank 1 was killed (SIGKILL)", "rank 1 was killed (SIGKILL)"),
        (None, "another rank ended"),
    ],
)
def test_a_broken_connection_is_explained_by_whoever_knows(
    store: Any, watch: Callable[[], str | None] | None, message: str
) -> None:
    assert str(leader(store, watch=watch).gone()) == message


def test_a_failure_is_explained_by_the_reason_that_comes_behind_it(store: Any) -> None:
    meeting = leader(store)
    timer = threading.Timer(0.1, lambda: store.set("failed", "rank 1 failed: no memory"))
    timer.start()
    assert str(meeting.explained(RankError("rank 1 failed"))) == "rank 1 failed: no memory"
    timer.join()


def test_a_failure_without_a_reason_stays_what_it_is(store: Any) -> None:
    error = RankError("rank 1 drafted something else than rank 0 in step 3")
    meeting = leader(store)
    assert str(meeting.explained(error)) == str(error)
    assert meeting.lost is not None  # nothing more can be done together


def test_a_process_that_is_no_more_is_named(store: Any) -> None:
    meeting = leader(store, 2)
    # No process has this number, which is larger than numbers of processes can be.
    store.set("said/0/1", f"{2**22 + 1} {socket.gethostname()}")
    meeting.meet()
    meeting.look()
    with pytest.raises(RankError, match=r"^rank 1 was killed, or ended without a word$"):
        meeting.look(thoroughly=True)


def test_a_process_that_is_still_on_its_way_out_is_named(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system closes the connections of a killed process first, and the process is seen on."""
    meeting = leader(store, 2)
    store.set("said/0/1", f"4321 {socket.gethostname()}")
    meeting.meet()
    looks = iter([True, True])
    monkeypatch.setattr(meetings, "_runs", lambda pid: next(looks, False) if pid == 4321 else True)
    assert str(meeting.gone()) == "rank 1 was killed, or ended without a word"


def test_processes_of_other_machines_are_not_looked_for(store: Any) -> None:
    meeting = leader(store, 2)
    store.set("said/0/1", f"{2**22 + 1} somewhere-else")
    meeting.meet()
    meeting.look(thoroughly=True)


def test_patience_ends_with_the_names_of_the_late(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meetings, "LOOK", 0.0)
    meeting = leader(store)
    store.set("waits/1", "7")
    store.set("waits/2", "6")
    waiting = Waiting(meeting)
    waiting.waited = 0.6
    with pytest.raises(RankError, match=r"^rank 2 did not answer for 0 s$"):
        waiting.look(lambda: meeting.late("7"))
    assert meeting.late("6") == [1]
    assert meeting.late("8") == [1, 2]


def test_time_in_which_the_leader_was_suspended_does_not_count(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(meetings.time, "monotonic", lambda: now)
    meeting = leader(store)
    meeting.patience = 600.0
    waiting = Waiting(meeting)
    now += 3600.0
    waiting.look(lambda: [1])
    assert waiting.waited == 4 * meetings.LOOK


@pytest.fixture
def alone() -> Iterator[Processes]:
    """A group of one rank, connected as larger ones are."""
    listener = socket.create_server(("127.0.0.1", 0))
    meeting = hosted(listener, 1, lambda: None)
    meeting.meet()
    processes = Processes(meeting)
    yield processes
    processes.leave()
    assert not dist.is_initialized()


def test_numbers_of_all_sizes_and_any_count_arrive(alone: Processes) -> None:
    assert (alone.rank, alone.size) == (0, 1)
    for numbers in ([-(2**31), 2**31 - 1, 0], [1], [2], [5] * 600):
        assert alone.gather(numbers) == [numbers]
    assert alone.collect("a text, ä\n") == ["a text, ä\n"]


def test_a_wait_that_ctrl_c_broke_off_is_finished_by_the_next(
    alone: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(alone, "_await", interrupted)
        with pytest.raises(KeyboardInterrupt):
            alone.gather([1, 2])
    assert alone.gather([3, 4, 5]) == [[3, 4, 5]]


def test_nothing_is_said_to_ranks_that_are_lost(alone: Processes) -> None:
    error = alone.meeting.losing("rank 1 ended")
    for call in (lambda: alone.gather([1]), lambda: alone.tell(1), lambda: alone.collect("")):
        with pytest.raises(RankError) as found:
            call()
        assert found.value is error
    alone.meeting.lost = None  # so that the group is taken apart


def test_a_digest_tells_weights_apart() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Linear(128, 64).bfloat16())
    first = weights_digest(model)
    assert weights_digest(model) == first
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.mul_(1.5).add_(0.5)
        assert weights_digest(model) != first
        first = weights_digest(model)
    model[0].weight = nn.Parameter(model[0].weight.t())  # neither contiguous nor of the same shape
    assert weights_digest(model) != first
    model.to("meta")
    assert len(weights_digest(model)) == 64
