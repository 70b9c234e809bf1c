"""Hardware profiles: data in TOML files, and one function that selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from ..decoder.config import LookaheadConfig
from ..device import Rates
from ..errors import UsageError
from ..memory import ModelSpec
from . import user
from .derive import derive
from .recognise import recognise
from .schema import VALUES, Hardware, Profile, Setting, Tuned, parse

if TYPE_CHECKING:
    from ..device import Device

__all__ = ["Profile", "Rates", "Setting", "Tuned", "parse"]

MEASURED = "measured here"
"""The name of the profile of a device that was measured a moment ago."""
_BY_KIND = {"cpu": "cpu", "mps": "apple", "cuda": "gpu"}
"""Profiles of devices that no profile names."""
_PAPER = LookaheadConfig(7, 5, 7, sources=("trajectory",))
_PAPER_ORIGIN = "published: arXiv 2402.02057, RTX 3090, 7B: the least of its W=7 to 10"
DEAR_START = 2.5
"""Plain steps that a first draft token may cost with bitsandbytes; beyond, a notice says so."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings for one model on one machine.

    Attributes:
        profile: its name.
        lookahead: the settings.
        origins: of each value, by the names in `schema.VALUES`: "measured: ...",
            "derived: ..." or "published: ...".
        paper: settings for the paper's algorithm; the trajectory is their only source.
        paper_origin: of those.
        notices: lines for the user.
    """

    profile: str
    lookahead: LookaheadConfig
    origins: Mapping[str, str]
    paper: LookaheadConfig
    paper_origin: str
    notices: tuple[str, ...] = ()

    def base(self, paper: bool) -> LookaheadConfig:
        """The settings to start from: the paper's own where its algorithm is asked for."""
        return self.paper if paper else self.lookahead

    @property
    def origin(self) -> str:
        """Where the settings are from, in one line."""
        return self.origins["window"]


@cache
def shipped_names() -> tuple[str, ...]:
    """The profiles that come with this program."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(f.name[: -len(".toml")] for f in files if f.name.endswith(".toml")))


@cache
def shipped(name: str) -> Profile:
    """A profile that comes with this program."""
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse(name, text)


def names() -> list[str]:
    """The names of all profiles: shipped ones and the user's own."""
    return sorted({*shipped_names(), *user.names()})


def read(name: str) -> Profile:
    """A profile by its name; the user's own replaces a shipped one.

    Raises:
        UsageError: there is none, or its file breaks the schema.
    """
    if name in user.names():
        return user.read(name)
    if name not in shipped_names():
        raise UsageError(f"unknown profile {name!r}; known profiles: {', '.join(names())}")
    return shipped(name)


def every(own: list[Profile]) -> dict[str, Profile]:
    """All profiles by name; the user's `own` come first, and replace shipped ones."""
    known = {profile.name: profile for profile in own}
    return known | {name: shipped(name) for name in shipped_names() if name not in known}


def usual(device: Device, own: list[Profile]) -> Profile | None:
    """The profile for a device, whatever the model; None for a GPU that no profile knows.

    A user's profile whose `devices` name the GPU or processor comes first.  Of the shipped ones,
    a GPU has the one that names it, a processor `cpu` and an Apple GPU `apple`.

    Args:
        device: the device.
        own: the user's profiles.
    """
    found = recognise(device.kind, device.label, device.memory, own)
    if found is not None:
        return found
    known = every(own)
    if device.kind != "cuda":
        return known[_BY_KIND[device.kind]]
    return recognise(device.kind, device.label, device.memory, known.values())


def select(
    name: str | None,
    device: Device,
    shape: ModelSpec,
    *,
    attention: str = "sdpa",
    captured: bool | None = None,
    measure: Callable[[], Rates] | None = None,
) -> Choice:
    """The settings for a model on a device.

    A profile that was tuned for just this comes first, then the one that `usual` finds.  A GPU
    that no profile knows is measured.

    Args:
        name: of the profile; None for the one that fits.
        device: where the model runs.
        shape: of the model.
        attention: the backend that it runs with.
        captured: whether its steps are CUDA graphs; None for yes on a CUDA GPU.
        measure: measures an unknown GPU; without it the settings are cautious.

    Raises:
        UsageError: there is no profile of this name, or its file breaks the schema.
    """
    captured = device.kind == "cuda" if captured is None else captured
    if name:
        forced = read(name)
        misfit = _misfit(forced, device, shape, attention)
        return choose(forced, shape, notices=misfit, captured=captured)
    own, notices = user.read_all()
    tuned, outdated = user.tuned_for(own, device, shape, attention)
    notices += outdated
    known = usual(device, own)
    if tuned is not None:
        return choose(tuned, shape, known, notices, captured)
    if known is None:
        if measure is not None:
            notices.append(unknown(device))
            return choose(measured(measure(), shape.compute), shape, None, notices, captured)
        notices.append(unknown(device, "are those of a slow one"))
        known = every(own)[_BY_KIND[device.kind]]
    return choose(known, shape, known, notices, captured)


def unknown(device: Device, settings: str = "come from a quick measurement") -> str:
    """The notice about a GPU that no profile knows."""
    name = device.label or "this GPU"
    return f"no profile knows {name}: settings {settings}; lade tune finds better ones"


def _misfit(profile: Profile, device: Device, shape: ModelSpec, attention: str) -> list[str]:
    """A notice if the profile that the user asks for is made for something else."""
    if tuned := profile.tuned:
        if user.is_for(tuned, device, shape, attention):
            return []
        what = f"{user.short(tuned.parameters)} parameters in {tuned.weights}"
        what += f", attention {tuned.attention}, {tuned.device}"
        return [f"profile {profile.name} was tuned for something else: {what}"]
    if not profile.devices or recognise(device.kind, device.label, device.memory, [profile]):
        return []
    return [
        f"profile {profile.name} is for {profile.description}, and this is"
        f" {device.label or 'another device'}: times measured here say nothing about the former;"
        " lade plan estimates those"
    ]


def measured(rates: Rates, compute: str) -> Profile:
    """A profile of a device whose rates were measured, for models that compute in a type."""
    # One rate is all that is known; only models of this type look at it.
    speeds = {"float32": rates.arithmetic, compute: rates.arithmetic}
    figures = {"bandwidth": rates.bandwidth, "rates": speeds, "source": rates.source}
    hardware = Hardware.model_validate(figures)
    description = "this device, measured a moment ago"
    return Profile(name=MEASURED, description=description, hardware=hardware, place="measured")


def choose(
    profile: Profile,
    shape: ModelSpec,
    known: Profile | None = None,
    notices: list[str] | None = None,
    captured: bool | None = None,
) -> Choice:
    """The settings of a profile for a model.

    Args:
        profile: the profile.
        shape: of the model.
        known: gives the paper's setting, if `profile` has none.
        notices: lines for the user.
        captured: whether steps are CUDA graphs; None for yes, but in the profiles of processors
            and of Apple's GPUs.
    """
    if captured is None:
        captured = profile.name not in (_BY_KIND["cpu"], _BY_KIND["mps"])
    setting = profile.setting(shape)
    if setting is not None:
        lookahead, origins = setting.lookahead, setting.origins
    else:
        assert profile.hardware is not None  # the schema: hardware, or settings for every model
        rates = profile.hardware.rates_for(shape.compute)
        lookahead = derive(rates, shape, captured=captured)
        speeds = f"{rates.bandwidth / 1e9:.0f} GB/s and {tera(rates.arithmetic)} TFLOP/s"
        origins = dict.fromkeys(VALUES, f"derived: from {speeds} ({rates.source})")
    notices = list(notices or ())
    first = lookahead.step_cost.at(2, lookahead.step_cost.contexts[0])
    if shape.weights == "nf4" and first > DEAR_START:
        notices.append(
            f"bitsandbytes' fast 4-bit kernels are for one token: the first draft token costs"
            f" {first:.1f} plain steps, so few drafts pay; 8bit, GPTQ and AWQ draft cheaply"
        )
    paper = profile.paper(shape) or (known.paper(shape) if known else None)
    return Choice(
        profile.name,
        lookahead,
        origins,
        paper.lookahead if paper else _PAPER,
        f"published: {paper.source}" if paper else _PAPER_ORIGIN,
        tuple(notices),
    )


def tera(rate: float) -> str:
    """A rate in units of 10^12 per second, to three digits or to one."""
    return f"{rate / 1e12:.3g}" if rate < 1e14 else f"{rate / 1e12:.0f}"
