"""`lade plan` at the door: what is refused, what is estimated, and what is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from ladecli import device as devices
from ladecli.device import Device
from ladecli.profiles import user

A100 = ("--gpu", "a100")
ON_7B = (*A100, "--model-size", "7b")
MODES = ("lookahead", "tensor", "tensor-plain")


def planned(lade: Any, *arguments: str) -> dict[str, Any]:
    """What --json prints."""
    result = lade("plan", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    found: dict[str, Any] = json.loads(result.out)
    return found


def rows(lade: Any, mode: str, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = planned(lade, *arguments)["modes"][mode]["rows"]
    return found


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*A100, "--gpus", "0"), "gpus must be from 1 to 1024, not 0"),
        ((*A100, "--gpus", "5000"), "gpus must be from 1 to 1024, not 5000"),
        ((*A100, "--nodes", "0"), "nodes must be from 1"),
        ((*A100, "--gpus-per-node", "0"), "gpus-per-node must be from 1"),
        ((*A100, "--context", "0"), "context must be from 1"),
        ((*A100, "--budget", "0"), "budget must be at least 1"),
        ((*A100, "--budget", "1"), "use 2 or more"),
        ((*A100, "--dtype", "int3"), "'int3'"),
        ((*A100, "--gpus", "6", "--nodes", "4"), "--gpus-per-node"),
        ((*A100, "--gpus", "2", "--nodes", "4"), "--gpus-per-node"),
        ((*A100, "--gpus", "9", "--nodes", "2", "--gpus-per-node", "4"), "--gpus-per-node"),
        (("--gpu", "h10"), "unknown GPU 'h10'; did you mean h100? --gpu takes a100, a100-80gb,"),
        (("--gpu", "banana"), "unknown GPU 'banana'"),
        (("--gpu", "apple"), "unknown GPU 'apple'"),
        (("--gpu", "A100 MIG 1g.5gb"), "unknown GPU"),  # a slice of one is not one
        ((), "no GPU is here to plan for; name one by --gpu"),
        ((*A100, "--model-size", "9b"), "unknown model size '9b'; known: 0.5b, 1b,"),
        ((*A100, "--model-size", "-7b"), "unknown model size '-7b'"),
        (("demo", *ON_7B), "leave --model-size out"),
        ((*A100, "--link", "token"), "unknown link 'token'; use nvlink, pcie, infiniband,"),
        ((*A100, "--link", ""), "unknown link ''"),
        ((*A100, "--link", "-3"), "unknown link '-3'"),
        ((*A100, "--link", "nan"), "unknown link 'nan'"),
        ((*A100, "--link", "nvlink,pcie"), "two links within nodes"),
        ((*A100, "--link", "1,2,3", "--nodes", "2"), "two links between nodes"),
        ((*A100, "--link", "ethernet", "--gpus", "4"), "add --nodes or --gpus-per-node"),
        ((*A100, "--text", "prose"), "tokens per step are known for stories, demo"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    lade: Any, arguments: tuple[str, ...], named: str
) -> None:
    result = lade("plan", *arguments)
    assert (result.code, result.out) == (2, "")
    assert named in result.err
    assert result.err.count("\n") == 1


def test_a_model_that_is_not_here(lade: Any) -> None:
    result = lade("plan", *A100, "no/such", "--offline")
    assert (result.code, result.out) == (1, "")
    assert "no/such" in result.err
    assert result.err.count("\n") == 1


def test_the_keys_of_the_object(lade: Any) -> None:
    found = planned(lade, *A100, "--gpus", "16", "--model-size", "70b", "--link", "infiniband")
    assert list(found) == [
        *("schema", "estimated", "model", "gpu", "links", "budget", "context", "text", "asked"),
        *("exchange_bytes", "pays_from", "baseline", "modes", "best", "caveats"),
        "assumptions",
    ]
    assert (found["schema"], found["estimated"], found["asked"]) == ("lade-plan/1", True, 16)
    assert (found["model"]["name"], found["gpu"]["name"]) == ("llama-2-70b", "a100")
    assert set(found["gpu"]) == {
        *("name", "description", "memory_bytes", "bandwidth", "arithmetic", "source")
    }
    assert list(found["links"]) == ["gpus_per_node", "within", "between"]
    assert set(found["links"]["between"]) == {"name", "bandwidth", "hops", "source"}
    for key in ("baseline", "best"):
        assert list(found[key]) == ["mode", "gpus", "step_seconds", "tokens_per_second"]
    assert tuple(found["modes"]) == MODES
    for mode in found["modes"].values():
        assert list(mode) == ["rows", "stops", "verdict"]
        for row in mode["rows"]:
            assert list(row) == [
                *("gpus", "nodes", "possible", "why_not", "needed_bytes", "step_seconds"),
                *("computing_seconds", "drafting_seconds", "talking_seconds", "sent_bytes"),
                *("tokens_per_step", "tokens_per_second", "speedup", "efficiency"),
            ]
            assert row["possible"] == (row["why_not"] is None) == (row["speedup"] is not None)


def test_figures_go_together(lade: Any) -> None:
    found = planned(lade, *ON_7B, "--budget", "64")
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


def test_a_plain_step_takes_as_long_as_reading_the_weights(lade: Any) -> None:
    found = planned(lade, *ON_7B)
    # Llama-2-7B: 13.48 GB of weights and 0.54 GB of keys and values, at 1,555 GB/s: 9 ms.
    assert found["baseline"]["step_seconds"] == pytest.approx((13.48 + 0.54) / 1555, rel=0.05)
    assert found["baseline"]["gpus"] == 1
    wide = found["modes"]["lookahead"]["rows"][0]
    # The step of 128 tokens multiplies for 5.5 ms meanwhile, so that it hardly takes longer.
    assert 1 < wide["step_seconds"] / found["baseline"]["step_seconds"] < 1.25


def test_tokens_per_step_are_the_measured_ones(lade: Any) -> None:
    ways = (*ON_7B, "--budget", "60")
    stories = [row["tokens_per_step"] for row in rows(lade, "lookahead", *ways)]
    assert stories == [3.06, 3.57, 4.17, 4.68]
    demo = planned(lade, *ways, "--text", "demo")
    assert demo["text"] == "demo"
    assert [row["tokens_per_step"] for row in demo["modes"]["lookahead"]["rows"]] == [
        *(3.05, 3.39, 3.74, 4.2)
    ]
    # A split model drafts as one rank does.
    assert {row["tokens_per_step"] for row in rows(lade, "tensor", *ways)} == {3.06}
    assert {row["tokens_per_step"] for row in rows(lade, "tensor-plain", *ways)} == {1.0}
    # Beyond what was measured more ranks bring less and less; a wider step brings nothing.
    more = [row["tokens_per_step"] for row in rows(lade, "lookahead", *ways, "--gpus", "64")]
    gains = [b - a for a, b in pairwise(more[3:])]
    assert all(a == pytest.approx(2 * b) for a, b in pairwise(gains))
    assert gains[0] == pytest.approx((4.68 - 4.17) / 2)
    widest = rows(lade, "lookahead", *ON_7B, "--budget", "500")
    assert [row["tokens_per_step"] for row in widest] == [3.63, 4.23, 4.72, 5.23]


def test_lookahead_parallelism_exchanges_the_same_for_any_model(lade: Any) -> None:
    found = [
        rows(lade, "lookahead", "--gpu", "h200", "--budget", "64", "--model-size", size)[1:]
        for size in ("0.5b", "7b", "70b")
    ]
    assert len({row["sent_bytes"] for each in found for row in each if row["possible"]}) == 1
    assert found[0][0]["sent_bytes"] < 4096
    small, large = found[0], found[1]
    assert [row["talking_seconds"] for row in small] == [row["talking_seconds"] for row in large]
    assert len({row["computing_seconds"] for row in large}) == 1
    assert all(a["step_seconds"] < b["step_seconds"] for a, b in pairwise(large))


def test_a_split_model_needs_less_of_each_gpu_and_computes_faster(lade: Any) -> None:
    found = rows(lade, "tensor-plain", "--gpu", "l4", "--model-size", "13b")
    assert all(a["needed_bytes"] > 1.7 * b["needed_bytes"] for a, b in pairwise(found))
    possible = [row for row in found if row["possible"]]
    assert [row["gpus"] for row in possible] == [2, 4, 8]
    seconds = [row["computing_seconds"] for row in possible]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 1.4 * seconds[1]


@pytest.mark.parametrize("mode", MODES)
def test_a_slower_link_makes_nothing_faster(lade: Any, mode: str) -> None:
    for links, cluster in (
        (("nvlink", "pcie"), ()),
        (("450", "32", "5", "0.1"), ()),
        (("infiniband", "ethernet"), ("--gpus-per-node", "2")),
    ):
        speeds = [
            [row["tokens_per_second"] for row in rows(lade, mode, *ON_7B, *cluster, "--link", link)]
            for link in links
        ]
        assert all(
            a >= b for fast, slow in pairwise(speeds) for a, b in zip(fast, slow, strict=True)
        )
        assert speeds[0] > speeds[-1]


@pytest.mark.parametrize(
    ("gpu", "link", "within", "between"),
    [
        ("a100", None, ("nvlink", 300), ("ethernet", 12.5)),
        ("h100", None, ("nvlink", 450), ("ethernet", 12.5)),
        ("t4", None, ("pcie", 16), ("ethernet", 12.5)),
        ("h100", "pcie", ("pcie", 64), ("ethernet", 12.5)),
        ("l4", "NVLink", ("nvlink", 300), ("ethernet", 12.5)),
        ("a100", "infiniband, pcie", ("pcie", 32), ("infiniband", 25)),
        ("a100", "50", ("nvlink", 300), ("link", 50)),
        ("a100", "pcie,1.25", ("pcie", 32), ("link", 1.25)),
    ],
)
def test_links(
    lade: Any, gpu: str, link: str | None, within: tuple[str, float], between: tuple[str, float]
) -> None:
    wanted = ("--link", link) if link else ()
    found = planned(lade, "--gpu", gpu, "--model-size", "7b", "--gpus", "16", *wanted)["links"]
    told = [
        (found[place]["name"], found[place]["bandwidth"] / 1e9) for place in ("within", "between")
    ]
    assert told == [within, between]


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
def test_numbers_of_gpus_and_nodes(
    lade: Any, arguments: tuple[str, ...], counts: list[tuple[int, int]]
) -> None:
    for mode in MODES:
        found = rows(lade, mode, *ON_7B, *arguments)
        assert [(row["gpus"], row["nodes"]) for row in found] == counts


@pytest.mark.parametrize(
    ("gpu", "size", "extra", "possible", "why"),
    [
        ("a100", "qwen2.5-7b", (), [1, 2, 4], "4 key/value heads cannot be split over 8 GPUs"),
        ("a100", "70b", (), [4, 8], None),
        ("rtx4090", "70b", ("--gpus", "16"), [8], "8 key/value heads cannot be split over 16 GPUs"),
        ("t4", "7b", ("--quantize", "4bit"), [1], "weights in nf4 cannot be split"),
        ("gpu", "405b", (), [1, 2, 4, 8], None),  # of unknown memory
    ],
)
def test_what_fits_and_can_be_split(
    lade: Any, gpu: str, size: str, extra: tuple[str, ...], possible: list[int], why: str | None
) -> None:
    found = rows(lade, "tensor", "--gpu", gpu, "--model-size", size, *extra)
    assert [row["gpus"] for row in found if row["possible"]] == possible
    last = found[-1]
    assert last["why_not"] == why
    assert (last["needed_bytes"] is None) == (why is not None)


@pytest.mark.parametrize(
    ("gpu", "size", "gpus", "extra", "helps"),
    [
        ("a100", "70b", 2, (), ["70b needs", "--gpus 4"]),
        ("a100", "32b", 1, (), ["--quantize 8bit", "--gpus 2"]),
        ("a100", "7b", 1, ("--context", "100000"), ["100,000 tokens of context", "--context "]),
        ("t4", "70b", 8, (), ["smaller model"]),
    ],
)
def test_a_model_that_is_too_large_is_refused_with_what_helps(
    lade: Any, gpu: str, size: str, gpus: int, extra: tuple[str, ...], helps: list[str]
) -> None:
    result = lade("plan", "--gpu", gpu, "--model-size", size, "--gpus", str(gpus), *extra)
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert [each for each in helps if each not in result.err] == []
    if "--context " in helps:
        context = result.err.split("--context ")[1].split()[0]
        assert lade("plan", *ON_7B, "--gpus", "1", "--context", context).code == 0


def test_where_more_gpus_stop_paying(lade: Any) -> None:
    found = planned(lade, *ON_7B, "--gpus", "6")
    stop = found["modes"]["lookahead"]["stops"]
    speeds = {row["gpus"]: row["tokens_per_second"] for row in found["modes"]["lookahead"]["rows"]}
    assert (stop["gpus"], stop["beyond"]) == (2, 4)
    assert speeds[2] / speeds[1] - 1 >= found["pays_from"] > stop["gain"]
    assert stop["gain"] == pytest.approx(speeds[4] / speeds[2] - 1)
    best = found["best"]
    assert best["tokens_per_second"] == max(speeds[gpus] for gpus in (1, 2, 4, 6))
    none = planned(lade, *A100, "--model-size", "70b")["modes"]["lookahead"]
    assert none["stops"] is None
    assert planned(lade, "--gpu", "l4", "--model-size", "qwen2.5-7b", "--link", "450")["modes"][
        "tensor-plain"
    ]["stops"] == {"gpus": 4, "beyond": None, "gain": None}


def test_the_baseline_and_the_best_are_possible(lade: Any) -> None:
    large = planned(lade, *A100, "--gpus", "4", "--model-size", "70b")
    assert (large["baseline"]["mode"], large["baseline"]["gpus"]) == ("tensor-plain", 4)
    assert large["best"]["gpus"] <= 4
    # bitsandbytes unpacks all weights for the first draft token: plain decoding is as fast.
    packed = planned(lade, "--gpu", "t4", "--model-size", "7b", "--quantize", "4bit")
    assert packed["best"] == packed["baseline"]
    assert packed["best"]["mode"] == "tensor-plain"


@pytest.mark.parametrize(
    ("typed", "name", "memory"),
    [
        *(("A100", "a100", 40e9), ("a100 80GB", "a100-80gb", 80e9)),
        *(("NVIDIA A100-SXM4-80GB", "a100-80gb", 80e9), ("H100 PCIe", "h100-pcie", 80e9)),
        *(("rtx 4090", "rtx4090", 24e9), ("v100", "v100", 16e9), ("V100 32GB", "v100", 32e9)),
        ("gpu", "gpu", None),
    ],
)
def test_names_of_gpus(lade: Any, typed: str, name: str, memory: float | None) -> None:
    found = planned(lade, "--gpu", typed, "--model-size", "1.5b")["gpu"]
    assert (found["name"], found["memory_bytes"]) == (name, memory)


def test_the_gpu_that_is_here(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Device("cuda", "cuda:0", "NVIDIA H200", int(150e9))
    monkeypatch.setattr(devices, "detect", lambda: here)
    found = planned(lade)["gpu"]
    assert (found["name"], found["memory_bytes"]) == ("h200", 150e9)
    here = Device("cuda", "cuda:0", "ACME 9000", int(16e9))
    result = lade("plan")
    assert result.code == 2
    assert "ACME 9000" in result.err
    assert "--gpu" in result.err


def test_a_profile_of_the_user_counts(lade: Any) -> None:
    path = user.path_of("mine")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        'description = "my card"\nmemory = [48e9]\n[hardware]\nbandwidth = 500e9\n'
        'rates = { float32 = 50e12 }\nsource = "me"\n'
    )
    found = planned(lade, "--gpu", "mine", "--model-size", "7b")
    assert (found["gpu"]["bandwidth"], found["gpu"]["source"]) == (500e9, "me")
    assert found["links"]["within"]["name"] == "pcie"


@pytest.mark.parametrize(
    ("size", "name"),
    [
        *(("7b", "llama-2-7b"), (" 8B ", "llama-3-8b"), ("70.0", "llama-2-70b")),
        *(("8x7b", "mixtral-8x7b"), ("meta-llama/Llama-3.1-70B", "llama-3-70b")),
    ],
)
def test_sizes_of_models(lade: Any, size: str, name: str) -> None:
    assert planned(lade, "--gpu", "b200", "--model-size", size)["model"]["name"] == name


def test_types_of_weights(lade: Any) -> None:
    def model(gpu: str, *options: str) -> dict[str, Any]:
        found: dict[str, Any] = planned(lade, "--gpu", gpu, "--model-size", "7b", *options)["model"]
        return found

    assert model("a100")["weight_bytes"] == 2 * model("a100")["parameters"]
    assert model("v100", "--gpus", "2")["weights"] == "float16"
    assert model("a100", "--dtype", "float32")["weight_bytes"] == 4 * 6.74e9
    packed = model("a100", "--quantize", "4bit")
    assert (packed["weights"], packed["compute"]) == ("nf4", "bfloat16")
    assert packed["weight_bytes"] < 0.33 * 2 * packed["parameters"]


def test_a_model_is_planned_from_its_configuration(
    lade: Any, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planned(lade, model_folder, *A100)["model"]
    assert (found["name"], found["weights"]) == (model_folder, "float32")  # as it is stored
    half = planned(lade, model_folder, *A100, "--dtype", "bfloat16")["model"]
    assert half["weights"] == "bfloat16"
    # A size that is typed comes before a model that the environment names.
    monkeypatch.setenv("LADE_MODEL", model_folder)
    assert planned(lade, *A100)["model"]["name"] == model_folder
    assert planned(lade, *A100, "--model-size", "8b")["model"]["name"] == "llama-3-8b"


def test_a_table_ends_with_the_conclusion(lade: Any) -> None:
    result = lade("plan", *ON_7B, "--gpus", "4")
    found = planned(lade, *ON_7B, "--gpus", "4")
    assert (result.code, result.err) == (0, "")
    assert "\x1b" not in result.out
    lines = result.out.splitlines()
    assert "llama-2-7b" in lines[0]
    assert "estimated" in lines[0]
    above = lines[: lines.index("Assumptions")]
    table = [line.split() for line in above if line.startswith(MODES)]
    for mode in MODES:
        shown = [cells for cells in table if cells[0] == mode]
        assert [cells[-3] for cells in shown] == [
            f"{row['tokens_per_second']:.1f}" for row in found["modes"][mode]["rows"]
        ]
        assert [cells[1] for cells in shown] == ["1", "2", "4", "8"]
        assert found["modes"][mode]["verdict"] in lines
    assert all(f"- {text}" in lines for text in found["assumptions"])
    assert "lookahead parallelism on 4 GPUs" in lines[-1]
    assert f"{found['best']['tokens_per_second']:.3g} tokens/s" in lines[-1]


def test_what_does_not_fit_is_shown_with_the_reason(lade: Any) -> None:
    out = lade("plan", "--gpu", "rtx4090", "--model-size", "70b", "--gpus", "16").out
    assert out.count("does not fit") == 11
    assert out.count("indivisible") == 2
    assert "8 key/value heads cannot be split over 16 GPUs" in out


def test_the_default_model_and_the_budget_are_said(lade: Any) -> None:
    found = planned(lade, *A100)
    assert found["model"]["name"] == "llama-2-7b"
    assert "llama-2-7b" in found["assumptions"][0]
    assert [
        text for text in found["assumptions"] if "128 tokens on each GPU (profile a100)" in text
    ]
    given = planned(lade, *A100, "--budget", "16")["assumptions"]
    assert [text for text in given if "16 tokens on each GPU (as asked for)" in text]


def test_planning_loads_no_torch() -> None:
    code = (
        "import sys; from ladecli.cli import entry;"
        "entry(['plan', '--gpu', 'a100', '--model-size', '7b']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
