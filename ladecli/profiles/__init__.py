"""Hardware profiles: data in TOML files, and one function that selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources

from ..decoder.config import LookaheadConfig
from ..errors import UsageError
from ..shape import ModelShape
from . import user
from .derive import Rates, derive
from .recognise import NamedDevice, recognise
from .schema import VALUES, Hardware, Paper, Profile, Setting, Tuned, parse

__all__ = [
    "Choice",
    "Hardware",
    "NamedDevice",
    "Paper",
    "Profile",
    "Rates",
    "Setting",
    "Tuned",
    "choose",
    "derived_from",
    "measured",
    "names",
    "origins_of",
    "parse",
    "read",
    "select",
    "shipped",
    "shipped_names",
    "tera",
    "usual",
]

MEASURED = "measured here"
"""What settings are called that come from a measurement a moment ago, and from no profile."""
_BY_KIND = {"cpu": "cpu", "mps": "apple", "cuda": "gpu"}
"""Profiles of devices that no profile names; the user's own of this name comes first."""
_PAPER = LookaheadConfig(7, 5, 7, sources=("trajectory",))
_PAPER_ORIGIN = "published: arXiv 2402.02057, RTX 3090, 7B: the least of its W=7 to 10"
DEAR_START = 2.5
"""Where bitsandbytes makes a step with one draft token so dear, in plain steps, users are told."""
_BETTER = "lade tune finds better ones"
_DEFAULTS = {
    "budget": "default: (W + G)(N - 1)",
    "sources": "default: all",
    "step_cost": "default: all widths cost the same",
    "widths": "default: any",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings for one model on one machine.

    Attributes:
        profile: what they are called.
        lookahead: the settings.
        origins: where each is from, by the names in `schema.VALUES`: "measured: ...",
            "derived: ..." or "published: ...".
        paper: settings for the paper's algorithm; the trajectory is their only source.
        paper_origin: where those are from.
        notices: lines that the user should see.
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


def shipped_names() -> list[str]:
    """The profiles that come with this program."""
    files = resources.files(__name__).iterdir()
    return sorted(f.name[: -len(".toml")] for f in files if f.name.endswith(".toml"))


def names() -> list[str]:
    """All profiles that can be asked for: shipped ones and the user's own."""
    return sorted({*shipped_names(), *user.names()})


def shipped(name: str) -> Profile:
    """A profile that comes with this program."""
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse(name, text)


def read(name: str) -> Profile:
    """The profile called `name`; a user's own comes before a shipped one of the same name.

    Raises:
        UsageError: there is none, or its file breaks the schema.
    """
    if name in user.names():
        return user.read(name)
    if name not in shipped_names():
        raise UsageError(f"unknown profile {name!r}; known profiles: {', '.join(names())}")
    return shipped(name)


def select(
    name: str | None,
    device: NamedDevice,
    shape: ModelShape,
    *,
    attention: str = "sdpa",
    captured: bool | None = None,
    versions: Mapping[str, str] | None = None,
    measure: Callable[[], Rates] | None = None,
) -> Choice:
    """The settings for a model on a device.

    A profile that was tuned for just this comes first, then the one that knows the device, as
    `usual` finds it.  A GPU that none knows is measured.

    Args:
        name: of the profile; None for the one that fits.
        device: where the model runs.
        shape: of the model.
        attention: the backend that it runs with.
        captured: whether its steps are CUDA graphs; None for wherever that can be.
        versions: of torch, transformers and lade; None for what is installed.
        measure: finds out how fast an unknown GPU is; without it the settings are cautious.

    Raises:
        UsageError: there is no profile of this name, or its file breaks the schema.
    """
    if captured is None:
        captured = device.kind == "cuda"
    if name:
        forced = read(name)
        misfit = user.misfit(forced, device, shape, attention)
        return choose(forced, shape, notices=misfit, captured=captured)
    mine, notices = user.read_all()
    tuned, stale = user.tuned_for(mine, device, shape, attention, versions)
    notices += stale
    known = usual(device, mine)
    if tuned is not None:
        return choose(tuned, shape, known, notices, captured)
    if known is None:
        unknown = f"no profile knows {device.label or 'this GPU'}: "
        if measure is not None:
            notices.append(f"{unknown}settings come from a quick measurement; {_BETTER}")
            here = measured(measure(), shape.compute)
            return choose(here, shape, None, notices, captured)
        notices.append(f"{unknown}settings are those of a slow one; {_BETTER}")
        known = _own_or_shipped(_BY_KIND[device.kind], mine)
    return choose(known, shape, known, notices, captured)


def usual(device: NamedDevice, mine: list[Profile]) -> Profile | None:
    """The profile for a device, whatever the model; None for a GPU that none knows.

    The user's own come first, however short the name is that they know the device by: a profile
    whose `devices` name it, be it a GPU or a processor.  Of the shipped ones, a GPU has the one
    that names it, a processor `cpu` and an Apple GPU `apple`; the user's own file of the same
    name takes the place of a shipped one.

    Args:
        device: the device.
        mine: the user's profiles.
    """
    found = recognise(device, mine)
    if found is not None:
        return found
    if device.kind != "cuda":
        return _own_or_shipped(_BY_KIND[device.kind], mine)
    own = {profile.name for profile in mine}
    return recognise(device, [shipped(name) for name in shipped_names() if name not in own])


def _own_or_shipped(name: str, mine: list[Profile]) -> Profile:
    return next((profile for profile in mine if profile.name == name), None) or shipped(name)


def measured(rates: Rates, compute: str) -> Profile:
    """A profile of a device whose rates were measured, for models that multiply in one type."""
    # One rate is all that is known; only models of this type look at it.
    speeds = {"float32": rates.arithmetic, compute: rates.arithmetic}
    hardware = Hardware(rates.bandwidth, speeds, rates.source)
    return Profile(
        MEASURED, "this device, measured a moment ago", hardware=hardware, place="measured"
    )


def choose(
    profile: Profile,
    shape: ModelShape,
    known: Profile | None = None,
    notices: list[str] | None = None,
    captured: bool | None = None,
) -> Choice:
    """What a profile says for a model.

    Args:
        profile: the profile.
        shape: of the model.
        known: where the paper's setting is from, if the profile has none.
        notices: lines that the user should see.
        captured: whether steps are CUDA graphs; None for wherever that can be: everywhere but in
            the profiles of processors and of Apple's GPUs.
    """
    if captured is None:
        captured = profile.name not in (_BY_KIND["cpu"], _BY_KIND["mps"])
    setting = profile.setting(shape)
    if setting is not None:
        lookahead, origins = setting.lookahead, origins_of(setting)
    else:
        assert profile.hardware is not None  # the schema: hardware, or settings for every model
        rates = profile.hardware.rates_for(shape.compute)
        lookahead = derive(rates, shape, captured=captured)
        origins = dict.fromkeys(VALUES, derived_from(rates))
    notices = list(notices or ())
    first = lookahead.step_cost.at(2, lookahead.step_cost.contexts[0])
    if shape.weights == "nf4" and first > DEAR_START:
        notices.append(
            f"bitsandbytes' fast 4-bit kernels are for one token: the first draft token costs"
            f" {first:.1f} plain steps, so few drafts pay; 8bit, GPTQ and AWQ draft cheaply"
        )
    paper = profile.paper(shape.parameters)
    if paper is None and known is not None:
        paper = known.paper(shape.parameters)
    return Choice(
        profile.name,
        lookahead,
        origins,
        _PAPER if paper is None else paper.lookahead,
        _PAPER_ORIGIN if paper is None else f"published: {paper.source}",
        tuple(notices),
    )


def origins_of(setting: Setting) -> dict[str, str]:
    """Where each value of an explicit setting is from, by the names in `schema.VALUES`."""
    return {v: setting.origin if v in setting.given else _DEFAULTS[v] for v in VALUES}


def derived_from(rates: Rates) -> str:
    """The origin of what is derived from a device's rates."""
    speeds = f"{rates.bandwidth / 1e9:.0f} GB/s and {tera(rates.arithmetic)} TFLOP/s"
    return f"derived: from {speeds} ({rates.source})"


def tera(rate: float) -> str:
    """A rate in millions of millions per second, to three digits or to one."""
    return f"{rate / 1e12:.3g}" if rate < 1e14 else f"{rate / 1e12:.0f}"
