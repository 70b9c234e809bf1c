"""Machine, model, sampling and settings as the values that a result holds."""

from __future__ import annotations

import dataclasses
import platform
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import ways
from ..decoder.config import LookaheadConfig, SamplingConfig
from ..profiles.user import versions_here
from .result import Machine, Model

if TYPE_CHECKING:
    from ..options import Request
    from ..session import Session

_TEXTS = ("-s", "--system", "--stop")
"""Options whose values are never files."""


def machine_of(session: Session) -> Machine:
    """Where a session runs."""
    from ..device import details

    device = session.loaded.device
    return Machine(
        device=device.label,
        kind=device.kind,
        memory=device.memory,
        threads=device.threads,
        system=f"{platform.system()} {platform.machine()}",
        driver=details(device).driver,
        versions={**versions_here(), "python": platform.python_version()},
    )


def model_of(session: Session, request: Request) -> Model:
    """The model of a session, and the attention backend that a request selects."""
    loaded, shape = session.loaded, session.loaded.shape
    local = Path(loaded.name).is_dir()
    return Model(
        name=Path(loaded.name).resolve().name if local else loaded.name,
        parameters=shape.parameters,
        active=shape.active,
        weights=shape.weights,
        compute=shape.compute,
        weight_bytes=shape.weight_bytes,
        cache_bytes=shape.cache_bytes,
        context=session.decoder.max_context,
        made_for=loaded.made_for or session.decoder.facts.context,
        attention=ways.attention_of(request, loaded.device, loaded.part).name,
        captured=session.decoder.runner.captures,
        compiled=session.decoder.runner.compiles,
    )


def described(config: LookaheadConfig) -> dict[str, int | str]:
    """Settings of lookahead as a result names them."""
    window: dict[str, int | str] = {}
    if "trajectory" in config.sources:
        window = {"window": config.window, "ngram": config.ngram, "guesses": config.guesses}
    return {**window, "budget": config.step_limit, "sources": "+".join(config.sources)}


def described_sampling(sampling: SamplingConfig) -> dict[str, int | float]:
    """Values of sampling that are not the default; the seed where tokens are drawn."""
    default = SamplingConfig()
    found = {
        name: value
        for name, value in dataclasses.asdict(sampling).items()
        if value != getattr(default, name) and name != "seed"
    }
    return found if sampling.greedy else {**found, "seed": sampling.seed}


def command_line(arguments: Sequence[str]) -> str:
    """What was typed, without the folders of files.

    Args:
        arguments: without the program's name.
    """
    words = ["lade"]
    for word in arguments:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if words[-1] in _TEXTS or option in _TEXTS:
            words.append(word)
        else:
            words.append(f"{option}{equals}{_without_folder(value)}" if value else word)
    return shlex.join(words)


def _without_folder(value: str) -> str:
    """The last part of a path; ids of the hub and other values stay."""
    path = Path(value)
    is_file = path.exists() or path.suffix in (".html", ".json", ".jsonl", ".md")
    is_hub_id = re.fullmatch(r"\w[\w.-]*/[\w.-]+", value) and not is_file
    return value if "/" not in value or is_hub_id else path.name
