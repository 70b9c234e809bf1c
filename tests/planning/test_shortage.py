"""Models that no such GPUs hold: what takes the memory is named, and what is advised does help."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ladecli.planning.outlook import look
from ladecli.planning.shortage import too_large

from .makers import setup_of

ON_TWO = (
    "70b split over 2 × a100 needs 69.5 GB on each: 69 GB of weights in bfloat16, 336 MB of keys"
    " for 1,024 tokens of context, 120 MB for a step of 64 tokens; one a100 has 38.8 GB that can be"
    " used"
)
OTHER = "take a GPU with more memory, or a smaller model"


def line(gpu: str, size: str, gpus: int, **fields: Any) -> str:
    return too_large(size, gpu, setup_of(gpu, size, **fields), gpus)


@pytest.mark.parametrize(
    ("gpu", "size", "gpus", "fields", "message"),
    [
        ("a100", "70b", 2, {}, f"{ON_TWO}; the smallest number that fits: 4"),
        (
            *("a100", "70b", 3, {}),
            f"{ON_TWO}; 8 key/value heads cannot be split over 3 GPUs; the smallest number that"
            " fits: 4",
        ),
        (
            *("a100", "32b", 1, {}),
            "32b needs 66.2 GB: 65.5 GB of weights in bfloat16, 537 MB of keys for 1,024 tokens of"
            " context, 183 MB for a step of 64 tokens; one a100 has 38.8 GB that can be used; the"
            " smallest number that fits: 2; --quantize 8bit fits on 1",
        ),
        # The keys are the cause: it is said, and a shorter context would help.
        (
            *("a100", "7b", 8, {"context": 10_000_000}),
            "7b split over 8 × a100 needs 1.07 TB on each: 1.69 GB of weights in bfloat16, 1.05 TB"
            " of keys for 10,000,000 tokens of context, 15.4 GB for a step of 64 tokens; one a100"
            " has 38.8 GB that can be used; even 32, the most that it can be split over, are too"
            " few; --context 340000 fits on 8",
        ),
        (
            *("a100", "7b", 1, {"context": 100_000}),
            "7b needs 97.9 GB: 13.5 GB of weights in bfloat16, 84.2 GB of keys for 100,000 tokens"
            " of context, 226 MB for a step of 64 tokens; one a100 has 38.8 GB that can be used;"
            " the smallest number that fits: 4; --context 29000 fits on 1",
        ),
    ],
)
def test_what_takes_the_memory_and_what_helps(
    gpu: str, size: str, gpus: int, fields: dict[str, Any], message: str
) -> None:
    assert line(gpu, size, gpus, **fields) == message


@pytest.mark.parametrize(
    ("gpu", "size", "gpus", "fields", "end"),
    [
        (
            *("t4", "70b", 8, {}),
            "no larger number helps: 8 key/value heads cannot be split over 16 GPUs",
        ),
        (
            *("t4", "405b", 1024, {}),
            "it can be split over no more: 8 key/value heads cannot be split over 1024 GPUs",
        ),
        ("t4", "405b", 1, {}, "even 8, the most that it can be split over, are too few"),
        (
            *("t4", "70b", 1, {"quantize": "4bit"}),
            "no larger number helps: weights in nf4 cannot be split",
        ),
    ],
)
def test_why_no_number_of_gpus_helps(
    gpu: str, size: str, gpus: int, fields: dict[str, Any], end: str
) -> None:
    said = line(gpu, size, gpus, **fields)
    assert said.endswith(f"15.5 GB that can be used; {end}; {OTHER}")


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("size", ["0.5b", "7b", "32b"])
def test_the_context_that_is_advised_fits_and_is_about_the_most(size: str, gpus: int) -> None:
    gpu, wanted = "h200", 10_000_000
    found = re.search(r"--context (\d+) fits", line(gpu, size, gpus, context=wanted))
    assert found is not None
    context = int(found[1])
    for tokens, fits in ((context, True), (context * 1.15, False)):
        best = look(setup_of(gpu, size, context=int(tokens)), [1, 2, 4, 8], gpus).best()
        assert (best is not None) == fits
