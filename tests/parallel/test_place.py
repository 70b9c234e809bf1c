from __future__ import annotations

import pytest

from ladecli.errors import UsageError
from ladecli.parallel.place import Place, is_follower, place_of
from ladecli.places import CONFIG_FILE
from ladecli.settings import Request


def torchrun(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """The environment of a process that torchrun has started."""
    return {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
    }


@pytest.mark.parametrize(
    ("request_", "environment", "place"),
    [
        (Request(), {}, Place()),
        (Request(parallel=1), {}, Place()),
        (Request(parallel=3), {}, Place(0, 3, 0, 3)),
        # What other launchers set says nothing of us.
        (Request(), {"RANK": "1", "WORLD_SIZE": "2"}, Place()),
        (Request(), torchrun(5, 8, 1, 4), Place(5, 8, 1, 4, launched=True)),
        (Request(parallel=8), torchrun(0, 8, 0, 4), Place(0, 8, 0, 4, launched=True)),
        (Request(device="cuda:1"), {}, Place()),
        (Request(parallel=1, parallel_mode="tensor"), {}, Place()),
        # For good it is no wish for ranks, but for how they share where there are some.
        (Request(parallel_mode="tensor", origins={"parallel_mode": CONFIG_FILE}), {}, Place()),
    ],
)
def test_a_place_is_what_was_asked_for_or_what_torchrun_says(
    request_: Request, environment: dict[str, str], place: Place
) -> None:
    assert place_of(request_, environment) == place


@pytest.mark.parametrize(
    ("request_", "environment", "message"),
    [
        (
            Request(parallel=2),
            torchrun(0, 3, 0, 3),
            "--parallel 2 under a torchrun that has started 3 ranks; leave --parallel out",
        ),
        (
            Request(parallel=2, device="cuda:1"),
            {},
            "--device cuda:1 is one GPU, and each of 2 ranks needs its own; use --device cuda,"
            " and CUDA_VISIBLE_DEVICES to choose among GPUs",
        ),
        (
            Request(device_map="auto"),
            torchrun(1, 2, 1, 2),
            "--device-map auto spreads one model over all devices, which 2 ranks cannot share;"
            " use --parallel-mode tensor in its place",
        ),
        (
            Request(device_map="auto", parallel=2, parallel_mode="tensor"),
            {},
            "--device-map auto spreads one model over all devices, which 2 ranks cannot share;"
            " leave it out",
        ),
        (
            Request(parallel_mode="tensor", origins={"parallel_mode": "flag --parallel-mode"}),
            {},
            "--parallel-mode tensor does nothing without --parallel K",
        ),
    ],
)
def test_what_cannot_be_with_several_ranks_is_refused(
    request_: Request, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        place_of(request_, environment)
    assert str(error.value) == message


def test_only_torchruns_later_ranks_follow() -> None:
    assert not is_follower({})
    assert not is_follower(torchrun(0, 2, 0, 2))
    assert is_follower(torchrun(1, 2, 1, 2))
    # The first one of a second machine.
    assert is_follower(torchrun(4, 8, 0, 4))
