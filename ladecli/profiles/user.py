"""Profiles of the user's own, and how devices and versions are spelt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .. import files
from ..errors import UsageError, counted
from ..models.model_files import version
from .schema import Profile, parse

if TYPE_CHECKING:
    from ..models.device import Device

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


def versions_here() -> dict[str, str]:
    """The installed versions of what a measurement depends on."""
    return {name: version(package) or "unknown" for name, package in _PACKAGES.items()}


def key_of(device: Device) -> str:
    """Return the name of a device by which measurements are kept: threads count on a CPU."""
    if device.kind != "cpu":
        return device.label
    return f"{device.label}, {counted(device.threads, 'thread')}"
