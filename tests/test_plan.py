"""`lade plan` at the door: what is refused, what is estimated, and what is shown."""

from __future__ import annotations

from typing import Any

import pytest

from ladecli.specs.device import Device

from .hub_files import use_devices
from .profiles.makers import ACME, OWN, put

A100 = ("--gpu", "a100")
ON_7B = (*A100, "--model-size", "7b")
MODES = ("lookahead", "tensor", "tensor-plain")
ROW = {
    *("mode", "gpus", "nodes", "possible", "why_not", "needed_bytes", "sent_bytes"),
    *("computing_seconds", "drafting_seconds", "talking_seconds", "step_seconds"),
    *("tokens_per_step", "tokens_per_second", "speedup", "efficiency"),
}


def planned(lade: Any, *arguments: str) -> dict[str, Any]:
    """What --json prints."""
    result = lade("plan", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    found: dict[str, Any] = result.json()
    return found


def rows(lade: Any, mode: str, *arguments: str) -> Any:
    return planned(lade, *arguments)["modes"][mode]["rows"]


def test_the_keys_of_the_object(lade: Any) -> None:
    found = planned(lade, *A100, "--gpus", "16", "--model-size", "70b", "--link", "infiniband")
    assert set(found) == {
        *("schema", "model", "gpu", "links", "budget", "context", "asked"),
        *("pays_from", "baseline", "modes", "best", "assumptions"),
    }
    assert (found["schema"], found["asked"]) == ("lade-plan/1", 16)
    assert (found["model"]["name"], found["gpu"]["name"]) == ("llama-2-70b", "a100")
    assert {"description", "memory_bytes", "bandwidth", "arithmetic", "source"} <= set(found["gpu"])
    assert set(found["links"]) == {"gpus_per_node", "within", "between"}
    for key in ("baseline", "best"):
        assert set(found[key]) == {"mode", "gpus", "step_seconds", "tokens_per_second"}
    for mode in found["modes"].values():
        assert set(mode) == {"rows", "stops", "verdict"}
        for row in mode["rows"]:
            assert set(row) == ROW
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
    assert (found["budget"], found["asked"]) == (64, None)
    # Llama-2-7B: 13.48 GB of weights and 0.54 GB of keys and values, at 0.85 of 1,555 GB/s, and 30
    # us for each of 32 layers: 11.6 ms.
    reading = (13.48 + 0.54) / (0.85 * 1555)
    assert found["baseline"]["step_seconds"] == pytest.approx(reading + 32 * 30e-6, rel=0.01)


def test_tokens_per_step_are_the_measured_ones(lade: Any) -> None:
    options = (*ON_7B, "--budget", "60")
    found = {mode: rows(lade, mode, *options) for mode in MODES}
    assert [row["tokens_per_step"] for row in found["lookahead"]] == [3.06, 3.57, 4.17, 4.68]
    # A split model drafts as one rank does.
    assert {row["tokens_per_step"] for row in found["tensor"]} == {3.06}
    assert {row["tokens_per_step"] for row in found["tensor-plain"]} == {1.0}
    widest = rows(lade, "lookahead", *ON_7B, "--budget", "200")
    assert [row["tokens_per_step"] for row in widest] == [3.63, 4.23, 4.72, 5.23]
    slow = rows(lade, "lookahead", *options, "--link", "0.01")
    pairs = zip(found["lookahead"][1:], slow[1:], strict=True)
    assert all(a["tokens_per_second"] > b["tokens_per_second"] for a, b in pairs)


@pytest.mark.parametrize(
    ("gpu", "link", "within", "between"),
    [
        ("a100", None, ("nvlink", 300), ("ethernet", 12.5)),
        ("t4", None, ("pcie", 16), ("ethernet", 12.5)),
        ("h100", "pcie", ("pcie", 64), ("ethernet", 12.5)),
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
    for place, (name, speed) in (("within", within), ("between", between)):
        assert (found[place]["name"], found[place]["bandwidth"]) == (name, speed * 1e9)


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        ((), [(1, 1), (2, 1), (4, 1), (8, 1)]),
        (("--gpus", "3"), [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1)]),
        (("--gpus", "8", "--nodes", "2"), [(1, 1), (2, 1), (4, 1), (8, 2)]),
        (("--nodes", "2"), [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2)]),
    ],
)
def test_numbers_of_gpus_and_nodes(
    lade: Any, arguments: tuple[str, ...], counts: list[tuple[int, int]]
) -> None:
    for mode in planned(lade, *ON_7B, *arguments)["modes"].values():
        assert [(row["gpus"], row["nodes"]) for row in mode["rows"]] == counts


@pytest.mark.parametrize(
    ("gpu", "size", "extra", "possible", "why"),
    [
        ("a100", "qwen2.5-7b", (), [1, 2, 4], "4 key/value heads cannot be split over 8 GPUs"),
        ("a100", "70b", (), [4, 8], None),
        ("t4", "7b", ("--quantize", "4bit"), [1], "weights in nf4 cannot be split"),
        ("gpu", "405b", (), [1, 2, 4, 8], None),  # of unknown memory
    ],
)
def test_what_fits_and_can_be_split(
    lade: Any, gpu: str, size: str, extra: tuple[str, ...], possible: list[int], why: str | None
) -> None:
    found = rows(lade, "tensor", "--gpu", gpu, "--model-size", size, *extra)
    assert [row["gpus"] for row in found if row["possible"]] == possible
    assert found[-1]["why_not"] == why


def test_where_more_gpus_stop_paying(lade: Any) -> None:
    found = planned(lade, *A100, "--model-size", "13b", "--gpus", "6")
    stop = found["modes"]["lookahead"]["stops"]
    speeds = {row["gpus"]: row["tokens_per_second"] for row in found["modes"]["lookahead"]["rows"]}
    assert (stop["gpus"], stop["beyond"]) == (2, 4)
    assert speeds[2] / speeds[1] - 1 >= found["pays_from"] > stop["gain"]
    assert stop["gain"] == pytest.approx(speeds[4] / speeds[2] - 1)
    assert found["best"]["tokens_per_second"] == max(speeds[gpus] for gpus in (1, 2, 4, 6))
    large = planned(lade, *A100, "--model-size", "70b", "--gpus", "4")
    assert large["modes"]["lookahead"]["stops"] is None
    assert (large["baseline"]["mode"], large["baseline"]["gpus"]) == ("tensor-plain", 4)
    # bitsandbytes unpacks all weights for the first draft token: plain decoding is as fast.
    packed = planned(lade, "--gpu", "t4", "--model-size", "7b", "--quantize", "4bit")
    assert packed["best"] == packed["baseline"]


def test_the_gpu_that_is_here(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use_devices(monkeypatch, Device("cuda", "cuda:0", "H200", int(150e9)))
    found = planned(lade)["gpu"]
    assert (found["name"], found["memory_bytes"]) == ("h200", 150e9)
    hardware = '[hardware]\nbandwidth = 2e12\nrates = { float32 = 1e14 }\nsource = "me"\n'
    put("h200", OWN.replace("A100", "H200").replace("[[setting]]", f"{hardware}[[setting]]"))
    found = planned(lade)["gpu"]
    assert (found["bandwidth"], found["source"]) == (2e12, "me"), "the user's own counts"
    use_devices(monkeypatch, ACME)
    assert f"unknown GPU {ACME.label!r}" in lade("plan").refused()


@pytest.mark.parametrize(
    ("size", "options", "name", "weights"),
    [
        ("llama-2-7b", ("--dtype", "float16"), "llama-2-7b", "float16"),
        ("13B", ("--dtype", "float32"), "llama-2-13b", "float32"),
        ("7", ("--quantize", "8bit"), "llama-2-7b", "int8"),
    ],
)
def test_models(lade: Any, size: str, options: tuple[str, ...], name: str, weights: str) -> None:
    found = planned(lade, *A100, "--model-size", size, *options)
    assert (found["model"]["name"], found["model"]["weights"]) == (name, weights)
    assert f"--model-size {size} is read as {name}" in found["assumptions"]


def test_a_page_begins_with_the_verdict_and_fits(lade: Any, wide_screen: Any) -> None:
    wide_screen(80)
    result = lade("plan", *ON_7B, "--gpus", "4", "--color", "never")
    assert (result.code, result.err) == (0, "")
    assert "\x1b" not in result.out
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    verdict = next(n for n, line in enumerate(lines) if line.startswith("fastest"))
    table = next(n for n, line in enumerate(lines) if line.startswith("mode"))
    assert verdict < table < lines.index("Assumptions")
    assert lines[table + 2].split() == ["lookahead", "1", "13.7", "3.41", "248.5", "2.87", "100%"]
