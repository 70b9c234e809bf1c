"""`lade profiles`: a table that fits, a profile as TOML, and objects for programs."""

from __future__ import annotations

from typing import Any

import pytest

from ladecli import profiles
from ladecli.models.device import Device
from ladecli.profiles import user
from tests.support.hub import use_devices
from tests.support.profiles import A100, ACME, CPU, OWN, put


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return a function that sets the devices of this machine, initially an EPYC."""
    use_devices(monkeypatch, CPU)
    monkeypatch.setenv("COLUMNS", "80")
    return monkeypatch


@pytest.mark.parametrize(("device", "marked"), [(CPU, "cpu"), (A100, "a100-80gb"), (ACME, None)])
def test_the_machine_is_marked(here: Any, lade: Any, device: Device, marked: str | None) -> None:
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
    put("a100", OWN)
    put("broken", "[")
    put("esc", OWN.replace("mine", "\\u001b[31mred"))
    result = lade("profiles")
    assert "yours" in result.out
    assert "\x1b" not in result.out
    assert result.err.startswith("lade: profile broken is not valid TOML")
    assert result.err.count("\n") == 1
    listing = lade("profiles", "--json").json()
    assert (listing["schema"], listing["profile"], len(listing["notices"])) == (5, "cpu", 1)
    assert listing["device"] == {"kind": "cpu", "label": "AMD EPYC", "memory_bytes": 8 << 30}
    rows = {row["name"]: row for row in listing["profiles"]}
    assert list(rows) == sorted(rows)
    assert rows["a100"]["path"] == str(user.path_of("a100"))
    assert rows["h100"]["hardware"]["bandwidth"] == 3350e9
    assert [name for name, row in rows.items() if row["this_machine"]] == ["cpu"]


@pytest.mark.parametrize("name", ["a100", "cpu", "t4"])
def test_a_profile_is_shown_as_it_is_written(name: str, lade: Any) -> None:
    profile = profiles.read(name)
    assert profiles.parse(name, lade("profiles", name).out) == profile
    shown = lade("profiles", name, "--json").json()
    assert (shown["schema"], shown["name"], shown["from"]) == (5, name, "shipped")
    assert len(shown.get("paper", ())) == len(profile.papers)
