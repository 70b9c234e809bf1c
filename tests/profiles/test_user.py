"""The user's own profiles: written and read again, selected by their key, never in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ladecli import profiles
from ladecli.decoder.config import LookaheadConfig
from ladecli.errors import LadeError, UsageError
from ladecli.profiles import Hardware, Paper, Profile, Setting, user

from .makers import CPU, DEMO, VERSIONS, Fake, shape, tuned


def put(name: str, text: str) -> Path:
    """A file among the user's profiles."""
    path = user.path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


OWN = """
description = "mine"
devices = ["A100"]
[[setting]]
window = 4
ngram = 4
guesses = 4
origin = "measured: here"
"""


def test_a_tuned_profile_comes_back_as_it_was_written() -> None:
    profile = tuned()
    path = user.write(profile)
    assert path == user.folder() / "tuned-amd-epyc-1-thread-3.1M-float32-sdpa.toml"
    assert user.read(profile.name) == profile
    assert user.read(profile.name).place == "tuned"


def test_lists_of_numbers_are_easy_to_read() -> None:
    lines = user.write(tuned()).read_text(encoding="utf-8").splitlines()
    assert "widths = [1, 4, 8, 16]" in lines
    assert "    [1.0, 1.25, 1.7]," in lines


def test_every_part_of_a_profile_comes_back() -> None:
    explicit = Setting(
        7e9, ("nf4", "int8"), LookaheadConfig(4, 4, 2), "derived", frozenset(("window", "ngram"))
    )
    explicit = replace(explicit, given=explicit.given | {"guesses"})
    whole = Profile(
        "whole",
        'with "quotes", ümlauts and \\',
        ("A100", "A 100"),
        ("MIG",),
        (40e9, 80e9),
        Hardware(1e12, {"float32": 1e13, "bfloat16": 1e14}, "sheet"),
        (
            Paper(1e9, LookaheadConfig(15, 5, 15, sources=("trajectory",)), "a paper"),
            Paper(float("inf"), LookaheadConfig(7, 5, 7, sources=("trajectory",)), "a paper"),
        ),
        (explicit, *tuned().settings),
        tuned().tuned,
    )
    user.write(whole)
    assert user.read("whole") == whole


@pytest.mark.parametrize("shipped", profiles.shipped_names())
def test_shipped_profiles_come_back_too(shipped: str) -> None:
    profile = profiles.shipped(shipped)
    assert profiles.parse(shipped, user.dump(profile)) == profile


def test_writing_again_replaces_and_leaves_nothing_behind() -> None:
    user.write(tuned())
    user.write(tuned(date="2026-12-01"))
    assert [path.name for path in user.folder().iterdir()] == [f"{tuned().name}.toml"]
    assert user.read(tuned().name) == tuned(date="2026-12-01")


def test_a_folder_that_cannot_be_made_is_one_line() -> None:
    user.folder().parent.mkdir(parents=True, exist_ok=True)
    user.folder().write_text("in the way")
    with pytest.raises(LadeError, match=f"the folder {user.folder()} cannot be made: "):
        user.write(tuned())
    assert user.names() == []


@pytest.mark.parametrize(
    ("device", "model", "attention", "fits"),
    [
        (CPU, DEMO, "sdpa", True),
        (CPU, replace(DEMO, parameters=DEMO.parameters * 1.09), "sdpa", True),
        (CPU, replace(DEMO, parameters=DEMO.parameters * 0.91), "sdpa", True),
        (CPU, replace(DEMO, parameters=DEMO.parameters * 1.11), "sdpa", False),
        (CPU, replace(DEMO, weights="bfloat16"), "sdpa", False),
        (CPU, DEMO, "reference", False),
        (replace(CPU, threads=2), DEMO, "sdpa", False),
        (replace(CPU, label="AMD EPYC 9654"), DEMO, "sdpa", False),
        (Fake("cuda", "AMD EPYC, 1 thread"), DEMO, "sdpa", True),
    ],
)
def test_a_tuned_profile_is_for_what_it_was_tuned_on(
    device: Fake, model: object, attention: str, fits: bool
) -> None:
    found, notices = user.tuned_for([tuned()], device, model, attention, VERSIONS)
    assert (found is not None, notices) == (fits, [])


@pytest.mark.parametrize(
    ("versions", "change"),
    [
        ({"torch": "2.14.0"}, "torch 2.13.0+cpu, now 2.14.0"),
        ({"torch": "3.13.0"}, "torch 2.13.0+cpu, now 3.13.0"),
        ({"lade": "0.2.0", "torch": "2.9"}, "torch 2.13.0+cpu, now 2.9, lade 0.1.0, now 0.2.0"),
        ({"torch": "2.13.7+cu130"}, None),
        ({"transformers": "5.23.9"}, None),
        ({"triton": "3.7"}, None),
    ],
)
def test_other_versions_are_told_and_not_used(versions: dict[str, str], change: str) -> None:
    found, notices = user.tuned_for([tuned()], CPU, DEMO, "sdpa", VERSIONS | versions)
    if change is None:
        assert (found, notices) == (tuned(), [])
        return
    assert found is None
    assert notices == [
        f"profile {tuned().name} is not used: it was tuned with {change}; lade tune makes a new one"
    ]


def test_a_version_that_is_gone_counts_as_changed() -> None:
    assert user.changed(tuned(), {}) == [
        "torch 2.13.0+cpu, now missing",
        "transformers 5.23.0, now missing",
        "lade 0.1.0, now missing",
    ]


def test_the_nearest_size_wins_then_the_newest() -> None:
    near = tuned(parameters=3.2e6)
    far = tuned(parameters=3.3e6, date="2026-12-24")
    newer = tuned(parameters=3.2e6, date="2026-11-22")
    found, _ = user.tuned_for([far, near, newer], CPU, DEMO, "sdpa", VERSIONS)
    assert found == newer


def test_a_fresh_profile_silences_a_stale_one() -> None:
    stale = tuned(versions=VERSIONS | {"torch": "2.11.0"}, parameters=3.3e6)
    found, notices = user.tuned_for([stale, tuned()], CPU, DEMO, "sdpa", VERSIONS)
    assert (found, notices) == (tuned(), [])


def test_selection_takes_the_tuned_profile() -> None:
    user.write(tuned())
    choice = profiles.select(None, CPU, DEMO, versions=VERSIONS)
    assert (choice.profile, choice.lookahead.budget) == (tuned().name, 16)
    assert set(choice.origins.values()) == {"measured: AMD EPYC, 2026-11-21"}
    other = profiles.select(None, CPU, shape(7e9), versions=VERSIONS)
    assert (other.profile, other.notices) == ("cpu", ())


def test_a_tuned_profile_leaves_the_papers_setting_to_the_device() -> None:
    user.write(tuned(device="NVIDIA A100-SXM4-80GB"))
    device = Fake("cuda", "NVIDIA A100-SXM4-80GB", int(85e9))
    choice = profiles.select(None, device, DEMO, versions=VERSIONS)
    assert choice.profile.startswith("tuned-nvidia-a100-sxm4-80gb-")
    assert (choice.paper.window, choice.paper_origin[:20]) == (15, "published: arXiv 240")


def test_versions_are_those_that_are_installed() -> None:
    here = user.versions_here()
    assert here.keys() == {"torch", "transformers", "lade"}
    user.write(tuned(versions=here))
    assert profiles.select(None, CPU, DEMO).profile == tuned().name


def test_a_stale_profile_is_told_and_the_shipped_one_serves() -> None:
    user.write(tuned())
    choice = profiles.select(None, CPU, DEMO, versions=VERSIONS | {"torch": "2.20.0"})
    assert choice.profile == "cpu"
    assert len(choice.notices) == 1
    assert "torch 2.13.0+cpu, now 2.20.0" in choice.notices[0]


def test_a_profile_that_was_tuned_for_other_things_can_be_forced() -> None:
    user.write(tuned())
    choice = profiles.select(tuned().name, Fake("cuda", "NVIDIA L4"), shape(7e9))
    assert choice.lookahead.budget == 16
    assert choice.notices == (
        f"profile {tuned().name} was tuned for other things: 3.1M parameters in float32,"
        " attention sdpa, AMD EPYC, 1 thread",
    )
    assert profiles.select(tuned().name, CPU, DEMO).notices == ()


def test_a_profile_by_hand_is_found_by_name_and_by_device() -> None:
    put("mine", OWN)
    assert profiles.read("mine").place == "yours"
    assert "mine" in profiles.names()
    assert profiles.select("mine", CPU, DEMO).lookahead.window == 4
    a100 = Fake("cuda", "NVIDIA A100-SXM4-80GB", int(85e9))
    assert profiles.select(None, a100, DEMO).profile == "mine", "before a longer name"
    put("mine", OWN.replace("[[setting]]", "memory = [96e9]\n[[setting]]"))
    assert profiles.select(None, a100, DEMO).profile == "mine", "before a closer memory"
    put("mine", OWN.replace("[[setting]]", "memory = [40e9]\n[[setting]]"))
    assert profiles.select(None, a100, DEMO).profile == "a100-80gb", "mine is for another one"
    put("mine", OWN.replace("A100", "AMD EPYC"))
    assert profiles.select(None, CPU, DEMO).profile == "mine", "a processor has a name too"


@pytest.mark.parametrize(("name", "device"), [("cpu", CPU), ("apple", Fake("mps", "Apple M2 Max"))])
def test_a_users_file_stands_before_a_shipped_one(name: str, device: Fake) -> None:
    put(name, OWN)
    assert profiles.names().count(name) == 1
    for asked in (None, name):
        assert profiles.select(asked, device, DEMO).lookahead.window == 4


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"[", "profile cpu is no valid TOML"),
        (b"widnow = 3", "profile cpu: unknown key 'widnow'"),
        (b"\xff\xfe", "cannot be read: 'utf-8' codec can't decode"),
    ],
)
def test_a_broken_file_is_told_and_left_out(content: bytes, fault: str) -> None:
    path = put("cpu", "")
    path.write_bytes(content)
    choice = profiles.select(None, CPU, DEMO)
    assert (choice.profile, choice.lookahead.window) == ("cpu", 3), "the shipped one serves"
    assert len(choice.notices) == 1
    for part in (fault, str(path), "; left out"):
        assert part in choice.notices[0]
    with pytest.raises(UsageError, match=fault):
        profiles.select("cpu", CPU, DEMO)


def test_a_folder_named_like_a_profile_is_told() -> None:
    user.path_of("folder").mkdir(parents=True)
    assert "left out" in profiles.select(None, CPU, DEMO).notices[0]


def test_other_files_are_no_profiles() -> None:
    put("x", OWN).rename(user.folder() / "x.toml~")
    assert user.names() == []


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        *((12, "12"), (999, "999"), (1000, "1K"), (260_000, "260K"), (999_700, "1M")),
        *((3148224, "3.1M"), (9.96e6, "10M"), (494e6, "494M"), (999.9e6, "1B"), (1.54e9, "1.5B")),
        *((6.74e9, "6.7B"), (7e9, "7B"), (34e9, "34B"), (1.04e12, "1T")),
    ],
)
def test_sizes_in_short(parameters: float, told: str) -> None:
    assert user.short(parameters) == told


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "tuned-nvidia-a100-sxm4-80gb-3.1M-float32-sdpa"),
        ("../../etc/passwd", "tuned-etc-passwd-3.1M-float32-sdpa"),
        ("显卡", "tuned-device-3.1M-float32-sdpa"),
        ("x" * 300, f"tuned-{'x' * 48}-3.1M-float32-sdpa"),
    ],
)
def test_names_are_safe_as_names_of_files(device: str, name: str) -> None:
    assert tuned(device=device).name == name
