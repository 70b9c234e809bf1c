"""Devices, models and tuned profiles for tests of profiles."""

from __future__ import annotations

from dataclasses import dataclass

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.step_cost import StepCost
from ladecli.memory import ModelSpec
from ladecli.profiles import Profile, Setting, Tuned, user

VERSIONS = {"torch": "2.13.0+cpu", "transformers": "5.23.0", "lade": "0.1.0"}


@dataclass(frozen=True)
class Fake:
    """A device as selection sees it."""

    kind: str
    label: str
    memory: int = 0
    threads: int = 0


CPU = Fake("cpu", "AMD EPYC", 8 << 30, 1)


def shape(
    parameters: float = 6.74e9, weights: str = "bfloat16", compute: str = "bfloat16"
) -> ModelSpec:
    """A model with the proportions of a Llama of 7B."""
    return ModelSpec(
        parameters=parameters,
        active=parameters,
        weights=weights,
        weight_bytes=2 * parameters,
        compute=compute,
        layers=32,
        hidden=4096,
        inner=11008,
        heads=32,
        kv_heads=32,
        head_size=128,
        vocabulary=32000,
    )


DEMO = shape(3148224, "float32", "float32")
"""As large as the demo model."""


def tuned(**changes: object) -> Profile:
    """A profile as `lade tune` writes it, for `CPU` and `DEMO`."""
    key = {
        "device": "AMD EPYC, 1 thread",
        "parameters": 3148224.0,
        "weights": "float32",
        "attention": "sdpa",
        "versions": VERSIONS,
        "date": "2026-11-21",
    } | changes
    record = Tuned(**key)
    cost = StepCost((1, 4, 16), (64, 512), ((1.0, 1.2, 1.6), (1.0, 1.25, 1.7)))
    lookahead = LookaheadConfig(3, 3, 4, 16, ("context",), cost, (1, 4, 8, 16))
    setting = Setting.of(lookahead, "measured: AMD EPYC, 2026-11-21")
    return Profile(
        name=user.name_for(record),
        place="tuned",
        description="tuned",
        settings=(setting,),
        tuned=record,
    )
