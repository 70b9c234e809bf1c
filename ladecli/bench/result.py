"""The result of a benchmark, and its JSON (schema `lade-bench/1`)."""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..decoder.config import LookaheadConfig, SamplingConfig

if TYPE_CHECKING:
    from ..session.session import Session

SCHEMA = "lade-bench/1"
PLAIN = "autoregressive"
"""The baseline of speed-ups and equality, if it takes part."""
STOCK, STOCK_LOOKUP, STOCK_COMPILED = "hf", "hf-prompt-lookup", "hf-compiled"
FOREIGN = (STOCK, STOCK_LOOKUP, STOCK_COMPILED)
"""transformers' own `generate`: plain, with prompt lookup, and with compiled steps."""


def describe_machine(session: Session) -> dict[str, Any]:
    """Describe the machine of a session for a result."""
    from ..models.device import details
    from ..profiles.user import versions_here

    device = session.loaded.device
    return {
        "device": device.label,
        "kind": device.kind,
        "memory": device.memory,  # bytes; like `threads`, 0 if unknown
        "threads": device.threads,
        "system": f"{platform.system()} {platform.machine()}",
        "driver": details(device).driver,
        "versions": {**versions_here(), "python": platform.python_version()},
    }


def describe_model(session: Session) -> dict[str, Any]:
    """Describe the model of a session for a result."""
    loaded, shape = session.loaded, session.loaded.spec
    local = Path(loaded.name).is_dir()
    return {
        "name": Path(loaded.name).resolve().name if local else loaded.name,
        "parameters": shape.parameters,
        "active": shape.active,  # parameters that one token uses
        "weights": shape.weights,
        "compute": shape.compute,
        "context": session.decoder.max_context,  # the most tokens on this machine
        "attention": session.setup.attention.name,
        "captured": session.decoder.executor.overlaps,
    }


@dataclass(frozen=True, slots=True)
class Method:
    """A measured decoding method."""

    name: str  # unique in the result
    strategy: str
    settings: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def foreign(self) -> bool:
        """True if the method is transformers' `generate`."""
        return self.strategy in FOREIGN


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one method.

    A step is a forward pass that yields tokens; the first one reads the end of the prompt.
    """

    contender: str  # the name of the method
    row: str
    category: str  # of the prompt; in a sweep over contexts, the length, such as "4096"
    turn: int  # like `repeat`, starting at 1
    repeat: int
    prompt_tokens: int
    prompt_digest: str  # a hash of its token ids
    tokens: int
    first_tokens: int  # of the first step
    steps: int
    fed: int | None  # tokens fed to the model after the first step; None if unknown
    first_seconds: float  # to the first token
    step_seconds: tuple[float, ...]  # of every step after the first
    accepted: Mapping[str, int]  # draft tokens by source
    peak_memory: int | None  # bytes on the GPU, or of the process; None if unknown
    reason: str  # as in `events.Reason`
    digest: str  # of the answer's token ids

    @property
    def key(self) -> tuple[str, int, int]:
        """The key by which answers of two methods are paired."""
        return self.row, self.turn, self.repeat

    @property
    def decode_seconds(self) -> float:
        """The seconds of all steps after the first."""
        return sum(self.step_seconds)

    @property
    def decoded(self) -> int:
        """Tokens after the first step."""
        return self.tokens - self.first_tokens


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row that was not measured, or a conversation that ended early, with the reason."""

    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A method that failed on a row, and the error in one line."""

    contender: str  # the name of the method
    row: str
    error: str


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """The time of a method's steps after the first one of each answer, by part of a step."""

    contender: str  # the name of the method
    steps: int
    seconds: Mapping[str, float]  # per step: "draft", "forward", "commit", "learn" and "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A whole result, as in the JSON; `statistics.py` computes figures from the runs."""

    schema: str
    created: str
    seconds: float  # without loading
    interrupted: bool
    reference: str | None  # the baseline of speed-ups and equality
    machine: Mapping[str, Any]
    model: Mapping[str, Any]
    conditions: Mapping[str, Any]  # the options
    contenders: tuple[Method, ...]
    runs: tuple[Run, ...]
    skipped: tuple[SkippedRow, ...] = ()
    failures: tuple[Failure, ...] = ()
    time_spent: tuple[TimeSpent, ...] = ()

    @property
    def sampled(self) -> bool:
        """True if tokens are drawn, for which transformers uses other random numbers."""
        return bool(self.conditions["sampling"].get("temperature", 0.0) > 0.0)

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories in the order of the rows."""
        return tuple(dict.fromkeys(run.category for run in self.runs))

    def runs_of(self, method: str, category: str | None = None) -> list[Run]:
        """Return the runs of a method, of one category or of all."""
        return [
            run for run in self.runs if run.contender == method and category in (None, run.category)
        ]


def to_json(result: Result) -> str:
    """Return a result as one line of ASCII, without control characters from names."""
    return json.dumps(asdict(result), allow_nan=False)


def lookahead_shown(config: LookaheadConfig) -> dict[str, int | str]:
    """Return the settings of lookahead by their names in results."""
    window: dict[str, int | str] = {}
    if "trajectory" in config.sources:
        window = {"window": config.window, "ngram": config.ngram, "guesses": config.guesses}
    return {**window, "budget": config.step_limit, "sources": "+".join(config.sources)}


def sampling_shown(sampling: SamplingConfig) -> dict[str, int | float]:
    """Return the sampling values that are not the default, and the seed unless it is greedy."""
    usual = replace(SamplingConfig(), seed=sampling.seed)
    changed = {n: value for n, value in asdict(sampling).items() if value != getattr(usual, n)}
    return changed if sampling.greedy else {**changed, "seed": sampling.seed}


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def command_line(arguments: Sequence[str]) -> str:
    """Return the command line of some arguments, without absolute folders."""
    return shlex.join(["lade", *(re.sub(r"^(--[\w-]+=)?/.*/", r"\1", word) for word in arguments)])
