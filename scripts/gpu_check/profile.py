"""Measured steps as a profile has them: tables of costs, and the settings that go with them."""

from __future__ import annotations

import json
import math
from typing import Any

from ladecli.decoder.config import CAPTURED_WIDTHS, LookaheadConfig
from ladecli.decoder.step_cost import StepCost
from ladecli.profiles.derive import HOST, fitted

from .steps import costs

BEYOND = 1.5
"""The largest model measured stands for models so many times its size; others stand for those up
to halfway to the next one, in powers."""


def settings(found: dict[str, Any]) -> LookaheadConfig:
    """Settings for steps that cost what was measured, as `lade tune` would choose them.

    Args:
        found: by `Bench.grid`, of one backend; drafting on the host comes on top.
    """
    return fitted(StepCost(found["widths"], found["contexts"], costs(found, HOST)))


def toml_of(data: dict[str, Any]) -> str:
    """What goes into the profile of the GPU that was measured.

    Args:
        data: of a whole check.

    Returns:
        TOML, to be put behind the section [hardware]; nothing but comments where no model was
        measured.
    """
    facts, ceilings = data["facts"], data.get("ceilings", {})
    where = f"{facts.get('gpu', facts['device'])}, {data['date'][:7]}, torch {facts['torch']}"
    lines = [f"# By scripts/gpu_check on {where}."]
    for name, what in (("copy", "bytes a second, copied"), ("product", "bf16 operations a second")):
        if name in ceilings:
            lines.append(f"# Measured: {ceilings[name]['rate']:.4g} {what}.")
    models = [
        (name, model, model["steps"][model["best"]])
        for name, model in sorted(data["models"].items(), key=lambda item: _size(item[1]))
        if model.get("best") and model["steps"][model["best"]].get("contexts")
    ]
    for place, (name, model, found) in enumerate(models):
        larger = models[place + 1][1] if place + 1 < len(models) else None
        size = _size(model)
        limit = BEYOND * size if larger is None else math.sqrt(size * _size(larger))
        origin = f"measured: {where}, {name} in bfloat16, attention {model['best']}, CUDA graphs"
        lines += ["", *_setting(settings(found), limit, origin)]
    return "\n".join(lines) + "\n"


def _size(model: dict[str, Any]) -> float:
    return float(model.get("parameters", 0))


def _setting(config: LookaheadConfig, limit: float, origin: str) -> list[str]:
    cost, budget = config.step_cost, config.step_limit
    widths = [*(width for width in CAPTURED_WIDTHS if width < budget), budget]
    return [
        "[[setting]]",
        f"up_to_parameters = {limit:.2e}".replace("e+0", "e").replace("e+", "e"),
        'weights = ["bfloat16"]',
        f"window = {config.window}",
        f"ngram = {config.ngram}",
        f"guesses = {config.guesses}",
        f"budget = {budget}",
        f"sources = {json.dumps(config.sources)}",
        f"widths = {widths}",
        f"origin = {json.dumps(origin)}",
        "",
        "[setting.step_cost]",
        f"widths = {list(cost.widths)}",
        f"contexts = {list(cost.contexts)}",
        "costs = [",
        *(f"  {list(row)}," for row in cost.costs),
        "]",
    ]
