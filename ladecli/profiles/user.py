"""Profiles of the user's own: those that `lade tune` wrote, and those written by hand."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .. import files
from ..errors import LadeError, UsageError, counted
from ..specs.memory import ModelSpec
from ..specs.model_files import version
from .schema import Profile, Tuned, dump, parse

if TYPE_CHECKING:
    from ..specs.device import Device

NEAR = 0.1
"""A tuned profile is for models whose size differs by at most this share."""
_PACKAGES = {"torch": "torch", "transformers": "transformers", "lade": "ladecli"}
"""What a measurement depends on, and the names of the packages."""


def folder() -> Path:
    """Where the files are; it may not exist."""
    from platformdirs import user_config_path

    return user_config_path("lade", appauthor=False) / "profiles"


def names() -> list[str]:
    """The profiles that have a file, valid or not."""
    try:
        return sorted(path.stem for path in folder().iterdir() if path.suffix == ".toml")
    except OSError:
        return []


def path_of(name: str) -> Path:
    """The file of a profile."""
    return folder() / f"{name}.toml"


def read(name: str) -> Profile:
    """One of the user's profiles; UsageError if its file cannot be read or breaks the schema."""
    path = path_of(name)
    try:
        return parse(name, files.decode(files.read(path), f"profile {name}"), "yours")
    except OSError as error:
        raise UsageError(f"the profile {path} cannot be read: {error}") from error
    except UsageError as error:
        raise UsageError(f"{error} (in {path})") from error


def read_all() -> tuple[list[Profile], list[str]]:
    """All that are valid, and a line about each that is not."""
    found: list[Profile] = []
    faults: list[str] = []
    for name in names():
        try:
            found.append(read(name))
        except UsageError as error:  # noqa: PERF203  one broken file must not hide the others
            faults.append(f"{error}; left out")
    return found, faults


def make_folder() -> None:
    """Make the folder of the files; LadeError if it cannot be made or written to."""
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LadeError(f"the folder {place} cannot be made: {error.strerror}") from error
    if not os.access(place, os.W_OK):
        raise LadeError(f"nothing can be written to the folder {place}")


def write(profile: Profile) -> Path:
    """Write a profile to its file and return the path; LadeError leaves an older file."""
    make_folder()
    path = path_of(profile.name)
    files.write(path, dump(profile), "the profile")
    return path


def versions_here() -> dict[str, str]:
    """The installed versions of what a measurement depends on."""
    return {name: version(package) or "unknown" for name, package in _PACKAGES.items()}


def key_of(device: Device) -> str:
    """A device as tuned profiles name it: threads count on a CPU."""
    if device.kind != "cpu":
        return device.label
    return f"{device.label}, {counted(device.threads, 'thread')}"


def find_tuned(
    profiles: list[Profile], device: Device, spec: ModelSpec, attention: str
) -> Profile | None:
    """The profile that was tuned for a model on this machine: of several, for the nearest size."""
    here = (key_of(device), spec.weights, attention)
    fitting = [
        (abs(spec.parameters / tuned.parameters - 1.0), profile)
        for profile in profiles
        if (tuned := profile.tuned) and (tuned.device, tuned.weights, tuned.attention) == here
    ]
    distance, nearest = min(fitting, key=lambda each: each[0], default=(math.inf, None))
    return nearest if distance <= NEAR else None


def name_for(tuned: Tuned) -> str:
    """The name of the profile that is tuned for this, and so of its file."""
    device = re.sub(r"[^a-z0-9]+", "-", tuned.device.lower()).strip("-")[:48].strip("-")
    size = short(tuned.parameters)
    return f"tuned-{device or 'device'}-{size}-{tuned.weights}-{tuned.attention}"


def short(parameters: float) -> str:
    """A number of parameters for people: 260K, 3.1M, 7B."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        # Half a step earlier, so that no size is 1000 of a unit.
        if parameters >= 0.9995 * scale:
            number = parameters / scale
            return f"{number:.{0 if number >= 9.95 else 1}f}".removesuffix(".0") + unit
    return f"{parameters:.0f}"
