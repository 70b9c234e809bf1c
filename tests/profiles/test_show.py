"""`lade profiles` and `lade profiles show`: tables that fit, and objects for programs."""

from __future__ import annotations

from typing import Any

import pytest

from ladecli import profiles
from ladecli.profiles import user
from ladecli.profiles.schema import VALUES
from ladecli.specs import device as devices
from ladecli.specs.device import Device, Rates

from ..hub_files import use_devices
from .makers import A100, ACME, CPU, OWN, put, tuned


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This machine has what a test says, an EPYC to begin with."""
    use_devices(monkeypatch, CPU)
    monkeypatch.setattr(devices, "measure_rates", lambda device, dtype: Rates(5e11, 5e13, "here"))
    monkeypatch.setenv("COLUMNS", "80")
    return monkeypatch


@pytest.mark.parametrize(("device", "marked"), [(CPU, "cpu"), (A100, "a100-80gb"), (ACME, None)])
def test_the_list_marks_this_machine(
    here: pytest.MonkeyPatch, lade: Any, device: Device, marked: str | None
) -> None:
    use_devices(here, device)
    result = lade("profiles")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert [line.strip("* ").split()[0] for line in lines[3:6]] == ["a100", "a100-80gb", "a10g"]
    *stars, last = [line.split()[1] for line in lines if line.startswith("*")]
    assert (stars, last) == (([marked], marked) if marked else ([], "no"))
    assert device.label in lines[-1]


@pytest.mark.usefixtures("here")
def test_the_users_profiles_are_listed(lade: Any) -> None:
    user.write(tuned())
    put("a100", OWN)
    put("broken", "[")
    put("esc", OWN.replace("mine", "\\u001b[31mred"))
    result = lade("profiles")
    assert "yours, before the shipped one" in result.out
    assert "\x1b" not in result.out
    assert result.err.startswith("lade: profile broken is no valid TOML")
    assert result.err.count("\n") == 1
    found = lade("profiles", "--json").json()
    assert (found["schema"], found["profile"]) == (3, "cpu")
    assert found["device"] == {"kind": "cpu", "label": "AMD EPYC", "memory_bytes": 8 << 30}
    rows = {row["name"]: row for row in found["profiles"]}
    assert list(rows) == sorted(rows)
    assert rows["a100"]["shadows_shipped"]
    assert rows["a100"]["path"] == str(user.path_of("a100"))
    assert rows["h100"]["hardware"]["bandwidth"] == 3350e9
    used = [name for name, row in rows.items() if row["this_machine"]]
    assert used == ["cpu", tuned().name]
    assert len(found["notices"]) == 1


DEFAULT_TYPES = {"a100": "bfloat16", "cpu": "float32", "t4": "float16"}


@pytest.mark.parametrize("name", DEFAULT_TYPES)
@pytest.mark.usefixtures("here")
def test_every_profile_can_be_shown_with_its_origins(
    name: str, lade: Any, wide_screen: Any
) -> None:
    out, profile = lade("profiles", "show", name).out, profiles.read(name)
    assert out.startswith(f"{name}: {profile.description}\n")
    if profile.hardware:
        assert "\nderived: from " in out
        assert profile.hardware.source in out
    for setting in (*profile.settings, *profile.papers):
        assert setting.origin in out
    wide_screen(80)
    lines = lade("profiles", "show", name, "--color", "never").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert f"for llama-2-7b in {DEFAULT_TYPES[name]}" in lines


def test_without_a_name_it_is_this_machines(here: pytest.MonkeyPatch, lade: Any) -> None:
    assert lade("profiles", "show").out.startswith("cpu: ")
    use_devices(here, ACME)
    result = lade("profiles", "show")
    assert result.out.startswith("measured here: ")
    assert "derived: from 500 GB/s and 50 TFLOP/s (here)" in result.out
    assert "no profile knows ACME Accelerator 9000" in result.err


def test_the_settings_for_a_model(lade: Any) -> None:
    out = lade("profiles", "show", "t4", "--model", "demo").out
    window = {"window", "ngram", "guesses"}  # none runs there
    assert {name for name in VALUES if f"\n  {name} " not in out} == window
    assert "\nderived: from 320 GB/s and 8.1 TFLOP/s (NVIDIA T4 datasheet, 2019)\n" in out
    assert "\npublished: arXiv 2402.02057, RTX 3090, 7B" in out


def test_a_profile_for_programs(lade: Any) -> None:
    found = lade("profiles", "show", "a100", "--json").json()
    assert (found["schema"], found["name"], found["from"]) == (3, "a100", "shipped")
    assert [paper["window"] for paper in found["paper"]] == [15, 10, 7]
    (row,) = found["settings"]
    assert {*VALUES, "model", "paper"} <= row.keys()
    mine = tuned(attention="reference", device=user.key_of(devices.detect("cpu")))
    user.write(mine)
    arguments = ("--model", "demo", "--device", "cpu", "--attention", "reference", "--json")
    found = lade("profiles", "show", *arguments).json()
    (row,) = found["settings"]
    assert (found["name"], found["from"], row["model"]) == (mine.name, "tuned", "demo")
    assert (row["budget"], row["origins"]["budget"]) == (16, "measured: AMD EPYC, 2026-11-21")
