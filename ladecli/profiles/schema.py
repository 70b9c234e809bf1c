"""What the file of a profile holds, and the checks that it is right."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from .. import toml
from ..decoder.config import SOURCES, LookaheadConfig
from ..decoder.step_cost import StepCost
from ..errors import UsageError
from ..shape import FULL, ModelShape
from .checked import Table
from .derive import Rates

VALUES = ("window", "ngram", "guesses", "budget", "sources", "step_cost", "widths")
"""What a profile settles."""
_SECTIONS = ("hardware", "paper", "setting", "tuned")
_ORIGIN = re.compile(r"(measured|published|derived)\b")
_WEIGHTS = (
    *FULL,
    *("nf4", "int8"),
    # Methods of checkpoints, as transformers calls them.
    *("gptq", "awq", "fp8", "aqlm", "auto-round", "bitnet", "compressed-tensors", "eetq"),
    *("fbgemm_fp8", "fp_quant", "gguf", "higgs", "hqq", "mxfp4", "mxfp8", "nvfp4", "quanto"),
    *("quark", "sinq", "spqr", "torchao", "vptq"),
)
_OTHER_WORDS = {
    **{"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"},
    **{"4bit": "nf4", "int4": "nf4", "8bit": "int8", "bitsandbytes": "nf4 or int8"},
}
"""What people call types of weights, and what they are called here."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a device can do at best.

    Attributes:
        bandwidth: bytes per second of its memory.
        rates: dense operations per second by type, float32 at least.
        source: where the figures are from.
    """

    bandwidth: float
    rates: Mapping[str, float]
    source: str

    def rate(self, compute: str) -> float:
        """Operations per second in a type; those of float32 where it has no units of its own."""
        return self.rates.get(compute, self.rates["float32"])

    def rates_for(self, compute: str) -> Rates:
        """What settings are derived from, for a model that multiplies in this type."""
        return Rates(self.bandwidth, self.rate(compute), self.source)


@dataclass(frozen=True, slots=True)
class Paper:
    """W, N and G for the paper's algorithm.

    Attributes:
        up_to_parameters: the largest model that this is meant for.
        lookahead: the values; the trajectory is the only source.
        source: where they were published.
    """

    up_to_parameters: float
    lookahead: LookaheadConfig
    source: str


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings for models up to a size.

    Attributes:
        up_to_parameters: the largest model that this is meant for.
        weights: types of weights that it is meant for, as in `ModelShape`; () for any.  The
            method of a checkpoint may be one that this program has never heard of.
        lookahead: the values.
        origin: whether they were measured, published or derived, and where.
        given: the names of the values that the file gives; the others are defaults.
    """

    up_to_parameters: float
    weights: tuple[str, ...]
    lookahead: LookaheadConfig
    origin: str
    given: frozenset[str] = frozenset(VALUES)

    def fits(self, shape: ModelShape) -> bool:
        """Whether it is meant for a model."""
        sized = shape.parameters <= self.up_to_parameters
        return sized and (not self.weights or shape.weights in self.weights)

    def covers(self, other: Setting) -> bool:
        """Whether it fits every model that another one fits."""
        typed = not self.weights or (bool(other.weights) and {*other.weights} <= {*self.weights})
        return typed and other.up_to_parameters <= self.up_to_parameters


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a profile was tuned on, and holds for.

    Attributes:
        device: what `user.key_of` says of it.
        parameters: of the model.
        weights: their type, as in `ModelShape`.
        attention: the backend.
        versions: of torch, transformers and lade.
        date: YYYY-MM-DD.
    """

    device: str
    parameters: float
    weights: str
    attention: str
    versions: Mapping[str, str]
    date: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Settings for a kind of hardware.

    Attributes:
        name: of the file.
        description: one line for people.
        devices: names of what it is for, as whole words: GPUs, and in the user's own profiles
            processors too; () for one that is found by the kind of the device, or only forced.
        not_devices: words that the device's name must not have.
        memory: sizes in bytes that these devices come with; () for any.
        hardware: what settings are derived from; None where `settings` cover every model.
        papers: settings of the paper's algorithm, the smallest models first.
        settings: explicit ones; the first that fits a model counts.
        tuned: what `lade tune` measured it on; None for profiles that it did not write.
        place: where it is from: "shipped", "yours", "tuned", or "measured" a moment ago.
    """

    name: str
    description: str
    devices: tuple[str, ...] = ()
    not_devices: tuple[str, ...] = ()
    memory: tuple[float, ...] = ()
    hardware: Hardware | None = None
    papers: tuple[Paper, ...] = ()
    settings: tuple[Setting, ...] = ()
    tuned: Tuned | None = None
    place: str = field(default="shipped", compare=False)

    def setting(self, shape: ModelShape) -> Setting | None:
        """The explicit setting for a model, if there is one."""
        return next((setting for setting in self.settings if setting.fits(shape)), None)

    def paper(self, parameters: float) -> Paper | None:
        """The paper's setting for a model of this size, if there is one."""
        return next((p for p in self.papers if parameters <= p.up_to_parameters), None)


def parse(name: str, text: str) -> Profile:
    """A profile from the text of its file.

    Raises:
        UsageError: the text is no TOML, has an unknown key, lacks one, has one with a value
            that it cannot have, or a setting that an earlier one leaves no model; the message
            names the profile, the place and the key.
    """
    try:
        top = Table(f"profile {name}", toml.loads(text))
    except toml.TOMLDecodeError as error:
        raise UsageError(f"profile {name} is no valid TOML: {error}") from error
    top.only("description", "devices", "not_devices", "memory", *_SECTIONS)
    profile = Profile(
        name,
        top.text("description"),
        top.texts("devices"),
        top.texts("not_devices"),
        top.numbers("memory"),
        _hardware(top.table("hardware")) if "hardware" in top.data else None,
        tuple(map(_paper, top.tables("paper"))),
        tuple(map(_setting, top.tables("setting"))),
        _tuned(top.table("tuned")) if "tuned" in top.data else None,
    )
    whole = any(s.up_to_parameters == math.inf and not s.weights for s in profile.settings)
    if profile.hardware is None and not whole:
        raise UsageError(
            f"profile {name} lacks [hardware] to derive from, and no setting is for every model;"
            " add either, a [[setting]] without up_to_parameters and weights"
        )
    _all_count(profile)
    return profile


def _all_count(profile: Profile) -> None:
    """Refuse a setting that no model gets, since the first that fits counts."""
    for n, setting in enumerate(profile.settings):
        for m, earlier in enumerate(profile.settings[:n]):
            if earlier.covers(setting):
                raise UsageError(
                    f"profile {profile.name}, setting {n + 1} never counts: setting {m + 1} comes"
                    " first and fits every model that it fits; swap them, or remove one"
                )


def _hardware(table: Table) -> Hardware:
    table.only("bandwidth", "rates", "source")
    rates = table.table("rates")
    rates.only(*FULL)
    rates.number("float32")  # needed, for types that have no units of their own
    speeds = {kind: rates.number(kind) for kind in rates.data}
    return Hardware(table.number("bandwidth"), speeds, table.text("source"))


def _paper(table: Table) -> Paper:
    table.only("up_to_parameters", "window", "ngram", "guesses", "source")
    window, ngram, guesses = map(table.whole, ("window", "ngram", "guesses"))
    with table.refusing():
        lookahead = LookaheadConfig(window, ngram, guesses, sources=("trajectory",))
    return Paper(table.number("up_to_parameters", math.inf), lookahead, table.text("source"))


def _setting(table: Table) -> Setting:
    table.only("up_to_parameters", "weights", *VALUES, "origin")
    with table.refusing():
        lookahead = LookaheadConfig(
            window=table.whole("window"),
            ngram=table.whole("ngram"),
            guesses=table.whole("guesses"),
            budget=table.whole("budget") if "budget" in table.data else None,
            sources=table.texts("sources", SOURCES),
            step_cost=_step_cost(table),
            widths=table.wholes("widths"),
        )
    origin = table.text("origin")
    if not _ORIGIN.match(origin):
        raise UsageError(
            f"{table.where}: origin must begin with measured, published or derived, not {origin!r}"
        )
    limit = table.number("up_to_parameters", math.inf)
    given = frozenset(table.data) & frozenset(VALUES)
    return Setting(limit, _weights(table), lookahead, origin, given)


def _weights(table: Table) -> tuple[str, ...]:
    """Types of weights; a word that looks like a slip is refused, others may be new methods."""
    words = table.texts("weights")
    for word in words:
        if word in _WEIGHTS:
            continue
        plain = word.strip().lower()
        near = difflib.get_close_matches(plain, _WEIGHTS, n=1, cutoff=0.75)
        meant = _OTHER_WORDS.get(plain) or (near[0] if near else None)
        if meant is not None:
            raise UsageError(
                f"{table.where}: unknown type of weights {word!r}; did you mean {meant}?"
            )
    return words


def _step_cost(table: Table) -> StepCost:
    if "step_cost" not in table.data:
        return StepCost()
    cost = table.table("step_cost")
    cost.only(*(known.name for known in fields(StepCost)))
    return StepCost(**cost.data)


def _tuned(table: Table) -> Tuned:
    table.only(*(known.name for known in fields(Tuned)))
    versions = table.table("versions")
    return Tuned(
        table.text("device"),
        table.number("parameters"),
        table.text("weights"),
        table.text("attention"),
        {name: versions.text(name) for name in versions.data},
        table.text("date"),
    )
