from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ladecli.parallel.greeting import (
    COMPARED,
    Greeting,
    asked,
    disagreement,
    remark,
    unlike,
)
from ladecli.settings import GenerateRequest, Request

VERSIONS = {"lade": "0.1.0", "Python": "3.11.2", "torch": "2.13.0", "transformers": "5.23.0"}


def greeting(kind: str = "cpu", label: str = "EPYC", **options: Any) -> Greeting:
    """What a rank says that was given some options."""
    return Greeting(VERSIONS, asked(Request(**options)), kind, label)


def with_version(name: str, version: str) -> Greeting:
    return replace(greeting(), versions=VERSIONS | {name: version})


@pytest.mark.parametrize(
    ("greetings", "message"),
    [
        ([greeting(), greeting(), greeting()], None),
        (
            [greeting(), with_version("transformers", "5.17.0")],
            "rank 1 runs transformers 5.17.0 and rank 0 5.23.0; install the same on all machines",
        ),
        (
            [greeting(), greeting(), with_version("torch", "2.11.0+cu130")],
            "rank 2 runs torch 2.11.0+cu130 and rank 0 2.13.0; install the same on all machines",
        ),
        (
            [greeting(seed=3), greeting(seed=7)],
            "rank 1 was given seed 7 and rank 0 seed 3; give all ranks the same",
        ),
        (
            [greeting(seed=3), greeting()],
            "rank 1 was given no seed and rank 0 seed 3; give all ranks the same",
        ),
        (
            [greeting(model="a/b"), greeting(model="a/b"), greeting(model="a/c")],
            "rank 2 was given model a/c and rank 0 model a/b; give all ranks the same",
        ),
        (
            [greeting(parallel_mode="tensor"), greeting()],
            "rank 1 was given parallel-mode lookahead and rank 0 parallel-mode tensor; give all"
            " ranks the same",
        ),
        (
            [greeting(ignore_eos=True), greeting()],
            "rank 1 was given ignore-eos off and rank 0 ignore-eos on; give all ranks the same",
        ),
        (
            [greeting(stop=["\n"]), greeting(stop=["a", "b"])],
            "rank 1 was given stop 'a', 'b' and rank 0 stop '\\n'; give all ranks the same",
        ),
        (
            [greeting("cuda", "H100"), greeting("cpu")],
            "rank 1 computes on the CPU and rank 0 on a GPU; give all ranks the same --device",
        ),
        ([greeting("cuda", "H100"), greeting("cuda", "A100")], None),
    ],
)
def test_what_differs_is_said_in_one_line(greetings: list[Greeting], message: str | None) -> None:
    # As they go from rank to rank.
    sent = [Greeting.from_text(each.to_text()) for each in greetings]
    assert disagreement(sent) == message


def test_unequal_gpus_are_no_error() -> None:
    pair = [greeting("cuda", "NVIDIA H100"), greeting("cuda", "NVIDIA A100")]
    assert remark(pair) == (
        "rank 1 has a NVIDIA A100 and rank 0 a NVIDIA H100: each step takes as long as on the"
        " slower one"
    )
    assert remark([greeting(), greeting()]) is None


def test_what_only_the_leader_acts_on_may_differ() -> None:
    mine = GenerateRequest(prompt="a", json=True, color="never", svg="a.svg", quiet=True)
    theirs = GenerateRequest(prompt="b", stats=True, trace="t", offline=True, pool_file="p")
    assert asked(mine) == asked(theirs)
    assert {"model", "seed", "dtype", "strategy", "sources", "budget", "temperature"} <= {*COMPARED}


SAME = {"configuration": "c" * 64, "tokenizer": "t" * 64, "weights": "w" * 64, "context": "4096"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        (
            {"weights": "5" * 64},
            "rank 1 loaded a model with weights 55555555 and rank 0 with wwwwwwww; put the same"
            " model on all machines",
        ),
        (
            {"tokenizer": "5" * 64},
            "rank 1 loaded a model with tokenizer 55555555 and rank 0 with tttttttt; put the same"
            " model on all machines",
        ),
        (
            {"context": "2048"},
            "rank 1 has room for 2,048 tokens of context and rank 0 for 4,096; set --max-context"
            " to the smaller",
        ),
    ],
)
def test_unlike_models_are_said_in_one_line(change: dict[str, str], message: str | None) -> None:
    assert unlike([json.dumps(SAME), json.dumps(SAME | change)]) == message
