"""`lade plan`: what is refused, what is shown on screens and pipes, and the object for programs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from ladecli import device as devices
from ladecli.cli import app
from ladecli.device import Device
from ladecli.option_table import table_of
from ladecli.planning import growth, report, words
from ladecli.planning.cost import TENSOR
from ladecli.planning.gpus import named
from ladecli.planning.outlook import look
from ladecli.planning.words import Subject, heading
from ladecli.profiles import user

from .planning.makers import TABLE, setup_of

H200 = Device("cuda", "cuda:0", "NVIDIA H200", int(150e9))
ACME = Device("cuda", "cuda:0", "ACME Accelerator 9000", int(16e9))
KNOWN = (
    "a100, a100-80gb, a10g, b200, h100, h100-pcie, h200, l4, l40s, mi300x, rtx3090, rtx4090,"
    " rtx5090, t4, v100"
)


SHIPPED = growth.shipped


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens per step that stay as they are when others are measured."""
    tables = growth.parse(TABLE)
    monkeypatch.setattr(growth, "shipped", lambda: tables)


A100 = ("--gpu", "a100")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "0"), "gpus must be from 1 to 1024, not 0"),
        (("--gpus", "-2"), "gpus must be from 1 to 1024, not -2"),
        (("--gpus", "5000"), "gpus must be from 1 to 1024, not 5000"),
        (("--nodes", "0"), "nodes must be from 1 to 1024, not 0"),
        (("--gpus-per-node", "0"), "gpus-per-node must be from 1 to 1024, not 0"),
        (("--context", "0"), "context must be from 1 to 10000000 tokens, not 0"),
        (("--budget", "0"), "budget must be at least 1, not 0"),
        (
            ("--budget", "1"),
            "with --budget 1 lookahead is plain decoding, which the tables have anyway; use at"
            " least 2",
        ),
        (
            ("--dtype", "int3"),
            "unknown dtype 'int3'; use one of auto, float32, float16, bfloat16",
        ),
        (
            ("--gpus", "6", "--nodes", "4"),
            "6 GPUs cannot be spread evenly over 4 nodes; say --gpus-per-node",
        ),
        (
            ("--gpus", "9", "--nodes", "2", "--gpus-per-node", "4"),
            "9 GPUs do not fit in 2 nodes of 4; raise --nodes or --gpus-per-node",
        ),
        (("--gpu", "h10"), f"unknown GPU 'h10'; did you mean h100? known: {KNOWN}"),
        (("--gpu", "banana"), f"unknown GPU 'banana'; known: {KNOWN}"),
        (("--gpu", "apple"), f"unknown GPU 'apple'; known: {KNOWN}"),
        # A tenth of one is none.
        (
            ("--gpu", "A100 MIG 1g.5gb"),
            f"unknown GPU 'A100 MIG 1g.5gb'; known: {KNOWN}",
        ),
        ((), f"no GPU is here to plan for; name one by --gpu: {KNOWN}"),
        (
            (*A100, "--model-size", "9b"),
            "unknown model size '9b' (next to it: 8b and 13b); known: 0.5b, 1b, 1.5b, 3b, 7b, 8b,"
            " 13b, 14b, 32b, 34b, 8x7b, 70b, 72b, 405b, and names such as llama-3-70b,"
            " qwen2.5-72b, llama-3-405b",
        ),
        (
            ("demo", *A100, "--model-size", "7b"),
            "demo has a size of its own; leave --model-size out",
        ),
        (
            (*A100, "--link", "token"),
            "unknown link 'token'; use nvlink, pcie, infiniband, ethernet, a number of GB/s, or"
            " two with a comma: within a node, between nodes",
        ),
        (
            (*A100, "--link", "ethernet", "--gpus", "4"),
            "--link ethernet is between nodes, and 8 GPUs in nodes of 8 are one node; add --nodes"
            " or --gpus-per-node",
        ),
        (
            (*A100, "--text", "prose"),
            "unknown text 'prose'; tokens per step are known for tests",
        ),
    ],
)
def test_what_is_refused(lade: Any, arguments: tuple[str, ...], message: str) -> None:
    result = lade("plan", *arguments)
    assert (result.code, result.out, result.err) == (2, "", f"lade: {message}\n")


def test_a_model_that_is_nowhere(lade: Any) -> None:
    result = lade("plan", *A100, "no/such", "--offline")
    assert result.code == 1
    assert result.err.startswith("lade: no/such is not on this machine")
    assert result.err.count("\n") == 1


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(
    width: int, gpu: str = "a100", size: str = "qwen2.5-7b", asked: int | None = 4
) -> list[str]:
    """What a screen shows."""
    stream = Screen()
    console = Console(file=stream, width=width, force_terminal=False, highlight=False)
    setup = setup_of(gpu, size)
    outlook = look(setup, sorted({1, 2, 4, 8, asked or 8}), asked)
    report.show(Subject(size, named(gpu), "derived, profile a100"), outlook, console)
    shown = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert max(map(len, shown)) <= width
    return shown


HEADING = [
    "qwen2.5-7b in bfloat16 (7.6B parameters, 15.2 GB) on NVIDIA A100, 40 GB:",
    "estimated, not measured",
    "",
    "It rests on:",
]
WIDE = """\
Lookahead parallelism (the model and 64 tokens on each GPU)
GPUs  ms a step     sent  tokens/step  tokens/s  × plain  per GPU
─────────────────────────────────────────────────────────────────
   1       10.4        -         3.00     287.9     2.91     100%
   2       10.7  2.63 kB         4.00     373.4     3.78      65%
 * 4       11.2  2.63 kB         5.00     448.0     4.53      39%
   8       12.1  2.63 kB         5.50     456.1     4.61      20%

Tensor parallelism with lookahead (the model split)
GPUs    ms a step     sent  tokens/step  tokens/s  × plain  per GPU
───────────────────────────────────────────────────────────────────
   1         10.4        -         3.00     287.9     2.91     100%
   2         18.0  35.9 MB         3.00     167.0     1.69      29%
 * 4         18.3    31 MB         3.00     164.1     1.66      14%
   8  indivisible        -            -         -        -        -
8: 4 key/value heads cannot be split over 8 GPUs

Tensor parallelism, plain decoding (the model split)
GPUs    ms a step    sent  tokens/step  tokens/s  × plain  per GPU
──────────────────────────────────────────────────────────────────
   1         10.1       -         1.00      98.9     1.00     100%
   2         17.4  561 kB         1.00      57.6     0.58      29%
 * 4         17.5  485 kB         1.00      57.2     0.58      14%
   8  indivisible       -            -         -        -        -
8: 4 key/value heads cannot be split over 8 GPUs

× plain: tokens per second over plain decoding on one GPU
per GPU: tokens per second of each, over those of the first possible row
sent: bytes that each GPU gives to exchanges in a step
* 4: what was asked for

lookahead parallelism: pays up to 4 GPUs: going from 4 to 8 brings only 1.8%
more tokens per second, and it takes 10% to pay
tensor parallelism with lookahead: a second GPU does not pay: 2 are slower
tensor parallelism, plain decoding: a second GPU does not pay: 2 are slower
with 4 GPUs: lookahead parallelism, 448 tokens/s, 4.53× plain decoding on one
GPU
tokens per step: as measured on a small model, none ('tests'); see 9
"""
NARROW = """\
Lookahead parallelism (the model and 64 tokens on each GPU)
GPUs  ms a step  tokens/step  tokens/s  × plain  per GPU
────────────────────────────────────────────────────────
   1       10.4         3.00     287.9     2.91     100%
   2       10.7         4.00     373.4     3.78      65%
 * 4       11.2         5.00     448.0     4.53      39%
   8       12.1         5.50     456.1     4.61      20%
"""


def test_a_screen_of_80_columns_ends_with_the_verdict() -> None:
    shown = drawn(80)
    assert shown[: len(HEADING)] == HEADING
    assert shown[-WIDE.count("\n") :] == WIDE.splitlines()
    assert WIDE.count("\n") < 40  # of which a small screen shows most


def test_a_screen_of_60_columns_has_all_but_what_is_sent() -> None:
    shown = drawn(60)
    first = shown.index(NARROW.splitlines()[0])
    assert shown[first : first + NARROW.count("\n")] == NARROW.splitlines()
    assert not [line for line in shown if line.startswith("sent")]
    assert "8: 4 key/value heads cannot be split over 8 GPUs" in shown


@pytest.mark.parametrize("size", ["7b", "qwen2.5-7b", "70b"])
@pytest.mark.parametrize("asked", [None, 3, 1000])
@pytest.mark.parametrize("width", [40, 50, 60])
def test_narrow_screens_leave_columns_out_and_cut_nothing(
    size: str, asked: int | None, width: int
) -> None:
    shown = drawn(width, size=size, asked=asked)
    assert not [line for line in shown if "…" in line]
    for column in ("ms a step", "tokens/s", "× plain"):
        assert len([line for line in shown if "GPUs  " in line and column in line]) == 3


def test_what_does_not_fit_is_told_once_with_the_numbers() -> None:
    shown = drawn(80, size="70b", asked=8)
    assert "1, 2, 4, 8: each GPU needs 139 GB, and 38.8 GB can be used" in shown
    assert "lookahead parallelism: one GPU cannot hold the model" in shown
    assert "   1  does not fit        -            -         -        -        -" in shown


def test_on_a_pipe_every_line_is_whole_and_plain(lade: Any) -> None:
    result = lade("plan", *A100, "--gpus", "4", "--model-size", "7b")
    lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert "\x1b" not in result.out
    assert not [line for line in lines if line != line.rstrip()]
    assert lines[0] == (
        "llama-2-7b in bfloat16 (6.7B parameters, 13.5 GB) on NVIDIA A100, 40 GB: estimated, not"
        " measured"
    )
    numbers = [line.split(".")[0].strip() for line in lines[lines.index("") :] if ". " in line[:4]]
    assert numbers == [str(n) for n in range(1, 13)]
    assert (
        "12. more GPUs pay while twice as many bring at least 10% more tokens per second" in lines
    )


def test_with_the_tables_that_are_shipped(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "shipped", SHIPPED)
    ways = (*A100, "--gpus", "4", "--model-size", "7b", "--budget", "60")
    for text, table in SHIPPED().items():
        measured = next(row for row in table.rows if row.budget == 60)
        found = told(lade, *ways, "--text", text)
        rows = found["modes"]["lookahead"]["rows"]
        assert [row["gpus"] for row in rows] == list(measured.ranks)
        assert [row["tokens_per_step"] for row in rows] == list(measured.tokens_per_step)
        lines = lade("plan", *ways, "--text", text).out.splitlines()
        assert "Lookahead parallelism (the model and 60 tokens on each GPU)" in lines
        of = f"{measured.model} ({text!r})"
        assert f"tokens per step: as measured on a small model, {of}; see 9" in lines
        assert [line for line in lines if line.startswith(" 9. tokens per step are those of ")]
    assert lade("plan", *ways).out == lade("plan", *ways, "--text", "stories").out
    assert lade("plan", *ways, "--text", "prose").err == (
        "lade: unknown text 'prose'; tokens per step are known for stories, demo\n"
    )


ONLY = "tensor parallelism with lookahead: "
FEWER = "fewer cannot hold the model, and 8 key/value heads cannot be split over 16 GPUs"


@pytest.mark.parametrize(
    ("gpu", "size", "fields", "counts", "said"),
    [
        (
            *("t4", "7b", {"quantize": "4bit"}, (1, 2, 4, 8)),
            "on one GPU only: weights in nf4 cannot be split",
        ),
        ("rtx4090", "70b", {}, (1, 2, 4, 8), f"possible on 8 GPUs only: {FEWER}"),
        ("rtx4090", "70b", {}, (1, 2, 4, 8, 16), f"possible on 8 GPUs only: {FEWER}"),
        (
            *("a100", "32b", {}, (1, 2)),
            "possible on 2 GPUs only, as far as this table goes: fewer cannot hold the model",
        ),
        (
            *("l4", "qwen2.5-7b", {"link": "450,450"}, (1, 2, 4, 8)),
            "pays up to 4 GPUs: 4 key/value heads cannot be split over 8 GPUs",
        ),
        (
            *("l4", "qwen2.5-7b", {"link": "450,450"}, (1, 2)),
            "pays up to 2 GPUs, as far as this table goes",
        ),
        # Three of them are possible, too, but not in this table.
        (
            *("a100", "7b", {"heads": 3}, (1, 2, 4, 8)),
            "on one GPU only, as far as this table goes",
        ),
        ("a100", "70b", {}, (1, 2), "fits on none of these"),
    ],
)
def test_where_a_mode_is_possible(
    gpu: str, size: str, fields: dict[str, Any], counts: tuple[int, ...], said: str
) -> None:
    heads = fields.pop("heads", None)
    setup = setup_of(gpu, size, **fields)
    if heads:
        setup = replace(setup, shape=replace(setup.shape, heads=heads, kv_heads=heads))
    assert words.verdict(look(setup, counts), TENSOR) == ONLY + said


@pytest.mark.parametrize(
    ("asked", "said"),
    [(2, "with 2 GPUs, one is faster than all 2"), (None, "fastest here, on 1 GPU")],
)
def test_plain_decoding_is_named_where_drafts_do_not_pay(asked: int | None, said: str) -> None:
    outlook = look(setup_of("t4", "7b", quantize="4bit"), (1, 2), asked)
    assert words.best(outlook) == f"{said}: plain decoding, 66.6 tokens/s; drafts do not pay"


@pytest.mark.parametrize(
    ("gpu", "size", "gpus", "said"),
    [
        ("h200", "0.5b", 1, "small kernels take 36%"),
        ("h200", "7b", 1, None),
        ("t4", "7b", 1, None),
        # A model that is split is not captured.
        ("h100", "70b", 8, "launching kernels is 90%"),
    ],
)
def test_kernels_are_told_of_where_they_are_much_of_a_step(
    gpu: str, size: str, gpus: int, said: str | None
) -> None:
    outlook = look(setup_of(gpu, size), [gpus], gpus)
    _, *others = words.caveats(Subject(size, named(gpu), "x"), outlook)
    line = f"{said} of such a step, which more GPUs do not shorten; see 2"
    assert others == ([line] if said else [])


def test_references_follow_the_notes_of_a_model() -> None:
    outlook = look(setup_of("h200", "0.5b"), [1, 2])
    subject = Subject("0.5b", named("h200"), "x", ("noted",))
    numbered = words.assumptions(subject, outlook)
    tokens, launching = words.caveats(subject, outlook)
    assert numbered[int(tokens.rpartition(" ")[2]) - 1].startswith("tokens per step are those of")
    assert numbered[int(launching.rpartition(" ")[2]) - 1].startswith("kernels of a step are one")


def told(lade: Any, *arguments: str) -> dict[str, Any]:
    result = lade("plan", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_the_object_for_programs(lade: Any) -> None:
    found = told(lade, *A100, "--gpus", "16", "--model-size", "70b", "--link", "infiniband")
    assert list(found) == [
        *("schema", "estimated", "model", "gpu", "links", "budget", "context", "text", "asked"),
        *("exchange_bytes", "pays_from", "baseline", "modes", "best", "caveats"),
        "assumptions",
    ]
    assert (found["schema"], found["estimated"], found["asked"]) == ("lade-plan/1", True, 16)
    assert (found["model"]["name"], found["gpu"]["name"]) == ("llama-2-70b", "a100")
    assert found["links"]["between"]["name"] == "infiniband"
    assert (found["baseline"]["gpus"], found["best"]["mode"]) == (4, "tensor")
    assert list(found["modes"]) == ["lookahead", "tensor", "tensor-plain"]
    for mode in found["modes"].values():
        assert list(mode) == ["rows", "stops", "verdict"]
        assert [(row["gpus"], row["nodes"]) for row in mode["rows"]] == [
            *((1, 1), (2, 1), (4, 1), (8, 1), (16, 2))
        ]
        for row in mode["rows"]:
            assert list(row) == [
                *("gpus", "nodes", "possible", "why_not", "needed_bytes", "step_seconds"),
                *("computing_seconds", "drafting_seconds", "talking_seconds", "sent_bytes"),
                *("tokens_per_step", "tokens_per_second", "speedup", "efficiency"),
            ]
            assert row["possible"] == (row["why_not"] is None) == (row["speedup"] is not None)
    last = found["modes"]["tensor"]["rows"][-1]
    assert last["why_not"] == "8 key/value heads cannot be split over 16 GPUs"
    assert last["needed_bytes"] is None


def test_figures_go_together(lade: Any) -> None:
    found = told(lade, *A100, "--model-size", "7b", "--budget", "64")
    plain = found["baseline"]["tokens_per_second"]
    for mode in found["modes"].values():
        first = mode["rows"][0]
        for row in mode["rows"]:
            parts = (row[f"{name}_seconds"] for name in ("computing", "drafting", "talking"))
            assert row["step_seconds"] == pytest.approx(sum(parts))
            speed = row["tokens_per_step"] / row["step_seconds"]
            assert row["tokens_per_second"] == pytest.approx(speed)
            assert row["speedup"] == pytest.approx(speed / plain)
            each = speed / row["gpus"] / first["tokens_per_second"]
            assert row["efficiency"] == pytest.approx(each)
    assert found["exchange_bytes"] == found["modes"]["lookahead"]["rows"][1]["sent_bytes"]
    assert (found["budget"], found["asked"]) == (64, None)


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        ((), [(1, 1), (2, 1), (4, 1), (8, 1)]),
        (("--gpus", "3"), [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1)]),
        (("--gpus", "8", "--nodes", "2"), [(1, 1), (2, 1), (4, 1), (8, 2)]),
        (("--nodes", "2"), [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2)]),
        (("--gpus", "16"), [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2)]),
        (("--gpus-per-node", "1"), [(1, 1), (2, 2), (4, 4), (8, 8)]),
    ],
)
def test_the_numbers_that_are_estimated(
    lade: Any, arguments: tuple[str, ...], counts: list[tuple[int, int]]
) -> None:
    rows = told(lade, *A100, *arguments)["modes"]["lookahead"]["rows"]
    assert [(row["gpus"], row["nodes"]) for row in rows] == counts


@pytest.mark.parametrize(
    ("typed", "name", "memory"),
    [
        *(
            ("A100", "a100", 40e9),
            ("a100 80GB", "a100-80gb", 80e9),
            ("H100 PCIe", "h100-pcie", 80e9),
        ),
        *(("NVIDIA A100-SXM4-80GB", "a100-80gb", 80e9), ("rtx 4090", "rtx4090", 24e9)),
        *(("v100", "v100", 16e9), ("V100 32GB", "v100", 32e9), ("gpu", "gpu", None)),
    ],
)
def test_gpus_are_found(lade: Any, typed: str, name: str, memory: float | None) -> None:
    found = told(lade, "--gpu", typed, "--model-size", "1.5b")["gpu"]
    assert (found["name"], found["memory_bytes"]) == (name, memory)


def test_the_gpu_that_is_here(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "detect", lambda wanted="auto": H200)
    found = told(lade)
    assert (found["gpu"]["name"], found["gpu"]["memory_bytes"]) == ("h200", 150e9)
    monkeypatch.setattr(devices, "detect", lambda wanted="auto": ACME)
    assert lade("plan").err == (
        "lade: no profile knows ACME Accelerator 9000; name a GPU that is like it by --gpu:"
        f" {KNOWN}\n"
    )


def test_a_profile_of_the_user_counts(lade: Any) -> None:
    path = user.path_of("mine")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        'description = "my card"\nmemory = [48e9]\n[hardware]\nbandwidth = 500e9\n'
        'rates = { float32 = 50e12 }\nsource = "me"\n'
    )
    found = told(lade, "--gpu", "mine", "--model-size", "7b")
    assert (found["gpu"]["bandwidth"], found["gpu"]["source"]) == (500e9, "me")
    assert found["links"]["within"]["name"] == "pcie"


def test_a_model_is_planned_from_its_configuration(
    lade: Any, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(lade, model_folder, *A100)
    assert found["model"]["name"] == model_folder
    assert found["model"]["weights"] == "float32"  # as it is stored, and as a GPU would hold it
    assert told(lade, model_folder, *A100, "--dtype", "bfloat16")["model"]["weights"] == "bfloat16"
    # A size that is typed comes before a model that the environment names.
    monkeypatch.setenv("LADE_MODEL", model_folder)
    assert told(lade, *A100)["model"]["name"] == model_folder
    assert told(lade, *A100, "--model-size", "8b")["model"]["name"] == "llama-3-8b"


def test_without_a_model_a_usual_one_stands_for_it_and_that_is_said(lade: Any) -> None:
    found = told(lade, *A100)
    assert found["model"]["name"] == "llama-2-7b"
    assert found["assumptions"][0] == "no model was named, so llama-2-7b stands for one of 7b"


@pytest.mark.parametrize(
    ("arguments", "model", "end"),
    [
        ((), "llama-2-7b, since no model was named,", "40 GB"),
        (("--model-size", "7b"), "llama-2-7b", "40 GB"),
        (("--gpus", "8", "--model-size", "7b"), "llama-2-7b", "40 GB"),
        *(
            (("--model-size", "7b", *options), "llama-2-7b", f"40 GB, {spread}")
            for options, spread in (
                (("--gpus", "1000"), "1000 of them in 125 nodes of 8 GPUs"),
                (("--nodes", "2"), "up to 16 of them in 2 nodes of 8 GPUs"),
                (("--nodes", "1", "--gpus", "32"), "32 of them in one node"),
                (("--gpus-per-node", "1", "--gpus", "2"), "2 of them in 2 nodes of 1 GPU"),
            )
        ),
    ],
)
def test_the_heading_says_what_nobody_typed(
    lade: Any, arguments: tuple[str, ...], model: str, end: str
) -> None:
    first = lade("plan", *A100, *arguments).out.splitlines()[0]
    size = "in bfloat16 (6.7B parameters, 13.5 GB)"
    assert first == f"{model} {size} on NVIDIA A100, {end}: estimated, not measured"


@pytest.mark.parametrize(
    ("low", "high", "gain", "said"),
    [
        (2, 4, 0.0996, "going from 2 to 4 brings only 9.9% more tokens per second"),
        (1, 2, 0.069, "going from 1 to 2 brings only 6.9% more tokens per second"),
        (
            *(1, 4, 0.05),
            "going from 1 to 4 brings only 5.0% more tokens per second for each doubling",
        ),
    ],
)
def test_a_gain_that_is_too_small_does_not_read_like_one_that_pays(
    low: int, high: int, gain: float, said: str
) -> None:
    assert words._gain(low, high, gain) == f"{said}, and it takes 10% to pay"


def test_no_gain_is_no_number() -> None:
    assert words._gain(2, 4, 0.0004) == "4 are no faster than 2"
    assert words._gain(2, 4, -0.02) == "4 are slower than 2"
    assert words._gain(1, 2, -0.02) == "2 are slower"


def test_the_budget_is_the_profiles_or_the_users(lade: Any) -> None:
    found = told(lade, *A100, "--model-size", "7b")
    assert found["budget"] == 128
    told_of = "every step feeds {} tokens on each GPU ({}), or one where drafts do not pay"
    assert told_of.format(128, "derived, profile a100") in found["assumptions"]
    given = told(lade, *A100, "--model-size", "7b", "--budget", "16")
    assert told_of.format(16, "as asked for") in given["assumptions"]


def test_headings_cannot_drive_a_terminal() -> None:
    stream = Screen()
    console = Console(file=stream, width=80, force_terminal=False)
    outlook = look(setup_of(), [1, 2])
    subject = Subject("evil\x1b[31m", named("a100"), "x", ("noted\x1b[0m",))
    report.show(subject, outlook, console)
    assert "\x1b" in heading(subject, outlook)
    assert "\x1b" not in stream.getvalue()


def test_the_help_names_the_texts_that_there_are(lade: Any) -> None:
    said = " ".join(lade("plan", "--help").out.replace("│", " ").split())
    first, *others = SHIPPED()
    assert f"{first} (default) or {', '.join(others)}." in said


def test_what_is_planned_belongs_to_one_call() -> None:
    table = table_of(app)
    own = {"gpus", "gpu", "model_size", "context_tokens", "nodes", "gpus_per_node", "link", "text"}
    assert own <= table.given_anew


def test_planning_loads_no_torch() -> None:
    code = (
        "import sys; from ladecli.program import entry;"
        "entry(['plan', '--gpu', 'a100', '--model-size', '7b']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
