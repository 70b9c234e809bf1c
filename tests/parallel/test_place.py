from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ladecli import device
from ladecli.decoder.errors import RankError
from ladecli.device import Device
from ladecli.errors import UsageError
from ladecli.option_fields import CONFIG_FILE
from ladecli.options import GenerateRequest, Request
from ladecli.parallel.agreement import greet, least_context
from ladecli.parallel.place import Place, is_follower, place_of, report_failure
from ladecli.parallel.start import Leader, placed, started

CPU = Device("cpu", "cpu", "EPYC")


def torchrun(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """The environment of a process that torchrun started."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = map(str, (rank, size, local_rank, local_size))
    return {"TORCHELASTIC_RUN_ID": "none", **dict(zip(names, values, strict=True))}


@pytest.mark.parametrize(
    ("request_", "environment", "place"),
    [
        (Request(), {}, Place()),
        (Request(parallel=3), {}, Place(0, 3, 0, 3)),
        # Other launchers' variables say nothing of us.
        (Request(), {"RANK": "1", "WORLD_SIZE": "2"}, Place()),
        (Request(), torchrun(5, 8, 1, 4), Place(5, 8, 1, 4, launched=True)),
        (Request(parallel_mode="tensor", origins={"parallel_mode": CONFIG_FILE}), {}, Place()),
    ],
)
def test_the_place_of_a_process(
    request_: Request, environment: dict[str, str], place: Place
) -> None:
    assert place_of(request_, environment) == place
    assert is_follower(environment) == (place.rank > 0)


@pytest.mark.parametrize(
    ("request_", "environment", "message"),
    [
        (Request(parallel=2), torchrun(0, 3, 0, 3), "--parallel 2 under a torchrun that started 3"),
        (Request(parallel=2, device="cuda:1"), {}, "--device cuda:1 is one GPU, and each of 2"),
        (Request(device_map="auto"), torchrun(1, 2, 1, 2), "--device-map auto spreads one model"),
        (Request(parallel_mode="tensor"), {}, "--parallel-mode tensor does nothing without"),
    ],
)
def test_what_several_ranks_cannot_do_is_refused(
    request_: Request, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        place_of(request_, environment)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be two GPUs."""
    found = [Device("cuda", f"cuda:{number}", "H100") for number in range(2)]
    monkeypatch.setattr(device, "present", lambda: [*found, CPU])

    def detect(name: str) -> Device:
        return CPU if name == "cpu" else found[int(name.partition(":")[2] or 0)]

    monkeypatch.setattr(device, "detect", detect)


@pytest.mark.usefixtures("gpus")
def test_each_rank_has_a_gpu_of_its_own() -> None:
    assert placed(Request(), Place(3, 4, 1, 2, launched=True))[0].device == "cuda:1"
    assert placed(Request(device="cpu"), Place(3, 4, 3, 4))[0].device == "cpu"
    with pytest.raises(UsageError, match="--parallel 4 needs 4 GPUs and 2 are visible; use fewer"):
        placed(Request(), Place(0, 4, 0, 4))


def test_far_more_ranks_than_cores_are_refused_before_they_start() -> None:
    request = Request(parallel=9999, device="cpu")
    with (
        pytest.raises(UsageError, match="--parallel 9999 asks for 9999 processes"),
        started(request),
    ):
        pass


def test_ranks_that_share_a_device_are_for_trying_out() -> None:
    leader = Leader(Request(), Request(), Place(0, 3, 0, 3), CPU)
    assert str(leader.notice).startswith("3 ranks share ")
    assert replace(leader, device=Device("cuda", "cuda:0", "H100")).notice is None


def test_torchruns_summary_has_the_first_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    report_failure("rank 1 failed")
    report_failure("rank 0 was left alone")
    assert json.loads(file.read_text())["message"]["extraInfo"]["py_callstack"] == "rank 1 failed"


def gathering(*changes: dict[str, Any]) -> Any:
    """Ranks of which each other one has what this one has, but for its changes."""

    def gather(mine: Any) -> list[Any]:
        return [mine, *[mine | each if isinstance(mine, dict) else mine for each in changes]]

    return SimpleNamespace(gather_objects=gather, lose=RankError)


def test_options_that_all_ranks_need_are_compared() -> None:
    mine = GenerateRequest(prompt="a", json=True, seed=3)
    assert greet(gathering({}, {}), mine, CPU) is None
    with pytest.raises(RankError, match="rank 1 has seed 7 and rank 0 has 3; all ranks need the"):
        greet(gathering({"seed": 7}), mine, CPU)
    with pytest.raises(RankError, match="rank 2 has ignore-eos True and rank 0 has False"):
        greet(gathering({}, {"ignore-eos": True}), mine, CPU)


@pytest.mark.parametrize(("mine", "other", "least"), [(9, 5, 5), (5, 9, 5), (None, 7, 7)])
def test_texts_end_where_the_smallest_rank_has_no_room(mine: Any, other: int, least: int) -> None:
    ranks = gathering({})
    ranks.gather_objects = lambda value: [value, value if isinstance(value, dict) else other]
    assert least_context(ranks, mine, "float32") == least
