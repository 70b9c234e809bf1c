"""`lade profiles` and `lade profiles show`: tables that fit, and objects for programs."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from rich.text import Text

from ladecli import device as devices
from ladecli import profiles, rates
from ladecli.device import Device
from ladecli.option_fields import config_path
from ladecli.profiles import Rates, user
from ladecli.profiles.schema import VALUES

from .makers import tuned

EPYC = Device("cpu", "cpu", "AMD EPYC", 8 << 30, 1)
A100 = Device("cuda", "cuda:0", "NVIDIA A100-SXM4-80GB", int(85e9))
ACME = Device("cuda", "cuda:0", "ACME Accelerator 9000", int(16e9))
OWN = 'description = "mine"\n[[setting]]\nwindow=3\nngram=3\nguesses=3\norigin="measured: x"\n'


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This machine has what a test says, an EPYC to begin with."""
    monkeypatch.setattr(devices, "detect", lambda wanted="auto": EPYC)
    monkeypatch.setattr(rates, "measure_rates", lambda device, dtype: Rates(5e11, 5e13, "here"))
    monkeypatch.setenv("COLUMNS", "80")
    return monkeypatch


def put(name: str, text: str) -> None:
    user.path_of(name).parent.mkdir(parents=True, exist_ok=True)
    user.path_of(name).write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("here")
def test_the_list_marks_this_machine(lade: Any) -> None:
    result = lade("profiles")
    lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert lines[0].split() == ["profile", "for", "GB/s", "TFLOP/s", "from"]
    assert [line.split()[0] for line in lines[1:4]] == ["a100", "a100-80gb", "a10g"]
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["cpu", "cpu"]
    assert "AMD EPYC, 1 thread" in lines[-1]
    assert [line for line in lines if line != line.rstrip() or len(line) > 80] == []


@pytest.mark.parametrize(("device", "marked"), [(A100, ["a100-80gb", "a100-80gb"]), (ACME, ["no"])])
def test_a_gpu_is_marked_by_its_name_and_memory(
    here: pytest.MonkeyPatch, lade: Any, device: Device, marked: list[str]
) -> None:
    here.setattr(devices, "detect", lambda wanted="auto": device)
    lines = lade("profiles").out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*")] == marked


@pytest.mark.usefixtures("here")
def test_the_users_profiles_are_listed(lade: Any) -> None:
    user.write(tuned(versions=user.versions_here()))
    user.write(tuned(versions={"torch": "1.0"}, attention="reference"))
    put("a100", OWN)
    put("broken", "[")
    put("esc", OWN.replace("mine", "\\u001b[31mred"))
    result = lade("profiles")
    lines = [line for line in result.out.splitlines() if line.strip()]
    row = {line.removeprefix("*").split()[0]: line for line in lines}
    assert row["a100"].endswith("yours, before the shipped one")
    assert row[tuned().name].startswith("*")
    assert row[tuned().name].endswith("tuned")
    assert row[tuned(attention="reference").name].startswith(" "), "outdated"
    assert "\x1b" not in result.out
    assert result.err.startswith("lade: profile broken is no valid TOML")
    assert result.err.count("\n") == 1

    result = lade("profiles", "--json")
    found = json.loads(result.out)
    assert result.err == ""
    assert (found["schema"], found["profile"]) == (1, "cpu")
    assert found["device"] == {"kind": "cpu", "label": "AMD EPYC", "memory_bytes": 8 << 30}
    rows = {row["name"]: row for row in found["profiles"]}
    assert list(rows) == sorted(rows)
    assert rows["a100"]["shadows_shipped"]
    assert rows["a100"]["path"] == str(user.path_of("a100"))
    assert rows["h100"]["hardware"]["bandwidth"] == 3350e9
    assert [name for name, row in rows.items() if row["this_machine"]] == ["cpu", tuned().name]
    assert len(found["notices"]) == 1


@pytest.mark.parametrize("name", profiles.shipped_names())
@pytest.mark.usefixtures("here")
def test_every_profile_can_be_shown(name: str, lade: Any) -> None:
    result = lade("profiles", "show", name)
    profile = profiles.read(name)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{name}: {profile.description}\n")
    if profile.hardware:
        assert profile.hardware.source in result.out
        assert "\na  derived: from " in result.out
    for entry in (*profile.settings, *profile.papers):
        assert str(getattr(entry, "source", None) or getattr(entry, "origin", "")) in result.out


def test_a_coloured_page_fits_80_columns(here: pytest.MonkeyPatch, lade: Any) -> None:
    here.setattr(sys.stdout, "isatty", lambda: True)
    out = lade("profiles", "show", "a100-80gb", "--color", "always").out
    assert "\x1b[1m" in out
    lines = Text.from_ansi(out).plain.splitlines()
    assert max(map(len, lines)) <= 80
    sizes = [line.split()[:2] for line in lines if line.startswith("7B ")]
    assert sizes == [["7B", "bfloat16"], ["7B", "int8"], ["7B", "nf4"]]


def test_without_a_name_it_is_this_machines(here: pytest.MonkeyPatch, lade: Any) -> None:
    assert lade("profiles", "show").out.startswith("cpu: ")
    here.setattr(devices, "detect", lambda wanted="auto": ACME)
    result = lade("profiles", "show")
    assert result.out.startswith("measured here: ")
    assert "derived: from 500 GB/s and 50 TFLOP/s (here)" in result.out
    assert result.err.startswith("lade: no profile knows ACME Accelerator 9000")
    assert result.err.count("\n") == 1


def test_the_settings_for_a_model(lade: Any) -> None:
    out = lade("profiles", "show", "t4", "--model", "demo").out
    assert [name for name in VALUES if f"\n{name} " not in out] == []
    assert "a  derived: from 320 GB/s and 8.1 TFLOP/s (NVIDIA T4 datasheet, 2019)" in out
    assert "b  published: arXiv 2402.02057, RTX 3090, 7B" in out


@pytest.mark.usefixtures("here")
def test_a_profile_for_programs(lade: Any) -> None:
    found = json.loads(lade("profiles", "show", "a100", "--json").out)
    assert (found["schema"], found["name"], found["from"]) == (1, "a100", "shipped")
    assert found["devices"] == ["A100"]
    assert [paper["window"] for paper in found["paper"]] == [15, 10, 7]
    assert found["paper"][2]["up_to_parameters"] is None
    assert len(found["settings"]) == 7 * 3
    for row in found["settings"]:
        assert list(row["origins"]) == list(VALUES)
        assert {*VALUES, "model", "weights", "parameters", "paper"} <= row.keys()
    user.write(tuned())
    found = json.loads(lade("profiles", "show", tuned().name, "--model", "demo", "--json").out)
    assert found["from"] == "tuned"
    assert found["tuned"]["versions"]["lade"] == "0.1.0"
    assert [(row["model"], row["budget"]) for row in found["settings"]] == [("demo", 16)]
    assert found["explicit"][0]["origins"]["budget"] == "measured: AMD EPYC, 2026-11-21"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("show moon", "unknown profile 'moon'; known profiles: a100, "),
        ("show moon --model no/such/model", "unknown profile 'moon'"),
        ("show --quantize 3bit", "unknown quantize '3bit'"),
        ("show --device cuda", "no CUDA device: "),
        ("--device mps", "no Apple GPU (mps) here"),
        ("show --model no/such/model/anywhere", "there is no model folder no/such/model/anywhere"),
        ("--json show", "--json stands before show"),
    ],
)
def test_slips_are_one_line(arguments: str, message: str, lade: Any) -> None:
    result = lade("profiles", *arguments.split())
    assert (result.code in (1, 2), result.out) == (True, "")
    assert result.err.startswith(f"lade: {message}")
    assert result.err.count("\n") == 1


@pytest.mark.usefixtures("here")
def test_variables_and_the_config_file_count(monkeypatch: pytest.MonkeyPatch, lade: Any) -> None:
    monkeypatch.setenv("LADE_PROFILE", "t4")
    assert lade("profiles", "show").out.startswith("t4: ")
    assert lade("profiles", "show", "l4").out.startswith("l4: ")
    monkeypatch.delenv("LADE_PROFILE")
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text('[profiles]\ndtype = "float16"\nprofile = "t4"\n', encoding="utf-8")
    show = ("profiles", "show", "--model", "demo", "--json")
    half, single = (json.loads(lade(*show, *more).out) for more in ((), ("--dtype", "float32")))
    assert half["name"] == "t4"
    assert half["settings"][0]["origins"] != single["settings"][0]["origins"]


@pytest.mark.usefixtures("here")
def test_an_attention_backend_has_its_own_tuned_profile(lade: Any) -> None:
    for attention in ("sdpa", "reference"):
        user.write(tuned(attention=attention, versions=user.versions_here()))
    for attention in ("sdpa", "reference"):
        show = lade("profiles", "show", "--model", "demo", "--attention", attention, "--json")
        assert json.loads(show.out)["name"].endswith(f"-{attention}")


@pytest.mark.usefixtures("here")
def test_rows_on_a_pipe_are_whole(lade: Any) -> None:
    put("long", OWN.replace("mine", "words " * 99 + "end"))
    for command in ("profiles", "profiles show long"):
        lines = lade(*command.split()).out.splitlines()
        assert len([line for line in lines if "words words" in line and "words end" in line]) == 1
