"""The user's own profiles, and the names of devices and versions for measurements."""

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
"""The packages that a measurement depends on, by their names in messages."""


def folder() -> Path:
    """Return the folder of the user's profiles; it may not exist."""
    from platformdirs import user_config_path

    return user_config_path("lade", appauthor=False) / "profiles"


def names() -> list[str]:
    """Return the names of all profiles in the folder, valid or not."""
    try:
        return sorted(path.stem for path in folder().iterdir() if path.suffix == ".toml")
    except OSError:
        return []


def path_of(name: str) -> Path:
    """Return the path of a profile's file."""
    return folder() / f"{name}.toml"


def read(name: str) -> Profile:
    """Read one of the user's profiles; UsageError if its file cannot be read or is invalid."""
    path = path_of(name)
    try:
        return parse(name, files.decode(files.read(path), f"profile {name}"), "yours")
    except OSError as error:
        raise UsageError(f"the profile {path} cannot be read: {error}") from error
    except UsageError as error:
        raise UsageError(f"{error} (in {path})") from error


def read_all() -> tuple[list[Profile], list[str]]:
    """Return all valid profiles, and a line about each invalid one."""
    valid: list[Profile] = []
    faults: list[str] = []
    for name in names():
        try:
            valid.append(read(name))
        except UsageError as error:  # noqa: PERF203  one broken file must not hide the others
            faults.append(f"{error}; left out")
    return valid, faults


def versions_here() -> dict[str, str]:
    """Return the installed versions of the packages that a measurement depends on."""
    return {name: version(package) or "unknown" for name, package in _PACKAGES.items()}


def key_of(device: Device) -> str:
    """Return the name of a device in the keys of measurements, with the threads of a CPU."""
    if device.kind != "cpu":
        return device.label
    return f"{device.label}, {counted(device.threads, 'thread')}"
