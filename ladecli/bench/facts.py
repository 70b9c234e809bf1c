"""Where and what was measured, as the values that a result holds."""

from __future__ import annotations

import dataclasses
import platform
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import ways
from ..decoder.config import SamplingConfig
from ..profiles.user import versions_here
from .result import Machine, Model

if TYPE_CHECKING:
    from ..models import LoadedModel
    from ..session import Session
    from ..settings import Request


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
    """What a session runs, and the attention that a request comes to."""
    loaded, shape = session.loaded, session.loaded.shape
    local = Path(loaded.name).is_dir()
    attention = ways.attention_of(request, loaded.device, loaded.part)
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
        attention=attention.name,
        captured=session.decoder.runner.captures,
        compiled=session.decoder.runner.compiles,
    )


def described_sampling(sampling: SamplingConfig) -> dict[str, int | float]:
    """How tokens are chosen, as far as it is not the default; the seed where there are draws."""
    default = SamplingConfig()
    found = {
        name: value
        for name, value in dataclasses.asdict(sampling).items()
        if value != getattr(default, name) and (name != "seed" or not sampling.greedy)
    }
    return found if sampling.greedy else {**found, "seed": sampling.seed}


def fingerprint(loaded: LoadedModel) -> list[Any]:
    """What tells a model from another one of its name: its commit, or its files."""
    folder = Path(loaded.name)
    if not folder.is_dir():
        return [getattr(loaded.model.config, "_commit_hash", None)]
    files = sorted((file.name, file.stat()) for file in folder.iterdir() if file.is_file())
    return [str(folder.resolve()), *((name, s.st_size, s.st_mtime_ns) for name, s in files)]


_TEXTS = ("-s", "--system", "--stop")
"""Options whose values are no files, whatever they look like."""
_SUFFIXES = (".html", ".json", ".jsonl", ".md", ".svg")
"""Of files that are given to `lade bench`, or that it writes."""


def command_line(arguments: Sequence[str]) -> str:
    """What was typed, with names of files in place of their paths.

    Args:
        arguments: without the program's name.
    """
    words = ["lade"]
    for word in arguments:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if words[-1] in _TEXTS or option in _TEXTS:
            words.append(word)
        else:
            words.append(f"{option}{equals}{_short(value)}" if value else word)
    return shlex.join(words)


def _short(value: str) -> str:
    """A path's last part; whatever is no path stays."""
    path = Path(value)
    is_hub_id = re.fullmatch(r"\w[\w.-]*/[\w.-]+", value) and path.suffix not in _SUFFIXES
    return value if "/" not in value or (is_hub_id and not path.exists()) else path.name
