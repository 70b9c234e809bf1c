"""The user's own profiles: written and read again, selected by what they were tuned on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ladecli import profiles
from ladecli.errors import LadeError, UsageError
from ladecli.memory import ModelSpec
from ladecli.profiles import user

from .makers import CPU, DEMO, VERSIONS, Fake, shape, tuned

OWN = """
description = "mine"
devices = ["A100"]
[[setting]]
window = 4
ngram = 4
guesses = 4
origin = "measured: here"
"""
A100 = Fake("cuda", "NVIDIA A100-SXM4-80GB", int(85e9))


def put(name: str, text: str) -> Path:
    """A file among the user's profiles."""
    path = user.path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_tuned_profile_comes_back_as_it_was_written() -> None:
    path = user.write(tuned())
    assert path == user.folder() / "tuned-amd-epyc-1-thread-3.1M-float32-sdpa.toml"
    assert profiles.read(tuned().name) == tuned()
    lines = path.read_text(encoding="utf-8").splitlines()
    assert "widths = [1, 4, 8, 16]" in lines, "lists of numbers are easy to read"
    assert "    [1.0, 1.25, 1.7]," in lines
    user.write(tuned(date="2026-12-01"))
    assert [each.name for each in user.folder().iterdir()] == [path.name]
    assert user.read(tuned().name) == tuned(date="2026-12-01")


@pytest.mark.parametrize("shipped", profiles.shipped_names())
def test_shipped_profiles_come_back_too(shipped: str) -> None:
    profile = profiles.shipped(shipped)
    assert profiles.parse(shipped, user.dump(profile)) == profile


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
    ],
)
def test_a_tuned_profile_is_for_what_it_was_tuned_on(
    device: Fake, model: ModelSpec, attention: str, fits: bool
) -> None:
    user.write(tuned())
    choice = profiles.select(None, device, model, attention=attention, versions=VERSIONS)
    assert (choice.profile, choice.notices) == (tuned().name if fits else "cpu", ())


@pytest.mark.parametrize(
    ("versions", "change"),
    [
        ({"torch": "2.14.0"}, "torch 2.13.0+cpu, now 2.14.0"),
        ({"lade": "0.2.0", "torch": "2.9"}, "torch 2.13.0+cpu, now 2.9, lade 0.1.0, now 0.2.0"),
        ({"torch": "2.13.7+cu130", "transformers": "5.23.9", "triton": "3.7"}, None),
    ],
)
def test_a_profile_of_other_versions_is_told_and_not_used(
    versions: dict[str, str], change: str | None
) -> None:
    user.write(tuned())
    choice = profiles.select(None, CPU, DEMO, versions=VERSIONS | versions)
    assert choice.profile == ("cpu" if change else tuned().name)
    assert [change in notice for notice in choice.notices if change] == [True] * bool(change)


def test_the_nearest_size_wins_then_the_newest() -> None:
    near = tuned(parameters=3.2e6)
    far = tuned(parameters=3.3e6, date="2026-12-24")
    newer = tuned(parameters=3.2e6, date="2026-11-22")
    outdated = tuned(versions=VERSIONS | {"torch": "2.11.0"}, parameters=3.15e6)
    found = user.tuned_for([outdated, far, near, newer], CPU, DEMO, "sdpa", VERSIONS)
    assert found == (newer, []), "and a fresh profile silences an outdated one"


def test_a_tuned_profile_leaves_the_papers_setting_to_the_device() -> None:
    user.write(tuned(device="NVIDIA A100-SXM4-80GB"))
    choice = profiles.select(None, A100, DEMO, versions=VERSIONS)
    assert choice.profile.startswith("tuned-nvidia-a100-sxm4-80gb-")
    assert (choice.lookahead.budget, choice.paper.window) == (16, 15)
    assert set(choice.origins.values()) == {"measured: AMD EPYC, 2026-11-21"}


def test_versions_are_those_that_are_installed() -> None:
    user.write(tuned(versions=user.versions_here()))
    assert profiles.select(None, CPU, DEMO).profile == tuned().name


def test_a_profile_that_was_tuned_for_other_things_can_be_forced() -> None:
    user.write(tuned())
    choice = profiles.select(tuned().name, Fake("cuda", "NVIDIA L4"), shape(7e9))
    assert choice.lookahead.budget == 16
    (notice,) = choice.notices
    for part in (tuned().name, "3.1M parameters in float32", "sdpa", "AMD EPYC, 1 thread"):
        assert part in notice
    assert profiles.select(tuned().name, CPU, DEMO).notices == ()


def test_a_profile_by_hand_is_found_by_name_and_by_device() -> None:
    put("mine", OWN).with_name("x.toml~").write_text("no profile")
    assert user.names() == ["mine"]
    assert "mine" in profiles.names()
    assert profiles.select("mine", CPU, DEMO).lookahead.window == 4
    assert profiles.select(None, A100, DEMO).profile == "mine", "before a longer name"
    put("mine", OWN.replace("[[setting]]", "memory = [96e9]\n[[setting]]"))
    assert profiles.select(None, A100, DEMO).profile == "mine", "before a closer memory"
    put("mine", OWN.replace("[[setting]]", "memory = [40e9]\n[[setting]]"))
    assert profiles.select(None, A100, DEMO).profile == "a100-80gb", "mine is for another one"
    put("mine", OWN.replace("A100", "AMD EPYC"))
    assert profiles.select(None, CPU, DEMO).profile == "mine", "a processor has a name too"


@pytest.mark.parametrize(("name", "device"), [("cpu", CPU), ("apple", Fake("mps", "Apple M2 Max"))])
def test_a_users_file_replaces_a_shipped_one(name: str, device: Fake) -> None:
    put(name, OWN)
    assert profiles.names().count(name) == 1
    for asked in (None, name):
        assert profiles.select(asked, device, DEMO).lookahead.window == 4


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"[", "no valid TOML"),
        (b"widnow = 3", "unknown key 'widnow'"),
        (b"\xff\xfe", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_broken_file_is_told_and_left_out(content: bytes | None, fault: str) -> None:
    path = put("cpu", "")
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    choice = profiles.select(None, CPU, DEMO)
    assert (choice.profile, choice.lookahead.window) == ("cpu", 3), "the shipped one serves"
    (notice,) = choice.notices
    for part in (fault, str(path), "; left out"):
        assert part in notice
    with pytest.raises(UsageError, match=fault):
        profiles.select("cpu", CPU, DEMO)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        *((12, "12"), (999, "999"), (260_000, "260K"), (999_700, "1M"), (3148224, "3.1M")),
        *((9.96e6, "10M"), (999.9e6, "1B"), (1.54e9, "1.5B"), (34e9, "34B"), (1.04e12, "1T")),
    ],
)
def test_sizes_in_short(parameters: float, text: str) -> None:
    assert user.short(parameters) == text


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("../../etc/passwd", "tuned-etc-passwd-3.1M-float32-sdpa"),
        ("显卡", "tuned-device-3.1M-float32-sdpa"),
        ("x" * 300, f"tuned-{'x' * 48}-3.1M-float32-sdpa"),
    ],
)
def test_names_are_safe_as_names_of_files(device: str, name: str) -> None:
    assert tuned(device=device).name == name
