"""Hardware profiles: data in TOML files, and the functions that select one.

A profile holds settings (`schema.Setting`), or bandwidth and arithmetic from which `derive`
computes them.  `usual` finds the profile of a device, `choose` returns its settings for a model,
and `select` does both.  Measured step costs (`measured`) replace those of a profile, unless the
user names the profile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from ..decoder.config import LookaheadConfig
from ..errors import UsageError
from ..models.memory import ModelSpec
from . import user
from .derive import derive, for_experts
from .schema import Profile, Setting, dump, fitting, parse

if TYPE_CHECKING:
    from ..models.device import Device

__all__ = ["Profile", "Setting", "dump", "parse"]

TOLERANCE = 0.25
"""The greatest relative difference between the memory of a device and of its profile: drivers
reserve some, and count in GiB."""
_BY_KIND = {"cpu": "cpu", "mps": "apple", "cuda": "gpu"}
"""The profiles for devices that no profile names."""
_PAPER = Setting(
    window=7,
    ngram=5,
    guesses=7,
    origin="published: arXiv 2402.02057, RTX 3090, 7B: the least of its W=7 to 10",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings of a profile for one model on one machine, and notices for the user."""

    profile: str
    lookahead: LookaheadConfig
    paper: LookaheadConfig  # for the paper's algorithm, whose only source is the trajectory
    notices: tuple[str, ...] = ()
    named: bool = False  # the user named the profile, so that its values are not replaced

    def priced(self, seconds: Mapping[int, float]) -> Choice:
        """Return the choice with measured step costs, unless the user named the profile; see
        `StepCost.measured`."""
        if self.named:
            return self
        cost = self.lookahead.step_cost.measured(seconds)
        return replace(self, lookahead=replace(self.lookahead, step_cost=cost))

    def base(self, paper: bool) -> LookaheadConfig:
        """Return the settings before the user's options: the paper's if `paper` is true."""
        return self.paper if paper else self.lookahead


@cache
def _files() -> dict[str, str]:
    """Return the names of the shipped profiles, with the names of their files."""
    names = sorted(file.name for file in resources.files(__name__).iterdir())
    return {name.removesuffix(".toml"): name for name in names if name.endswith(".toml")}


@cache
def _shipped(name: str) -> Profile:
    """Read a shipped profile."""
    return parse(name, (resources.files(__name__) / _files()[name]).read_text(encoding="utf-8"))


def shipped() -> dict[str, Profile]:
    """Return all shipped profiles by name."""
    return {name: _shipped(name) for name in _files()}


def every(own: list[Profile]) -> dict[str, Profile]:
    """Return all profiles by name; the user's `own` replace shipped ones."""
    return shipped() | {profile.name: profile for profile in own}


def names() -> list[str]:
    """Return the names of all profiles: shipped ones and the user's own."""
    return sorted({*_files(), *user.names()})


def read(name: str) -> Profile:
    """Return the profile of a name; the user's own replaces a shipped one.

    Raises:
        UsageError: there is none, or it is invalid.
    """
    if name in user.names():
        return user.read(name)
    if name not in _files():
        raise UsageError(f"unknown profile {name!r}; known profiles: {', '.join(names())}")
    return _shipped(name)


def usual(device: Device, own: list[Profile]) -> Profile | None:
    """Return the profile for a device; None for an unknown GPU.

    A user's profile whose `devices` name the GPU or processor comes first, then a shipped one that
    does.  Any other processor has `cpu`, and an Apple GPU `apple`.  Only files for this kind of
    device are read.
    """
    by_kind, mine = _BY_KIND[device.kind], {profile.name: profile for profile in own}
    on_cpu = device.kind == "cpu"
    others = [name for name in _files() if name.startswith("cpu") == on_cpu and name not in mine]
    named = device.label, device.memory
    if profile := recognise(*named, own) or recognise(*named, map(_shipped, others)):
        return profile
    return None if device.kind == "cuda" else mine.get(by_kind) or _shipped(by_kind)


def recognise(label: str, memory: float, profiles: Iterable[Profile]) -> Profile | None:
    """Return the profile that names a device, or None.

    Names mislead: "H200" is part of "GH200", "L4" of "L40S", and a MIG slice of an A100 or a
    laptop's chip has the name of the full device, whose settings are too wide for it, but less
    memory.  In doubt, a device is unknown, and its steps are measured.

    If several match, the longest matching name wins, then the closest memory; if the memory is
    unknown (0 bytes), the profile with the least memory, which is cautious.  The first wins a tie.
    """
    words = _words(label)
    best: tuple[float, ...] = (math.inf,)
    match = None
    for profile in profiles:
        names = [name for name in profile.devices if _contains(words, name)]
        distance = min((abs(memory / size - 1.0) for size in profile.memory if memory), default=0.0)
        if not names or distance > TOLERANCE:
            continue
        if any(_contains(words, name) for name in profile.not_devices):
            continue
        letters = max(sum(map(len, _words(name))) for name in names)
        rank = (-letters, distance, min(profile.memory, default=math.inf))
        if rank < best:
            best, match = rank, profile
    return match


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W_]+", name.casefold()))


def _contains(words: tuple[str, ...], name: str) -> bool:
    """Return True if all words of a name occur in this order, perhaps with others between."""
    rest = iter(words)
    return all(word in rest for word in _words(name))


def select(
    name: str | None, device: Device, spec: ModelSpec, captured: bool | None = None
) -> Choice:
    """Return the settings for a model on a device, by the profile of a name or by the usual one.

    `captured` is as for `choose`.

    Raises:
        UsageError: there is no profile of this name, or its file breaks the schema.
    """
    if name:
        profile, notices = read(name), []
        if not _is_for(profile, device):
            whose = f"profile {name} was made for {profile.description}"
            notices = [f"{whose}; its costs are not this machine's"]
        return replace(choose(profile, spec, None, notices, captured), named=True)
    own, notices = user.read_all()
    usual_profile = usual(device, own)
    if usual_profile is None:
        usual_profile = read(_BY_KIND[device.kind])
        notices.append(unknown(device))
    return choose(usual_profile, spec, usual_profile, notices, captured)


def _is_for(profile: Profile, device: Device) -> bool:
    """Return True if a profile is for a device, judging by its file."""
    if profile.devices:
        return recognise(device.label, device.memory, [profile]) is not None
    return profile.place != "shipped" or profile.name == _BY_KIND[device.kind]


def unknown(device: Device) -> str:
    """Return the notice about an unknown GPU."""
    name = device.label or "this GPU"
    return f"no profile matches {name}: the budget is that of a slow one; --budget sets another"


def choose(
    profile: Profile,
    spec: ModelSpec,
    known: Profile | None = None,
    notices: Sequence[str] = (),
    captured: bool | None = None,
) -> Choice:
    """Return the settings of a profile for a model.

    The paper's setting comes from `known` if `profile` has none.  By default, steps are `captured`
    as CUDA graphs, except on Apple's GPUs.  The step costs of a mixture of experts are derived from
    those of dense models.
    """
    if captured is None:
        captured = profile.name != _BY_KIND["mps"]
    setting = fitting(profile.settings, spec)
    if setting is not None:
        lookahead = setting.lookahead
        if spec.active < spec.parameters:
            cost = for_experts(lookahead.step_cost, spec)
            lookahead = replace(lookahead, step_cost=cost)
    else:
        assert profile.hardware is not None  # the schema: hardware, or settings for every model
        lookahead = derive(profile.hardware.rates_for(spec.compute), spec, captured=captured)
    paper = fitting((*profile.papers, *(known.papers if known else ())), spec) or _PAPER
    trajectory = LookaheadConfig(paper.window, paper.ngram, paper.guesses, sources=("trajectory",))
    return Choice(profile.name, lookahead, trajectory, tuple(notices))


def summarise(lookahead: LookaheadConfig) -> str:
    """Return settings in one line: "W=5 N=3 G=5, budget 24, trajectory+context"."""
    window = f"W={lookahead.window} N={lookahead.ngram} G={lookahead.guesses}, "
    rest = f"budget {lookahead.step_limit}, {'+'.join(lookahead.sources)}"
    return f"{window if 'trajectory' in lookahead.sources else ''}{rest}"
