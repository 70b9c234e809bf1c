"""Profiles: they parse, fit devices by name and models by size, and refuse what is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ladecli import profiles
from ladecli.errors import UsageError


@dataclass
class Fake:
    kind: str
    label: str


@pytest.mark.parametrize("name", profiles.names())
def test_shipped_profiles_are_whole(name: str) -> None:
    profile = profiles.read(name)
    assert profile.description
    sizes = [setting.up_to_parameters for setting in profile.settings]
    assert sizes == sorted(sizes)
    assert sizes[-1] == float("inf"), "some model would have no setting"
    for setting in profile.settings:
        assert setting.origin.split(":")[0].split(",")[0] in ("measured", "published", "derived")


@pytest.mark.parametrize(
    ("kind", "label", "expected"),
    [
        ("cpu", "CPU", "cpu"),
        ("cuda", "NVIDIA A100-SXM4-80GB", "a100"),
        ("cuda", "NVIDIA A100-PCIE-40GB", "a100"),
        ("cuda", "NVIDIA GeForce RTX 3090", "rtx3090"),
        ("cuda", "NVIDIA GeForce RTX 3090 Ti", "rtx3090"),
        ("cuda", "Some Accelerator 9000", "gpu"),
        ("mps", "Apple GPU", "gpu"),
    ],
)
def test_devices_find_their_profile(kind: str, label: str, expected: str) -> None:
    assert profiles.select(None, Fake(kind, label), 7e9).profile == expected


def test_the_paper_settings_by_model_size() -> None:
    device = Fake("cuda", "NVIDIA A100-SXM4-80GB")
    chosen = [profiles.select(None, device, size).lookahead for size in (7e9, 13e9, 34e9)]
    assert [(c.window, c.ngram, c.guesses) for c in chosen] == [(15, 5, 15), (10, 5, 10), (7, 5, 7)]


def test_a_forced_profile_wins() -> None:
    assert profiles.select("a100", Fake("cpu", "CPU"), 1e6).profile == "a100"


GOOD = """
description = "x"
devices = []
[[setting]]
window = 3
ngram = 3
guesses = 3
origin = "derived"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "widnow = 3\n", "profile p, setting 1: unknown key 'widnow'"),
        ("name = 3\n" + GOOD, "profile p: unknown key 'name'"),
        (GOOD.replace("window = 3", ""), "profile p lacks 'window'"),
        (GOOD.replace("window = 3", "window = 0"), "setting 1: window must be at least 1, not 0"),
        ("[", "profile p is no valid TOML"),
    ],
)
def test_broken_profiles_name_the_fault(text: str, message: str) -> None:
    assert profiles.parse("p", GOOD).name == "p"
    with pytest.raises(UsageError, match=message):
        profiles.parse("p", text)


def test_a_step_cost_that_is_no_table_names_its_place() -> None:
    text = GOOD + "[setting.step_cost]\nwidths = [1, 2]\ncontexts = [0]\ncosts = [[1.0]]\n"
    with pytest.raises(UsageError, match="profile mine, setting 1: step_cost: 1 costs for 2"):
        profiles.parse("mine", text)
    with pytest.raises(UsageError, match="unknown key 'width'"):
        profiles.parse("mine", GOOD + "[setting.step_cost]\nwidth = [1, 2]\n")


def test_the_cpu_profile_prices_its_steps() -> None:
    chosen = profiles.select("cpu", Fake("cpu", "CPU"), 1e6).lookahead
    assert chosen.step_cost.at(chosen.step_limit, 128) > 1.5
    assert chosen.widths[0] == 1, "a plain step must stay possible"
