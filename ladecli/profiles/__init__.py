"""Hardware profiles: data in TOML files, one function that selects."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Protocol

from .. import toml
from ..decoder.config import SOURCES, LookaheadConfig
from ..decoder.errors import ConfigError
from ..decoder.step_cost import StepCost
from ..errors import UsageError

_KEYS = {"description", "devices", "setting"}
_SETTING_KEYS = {"up_to_parameters", "origin"} | {f.name for f in fields(LookaheadConfig)}

_COST_KEYS = {f.name for f in fields(StepCost)}


class NamedDevice(Protocol):
    """The part of a device that selection looks at."""

    @property
    def kind(self) -> str:
        """cpu, cuda or mps."""

    @property
    def label(self) -> str:
        """The device's own name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """W, N, G and budget for models up to a size.

    Attributes:
        up_to_parameters: the largest model that this is meant for.
        lookahead: the values.
        origin: whether they were measured, published or derived, and where.
    """

    up_to_parameters: float
    lookahead: LookaheadConfig
    origin: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Settings for a kind of hardware, the smallest models first.

    Attributes:
        name: of the file.
        description: one line for people.
        devices: parts of the names of devices that it is for; "cpu" and "mps" are kinds.
        settings: by model size.
    """

    name: str
    description: str
    devices: tuple[str, ...]
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a profile says for one model."""

    profile: str
    lookahead: LookaheadConfig
    origin: str


def names() -> list[str]:
    """The profiles that ship with this program."""
    files = resources.files(__name__).iterdir()
    return sorted(f.name[: -len(".toml")] for f in files if f.name.endswith(".toml"))


def read(name: str) -> Profile:
    """The profile called `name`.

    Raises:
        UsageError: there is none, or its file breaks the schema.
    """
    if name not in names():
        raise UsageError(f"unknown profile {name!r}; known profiles: {', '.join(names())}")
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse(name, text)


def parse(name: str, text: str) -> Profile:
    """A profile from the text of its file.

    Raises:
        UsageError: the text is no TOML, has an unknown key, or lacks one.
    """
    try:
        data = toml.loads(text)
        _only(data, _KEYS, f"profile {name}")
        settings = tuple(
            _setting(entry, f"profile {name}, setting {number}")
            for number, entry in enumerate(data["setting"], start=1)
        )
        return Profile(name, data["description"], tuple(data["devices"]), settings)
    except toml.TOMLDecodeError as error:
        raise UsageError(f"profile {name} is no valid TOML: {error}") from error
    except KeyError as error:
        raise UsageError(f"profile {name} lacks {error.args[0]!r}") from error


def _setting(entry: dict[str, Any], where: str) -> Setting:
    _only(entry, _SETTING_KEYS, where)
    cost = entry.get("step_cost", {})
    _only(cost, _COST_KEYS, f"{where}, step_cost")
    try:
        lookahead = LookaheadConfig(
            window=entry["window"],
            ngram=entry["ngram"],
            guesses=entry["guesses"],
            budget=entry.get("budget"),
            sources=tuple(entry.get("sources", SOURCES)),
            step_cost=StepCost(**cost),
            widths=tuple(entry.get("widths", ())),
        )
    except ConfigError as error:
        raise UsageError(f"{where}: {error}") from error
    return Setting(entry.get("up_to_parameters", float("inf")), lookahead, entry["origin"])


def _only(data: dict[str, Any], known: set[str], where: str) -> None:
    for key in data:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}; known: {', '.join(sorted(known))}")


def select(name: str | None, device: NamedDevice, parameters: float) -> Choice:
    """The settings for a model on a device.

    Args:
        name: of the profile; None for the one that fits the device.
        device: where the model runs.
        parameters: how many the model has.

    Raises:
        UsageError: there is no profile of this name.
    """
    profile = read(name) if name else _fitting(device)
    setting = next(s for s in profile.settings if parameters <= s.up_to_parameters)
    return Choice(profile.name, setting.lookahead, setting.origin)


def _fitting(device: NamedDevice) -> Profile:
    """The profile for the longest part of the device's name, or that of its kind."""
    if device.kind == "cpu":
        return read("cpu")
    label = device.label.lower()
    found = [
        (len(part), profile)
        for profile in map(read, names())
        for part in profile.devices
        if part.lower() in label
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else read("gpu")
