from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ladecli import device
from ladecli.device import Device
from ladecli.errors import UsageError
from ladecli.parallel import last_word, start
from ladecli.parallel.place import Place
from ladecli.parallel.start import Leader, placed, variables
from ladecli.settings import Request

from .test_place import torchrun


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let there be so many GPUs, or none."""
    cpu = Device("cpu", "cpu", "EPYC")
    found = [Device("cuda", f"cuda:{number}", "H100") for number in range(count)]
    monkeypatch.setattr(device, "present", lambda: [*found, cpu])

    def detect(wanted: str) -> Device:
        if wanted == "cpu" or not found:
            return cpu
        return found[int(wanted.partition(":")[2] or 0)]

    monkeypatch.setattr(device, "detect", detect)


@pytest.mark.parametrize(
    ("wanted", "count", "place", "name"),
    [
        ("auto", 4, Place(2, 4, 2, 4), "cuda:2"),
        ("cuda", 4, Place(3, 4, 3, 4), "cuda:3"),
        # Of two machines with four GPUs each, the second.
        ("auto", 4, Place(5, 8, 1, 4, launched=True), "cuda:1"),
        ("cpu", 4, Place(2, 8, 2, 8), "cpu"),
        ("auto", 0, Place(2, 8, 2, 8), "cpu"),
    ],
)
def test_each_rank_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, wanted: str, count: int, place: Place, name: str
) -> None:
    gpus(monkeypatch, count)
    request, found = placed(Request(device=wanted), place)
    assert found.torch_name == name
    assert request.device == (name if count and wanted != "cpu" else wanted)


@pytest.mark.parametrize(
    ("count", "place", "message"),
    [
        (2, Place(0, 4, 0, 4), "--parallel 4 needs 4 GPUs and 2 are visible; use fewer"),
        (1, Place(0, 2, 0, 2), "--parallel 2 needs 2 GPUs and 1 is visible; use fewer"),
        (
            2,
            Place(0, 8, 0, 4, launched=True),
            "4 ranks on one machine need 4 GPUs and 2 are visible; use fewer",
        ),
    ],
)
def test_more_ranks_than_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, count: int, place: Place, message: str
) -> None:
    gpus(monkeypatch, count)
    with pytest.raises(UsageError) as error:
        placed(Request(), place)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("kind", "place", "line"),
    [
        ("cuda", Place(0, 3, 0, 3), None),
        ("cpu", Place(0, 3, 0, 1, launched=True), None),
        ("cpu", Place(0, 3, 0, 3), "3 ranks share the 2 cores of this machine"),
        ("mps", Place(0, 2, 0, 2), "2 ranks share one GPU"),
    ],
)
def test_ranks_that_share_a_device_are_for_trying_out(
    monkeypatch: pytest.MonkeyPatch, kind: str, place: Place, line: str | None
) -> None:
    monkeypatch.setattr(start, "cores", lambda: 2)
    leader = Leader(place, Request(), Device(kind, kind, "EPYC"))
    said = line and f"{line}: good for trying it out, not for speed"
    assert leader.notice == said


def test_libraries_find_what_they_look_for() -> None:
    told = variables(Place(2, 4, 2, 4), "127.0.0.1", 4321)
    assert told.pop("GLOO_SOCKET_IFNAME", "lo").startswith("lo")
    assert told == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
    }


def test_a_last_word_is_what_torchrun_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    file = tmp_path / "error.json"
    monkeypatch.setenv(last_word.VARIABLE, str(file))
    last_word.leave("rank 1 failed")
    last_word.leave("rank 0 was left alone")  # the first one counts
    failure = ProcessFailure(local_rank=1, pid=os.getpid(), exitcode=1, error_file=str(file))
    assert failure.message["extraInfo"]["py_callstack"] == "rank 1 failed"
    assert failure.timestamp > 0


def test_without_torchrun_no_last_word_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(last_word.VARIABLE, raising=False)
    last_word.leave("nobody reads this")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_refusal_before_ranks_meet_is_in_torchruns_summary(
    lade: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: int
) -> None:
    for name, value in torchrun(rank, 2, rank, 2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(last_word.VARIABLE, str(tmp_path / "error.json"))
    line = "lade plan is one process; start it without torchrun"
    done = lade("plan")
    # One speaks for all, and the summary has the words of each.
    assert (done.code, done.err) == (2, "" if rank else f"lade: {line}\n")
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == line
