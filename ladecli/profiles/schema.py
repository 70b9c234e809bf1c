"""The schema of a profile's TOML file, as pydantic models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from .. import toml
from ..decoder.config import SOURCES, LookaheadConfig
from ..decoder.step_cost import StepCost
from ..device import Rates
from ..errors import UsageError
from ..memory import ModelSpec

VALUES = ("window", "ngram", "guesses", "budget", "sources", "step_cost", "widths")
"""What a profile sets."""
_DEFAULTS = {
    "budget": "default: (W + G)(N - 1)",
    "sources": "default: all",
    "step_cost": "default: all widths cost the same",
    "widths": "default: any",
}


def _step_cost(table: Any) -> Any:
    """The table of a file as the decoder's own class, which checks the figures."""
    if not isinstance(table, dict):
        return table
    known = ("widths", "contexts", "costs")
    if unknown := next((key for key in table if key not in known), None):
        raise ValueError(f"step_cost: unknown key {unknown!r}; known: {', '.join(known)}")
    return StepCost(**table)


Text = Annotated[str, Field(pattern=r"\S")]
Whole = Annotated[int, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Arithmetic(_Table):
    bfloat16: Positive | None = None
    float16: Positive | None = None
    float32: Positive


class Hardware(_Table):
    """What a device can do at best.

    Attributes:
        bandwidth: of its memory, bytes per second.
        rates: dense operations per second by type; None for a type without units of its own.
        source: of the figures.
    """

    bandwidth: Positive
    rates: _Arithmetic
    source: Text

    @property
    def by_type(self) -> dict[str, float]:
        """The rates of the types that have one."""
        return self.rates.model_dump(exclude_none=True)

    def rates_for(self, compute: str) -> Rates:
        """The rates of models that compute in a type; float32's for a type without units."""
        rate = self.by_type.get(compute, self.rates.float32)
        return Rates(self.bandwidth, rate, self.source)

    @property
    def half(self) -> str:
        """The 16-bit type that models have here: bfloat16, but where only float16 has units."""
        return "float16" if self.rates.float16 and not self.rates.bfloat16 else "bfloat16"


class Paper(_Table):
    """W, N and G for the paper's algorithm, with the publication that gives them."""

    up_to_parameters: Positive = math.inf
    window: Whole
    ngram: Whole
    guesses: Whole
    source: Text

    @model_validator(mode="after")
    def _in_range(self) -> Paper:
        _ = self.lookahead  # raises ConfigError, a ValueError
        return self

    @property
    def lookahead(self) -> LookaheadConfig:
        """The decoder's configuration: the trajectory is the only source."""
        return LookaheadConfig(self.window, self.ngram, self.guesses, sources=("trajectory",))


class Setting(_Table):
    """Explicit settings for models up to a size.

    Attributes:
        up_to_parameters: the largest model that this is for.
        weights: types of weights that it is for, as in `ModelSpec`; () for any.
        origin: "measured: ...", "published: ..." or "derived: ...".
    """

    up_to_parameters: Positive = math.inf
    weights: tuple[Text, ...] = ()
    window: Whole
    ngram: Whole
    guesses: Whole
    budget: Whole | None = None
    sources: tuple[str, ...] = SOURCES
    widths: tuple[Whole, ...] = ()
    origin: Annotated[str, Field(pattern=r"^(measured|published|derived)\b")]
    step_cost: Annotated[StepCost, BeforeValidator(_step_cost)] = StepCost()

    @classmethod
    def of(cls, lookahead: LookaheadConfig, origin: str) -> Setting:
        """A setting for every model that gives all values."""
        return cls(origin=origin, **{name: getattr(lookahead, name) for name in VALUES})

    @model_validator(mode="after")
    def _in_range(self) -> Setting:
        _ = self.lookahead  # raises ConfigError, a ValueError
        return self

    @property
    def lookahead(self) -> LookaheadConfig:
        """The decoder's configuration."""
        return LookaheadConfig(**{name: getattr(self, name) for name in VALUES})

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each value, by the names in `VALUES`."""
        given = self.model_fields_set
        return {v: self.origin if v in given else _DEFAULTS[v] for v in VALUES}


class Tuned(_Table):
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
    """Settings for a kind of hardware; in the file, `papers` are [[paper]], `settings` [[setting]].

    Attributes:
        name: of the file.
        place: "shipped", "yours", "tuned", or "measured" a moment ago.
        description: one line for people.
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
    papers: tuple[Paper, ...] = Field(default=(), alias="paper")
    settings: tuple[Setting, ...] = Field(default=(), alias="setting")
    tuned: Tuned | None = None

    @model_validator(mode="after")
    def _covers_every_model(self) -> Profile:
        if not self.hardware and not any(
            setting.up_to_parameters == math.inf and not setting.weights
            for setting in self.settings
        ):
            raise ValueError(
                "lacks [hardware] to derive from, and no setting is for every model; add either,"
                " a [[setting]] without up_to_parameters and weights"
            )
        return self

    def setting(self, shape: ModelSpec) -> Setting | None:
        """The explicit setting for a model, if there is one."""
        for each in self.settings:
            typed = not each.weights or shape.weights in each.weights
            if typed and shape.parameters <= each.up_to_parameters:
                return each
        return None

    def paper(self, shape: ModelSpec) -> Paper | None:
        """The paper's setting for a model, if there is one."""
        return next((p for p in self.papers if shape.parameters <= p.up_to_parameters), None)


def parse(name: str, text: str, place: str = "shipped") -> Profile:
    """A profile from the text of its file.

    Raises:
        UsageError: the text is no TOML or breaks the schema; one line names the profile, the
            place in it and the fix.
    """
    try:
        data = toml.loads(text)
        place = "tuned" if "tuned" in data and place == "yours" else place
        return Profile.model_validate({**data, "name": name, "place": place})
    except toml.TOMLDecodeError as error:
        raise UsageError(f"profile {name} is no valid TOML: {error}") from error
    except ValidationError as error:
        raise UsageError(f"profile {name}{_fault(error)}") from error


def _fault(error: ValidationError) -> str:
    """The first fault in a file: table, key and what is wrong with it, to stand after a name."""
    fault = error.errors()[0]
    path: list[str] = []  # ("setting", 0, "window") -> "setting 1", "window"
    for step in fault["loc"]:
        if isinstance(step, int):
            path[-1] += f" {step + 1}"
        else:
            path.append(step)
    if fault["type"] == "value_error":  # one of ours, which names its key
        tables = [step for step in path if step.split()[0] in _TABLES]
        return f"{''.join(f', {step}' for step in tables)}: {fault['ctx']['error']}"
    *tables, key = path
    where = "".join(f", {step}" for step in tables)
    if fault["type"] == "missing":
        return f"{where} lacks {key!r}"
    if fault["type"] == "extra_forbidden":
        fields = _TABLES[tables[-1].split()[0] if tables else ""].model_fields
        known = sorted(f.alias or name for name, f in fields.items() if not f.exclude)
        return f"{where}: unknown key {key!r}; known: {', '.join(known)}"
    must = "must be a table" if fault["type"] == "model_type" else fault["msg"]
    must = must.replace("Input should", "must").replace("a valid tuple", "a list")
    return f"{where}: {key} {must}, not {fault['input']!r}"


_TABLES: Mapping[str, type[_Table]] = {
    "": Profile,
    "hardware": Hardware,
    "rates": _Arithmetic,
    "paper": Paper,
    "setting": Setting,
    "tuned": Tuned,
}
