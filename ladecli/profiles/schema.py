"""The schema of a profile's TOML file, as pydantic models."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass

from .. import toml
from ..decoder.config import SOURCES, LookaheadConfig
from ..decoder.step_cost import StepCost
from ..errors import UsageError
from ..memory import FULL, ModelSpec
from .derive import Rates

VALUES = ("window", "ngram", "guesses", "budget", "sources", "step_cost", "widths")
"""What a profile settles."""
_DEFAULTS = {
    "budget": "default: (W + G)(N - 1)",
    "sources": "default: all",
    "step_cost": "default: all widths cost the same",
    "widths": "default: any",
}
_WEIGHTS = (
    *FULL,
    *("nf4", "int8"),
    # Quantisation methods of checkpoints, as transformers calls them.
    *("gptq", "awq", "fp8", "aqlm", "auto-round", "bitnet", "compressed-tensors", "eetq"),
    *("fbgemm_fp8", "fp_quant", "gguf", "higgs", "hqq", "mxfp4", "mxfp8", "nvfp4", "quanto"),
    *("quark", "sinq", "spqr", "torchao", "vptq"),
)
_SYNONYMS = {
    **{"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"},
    **{"4bit": "nf4", "int4": "nf4", "8bit": "int8", "bitsandbytes": "nf4 or int8"},
}


def _known_weights(word: str) -> str:
    """Refuse a misspelt type of weights; other words may be methods newer than this list."""
    if word in _WEIGHTS:
        return word
    plain = word.strip().lower()
    near = difflib.get_close_matches(plain, _WEIGHTS, n=1, cutoff=0.75)
    meant = _SYNONYMS.get(plain) or (near[0] if near else None)
    if meant is not None:
        raise ValueError(f"unknown type of weights {word!r}; did you mean {meant}?")
    return word


def _step_cost(value: Any) -> StepCost:
    """The table of a file; the decoder's own class checks the figures."""
    if isinstance(value, StepCost):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"step_cost must be a table, not {value!r}")
    known = ("widths", "contexts", "costs")
    for key in value:
        if key not in known:
            raise ValueError(_unknown("step_cost", key, known))
    return StepCost(**value)


def _origin(text: str) -> str:
    if not re.match(r"(measured|published|derived)\b", text):
        raise ValueError(f"origin must begin with measured, published or derived, not {text!r}")
    return text


def _known_rates(rates: Mapping[str, float]) -> Mapping[str, float]:
    for key in rates:
        if key not in FULL:
            raise ValueError(_unknown("rates", key, FULL))
    if "float32" not in rates:
        raise ValueError("rates lacks 'float32', the rate of types without units of their own")
    return rates


Text = Annotated[str, Field(pattern=r"\S")]
Whole = Annotated[int, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True)


class Hardware(_Table):
    """What a device can do at best.

    Attributes:
        bandwidth: bytes per second of its memory.
        rates: dense operations per second by type, float32 at least.
        source: of the figures.
    """

    bandwidth: Positive
    rates: Annotated[Mapping[str, Positive], AfterValidator(_known_rates)]
    source: Text

    def rates_for(self, compute: str) -> Rates:
        """The rates of models that multiply in a type; float32's for a type without units."""
        rate = self.rates.get(compute, self.rates["float32"])
        return Rates(self.bandwidth, rate, self.source)


class Paper(_Table):
    """W, N and G for the paper's algorithm, with the publication that gives them."""

    up_to_parameters: Positive = math.inf
    window: Whole
    ngram: Whole
    guesses: Whole
    source: Text

    @model_validator(mode="after")
    def _is_in_range(self) -> Paper:
        _ = self.lookahead  # raises ConfigError, a ValueError
        return self

    @property
    def lookahead(self) -> LookaheadConfig:
        """As the decoder takes them: the trajectory is the only source."""
        return LookaheadConfig(self.window, self.ngram, self.guesses, sources=("trajectory",))


class Setting(_Table):
    """Explicit settings for models up to a size.

    Attributes:
        up_to_parameters: the largest model that this is for.
        weights: types of weights that it is for, as in `ModelSpec`; () for any.
        origin: "measured: ...", "published: ..." or "derived: ...".
    """

    up_to_parameters: Positive = math.inf
    weights: tuple[Annotated[str, AfterValidator(_known_weights)], ...] = ()
    window: Whole
    ngram: Whole
    guesses: Whole
    budget: Whole | None = None
    sources: tuple[str, ...] = SOURCES
    widths: tuple[Whole, ...] = ()
    origin: Annotated[Text, AfterValidator(_origin)]
    step_cost: Annotated[StepCost, BeforeValidator(_step_cost)] = StepCost()

    @classmethod
    def of(cls, lookahead: LookaheadConfig, origin: str) -> Setting:
        """A setting for every model that gives all values."""
        return cls(origin=origin, **{name: getattr(lookahead, name) for name in VALUES})

    @model_validator(mode="after")
    def _is_in_range(self) -> Setting:
        _ = self.lookahead  # raises ConfigError, a ValueError
        return self

    @property
    def lookahead(self) -> LookaheadConfig:
        """The values as the decoder takes them."""
        return LookaheadConfig(**{name: getattr(self, name) for name in VALUES})

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each value, by the names in `VALUES`."""
        given = self.model_fields_set
        return {v: self.origin if v in given else _DEFAULTS[v] for v in VALUES}

    def fits(self, shape: ModelSpec) -> bool:
        """Whether it is for a model."""
        sized = shape.parameters <= self.up_to_parameters
        return sized and (not self.weights or shape.weights in self.weights)

    def covers(self, other: Setting) -> bool:
        """Whether it fits every model that another one fits."""
        typed = not self.weights or (bool(other.weights) and {*other.weights} <= {*self.weights})
        return typed and other.up_to_parameters <= self.up_to_parameters


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Tuned:
    """What `lade tune` measured a profile on; the profile holds for this only.

    Attributes:
        device: its `user.key_of`.
        parameters: of the model.
        weights: their type, as in `ModelSpec`.
        attention: the backend.
        versions: of torch, transformers and lade.
        date: YYYY-MM-DD.
    """

    device: Text
    parameters: Positive
    weights: Text
    attention: Text
    versions: Mapping[str, Text]
    date: Text


class Profile(_Table):
    """Settings for a kind of hardware.

    Attributes:
        name: of the file.
        description: one line for people.
        place: where it is from: "shipped", "yours", "tuned", or "measured" a moment ago.
        devices: names of the devices, matched as whole words; () for a profile that is found by
            the kind of the device, or only by `--profile`.
        not_devices: words that the device's name must not have.
        memory: sizes in bytes that these devices come with; () for any.
        hardware: what settings are derived from; None where `settings` cover every model.
        papers: settings of the paper's algorithm, the smallest models first.
        settings: explicit ones; the first that fits a model counts.
        tuned: None for profiles that `lade tune` did not write.
    """

    name: str = Field(exclude=True)
    place: str = Field(default="shipped", exclude=True)
    description: Text
    devices: tuple[str, ...] = ()
    not_devices: tuple[str, ...] = ()
    memory: tuple[Positive, ...] = ()
    hardware: Hardware | None = None
    papers: tuple[Paper, ...] = Field(
        default=(), validation_alias="paper", serialization_alias="paper"
    )
    settings: tuple[Setting, ...] = Field(
        default=(), validation_alias="setting", serialization_alias="setting"
    )
    tuned: Tuned | None = None

    @model_validator(mode="after")
    def _settles_every_model(self) -> Profile:
        if not self.hardware and not any(s.covers(_EVERY_MODEL) for s in self.settings):
            raise ValueError(
                "lacks [hardware] to derive from, and no setting is for every model; add either,"
                " a [[setting]] without up_to_parameters and weights"
            )
        for n, setting in enumerate(self.settings):
            for m, earlier in enumerate(self.settings[:n]):
                if earlier.covers(setting):
                    raise ValueError(
                        f"setting {n + 1} never counts: setting {m + 1} comes first and fits every"
                        " model that it fits; swap them, or remove one"
                    )
        return self

    def setting(self, shape: ModelSpec) -> Setting | None:
        """The explicit setting for a model, if there is one."""
        return next((setting for setting in self.settings if setting.fits(shape)), None)

    def paper(self, parameters: float) -> Paper | None:
        """The paper's setting for a model of this size, if there is one."""
        return next((p for p in self.papers if parameters <= p.up_to_parameters), None)


_EVERY_MODEL = Setting.of(LookaheadConfig(), "derived")
_SECTIONS: Mapping[str, type] = {
    "hardware": Hardware,
    "paper": Paper,
    "setting": Setting,
    "tuned": Tuned,
}
_KEYS = ("description", "devices", "not_devices", "memory", *_SECTIONS)


def parse(name: str, text: str, place: str = "shipped") -> Profile:
    """A profile from the text of its file.

    Raises:
        UsageError: the text is no TOML or breaks the schema; one line names the profile, the
            place in it and the fix.
    """
    try:
        data = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise UsageError(f"profile {name} is no valid TOML: {error}") from error
    for key in data:
        if key not in _KEYS:
            raise UsageError(_unknown(f"profile {name}", key, _KEYS))
    try:
        return Profile.model_validate({**data, "name": name, "place": place})
    except ValidationError as error:
        raise UsageError(_fault(f"profile {name}", error)) from error


def _fault(where: str, error: ValidationError) -> str:
    """The first fault that pydantic found, in one line: place, key, what is wrong."""
    fault = error.errors()[0]
    # ("setting", 0, "window") -> "setting 1", "window"
    path: list[str] = []
    for step in fault["loc"]:
        if isinstance(step, int):
            path[-1] += f" {step + 1}"
        else:
            path.append(step)
    if fault["type"] == "value_error":
        tables = [step for step in path if step.split()[0] in _SECTIONS]
        return f"{', '.join([where, *tables])}: {fault['ctx']['error']}"
    *tables, key = path
    where = ", ".join([where, *tables])
    if fault["type"] == "missing":
        return f"{where} lacks {key!r}"
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown(where, key, _SECTIONS[tables[0].split()[0]].__annotations__)
    must = fault["msg"].replace("Input should", "must").replace("a valid tuple", "a list")
    if fault["type"] in ("model_type", "dataclass_type", "dict_type", "mapping_type"):
        must = "must be a table"
    if fault["type"] == "string_pattern_mismatch":
        must = "must be a text with something in it"
    return f"{where}: {key} {must}, not {fault['input']!r}"


def _unknown(where: str, key: str, known: Iterable[str]) -> str:
    return f"{where}: unknown key {key!r}; known: {', '.join(sorted(known))}"
