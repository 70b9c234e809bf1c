"""The schema of a profile's TOML file, as pydantic models."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..decoder.config import SOURCES, LookaheadConfig
from ..decoder.step_cost import StepCost
from ..errors import UsageError, flaw
from ..files import parse_toml
from ..models.device import Rates
from ..models.memory import ModelSpec

VALUES = tuple(field.name for field in fields(LookaheadConfig))
"""The fields of a setting that become the decoder's configuration."""

Text = Annotated[str, Field(pattern=r"\S")]
Whole = Annotated[int, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Hardware(_Table):
    """The peak rates of a device: bytes of memory read and dense operations, per second.

    `rates` are by type; a type without hardware units is left out.
    """

    bandwidth: Positive
    rates: Annotated[dict[Literal["bfloat16", "float16", "float32"], Positive], Field(min_length=1)]
    source: Text

    def rates_for(self, compute: str) -> Rates:
        """Return the rates for a type of activations; the lowest for a type without units."""
        rates = (rate for kind, rate in self.rates.items() if kind == compute)
        return Rates(self.bandwidth, next(rates, min(self.rates.values())))


class Setting(_Table):
    """Explicit settings for models up to a size."""

    up_to_parameters: Positive = math.inf
    weights: tuple[Text, ...] = ()  # types of weights, as in `ModelSpec`; () for any
    window: Whole
    ngram: Whole
    guesses: Whole
    budget: Whole | None = None
    sources: tuple[str, ...] = SOURCES
    widths: tuple[Whole, ...] = ()
    origin: Annotated[str, Field(pattern=r"^(measured|published|derived)\b")]
    step_cost: StepCost = StepCost()

    @model_validator(mode="after")
    def _in_range(self) -> Setting:
        _ = self.lookahead  # raises ConfigError, a ValueError
        return self

    @property
    def lookahead(self) -> LookaheadConfig:
        """The decoder's configuration."""
        return LookaheadConfig(**{name: getattr(self, name) for name in VALUES})


class Profile(_Table):
    """Settings for a kind of hardware; in the file, `papers` are [[paper]], `settings` [[setting]].

    Settings come from the first of `settings` that fits a model, else from `hardware`.
    """

    name: str = Field(exclude=True)  # of the file
    place: str = Field(default="shipped", exclude=True)  # or "yours"
    description: Text
    # Names matched as whole words; () for a profile that is selected by the kind of the device.
    devices: tuple[str, ...] = ()
    not_devices: tuple[str, ...] = ()  # words that the device's name must not have
    memory: tuple[Positive, ...] = ()  # memory sizes of these devices in bytes; () for any
    hardware: Hardware | None = None
    papers: tuple[Setting, ...] = Field(default=(), alias="paper")  # the smallest models first
    settings: tuple[Setting, ...] = Field(default=(), alias="setting")

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

    def as_file(self) -> dict[str, Any]:
        """Return the tables of the file."""
        return self.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)


def fitting(settings: Iterable[Setting], spec: ModelSpec) -> Setting | None:
    """Return the first setting that is for a model; None if there is none."""
    for setting in settings:
        typed = not setting.weights or spec.weights in setting.weights
        if typed and spec.parameters <= setting.up_to_parameters:
            return setting
    return None


def parse(name: str, text: str, place: str = "shipped") -> Profile:
    """Return a profile from the text of its file.

    Raises:
        UsageError: it is not TOML or breaks the schema; one line names the place and the fix.
    """
    try:
        data = parse_toml(text)
        return Profile.model_validate({**data, "name": name, "place": place})
    except ValidationError as error:
        raise UsageError(f"profile {name}, {flaw(error)}") from error
    except ValueError as error:
        raise UsageError(f"profile {name} is not valid TOML: {error}") from error


def dump(profile: Profile) -> str:
    """Return the text of a profile's file; `parse` reads it again."""
    import tomli_w

    return tomli_w.dumps(profile.as_file())
