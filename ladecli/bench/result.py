"""What a benchmark measured, as values, and the JSON that holds them (schema `lade-bench/1`)."""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter

from ..decoder.config import LookaheadConfig, SamplingConfig

if TYPE_CHECKING:
    from ..session.session import Session

SCHEMA = "lade-bench/1"
PLAIN = "autoregressive"
"""The baseline of speed-ups and equality, where it takes part."""
STOCK, STOCK_LOOKUP, STOCK_COMPILED = "hf", "hf-prompt-lookup", "hf-compiled"
FOREIGN = (STOCK, STOCK_LOOKUP, STOCK_COMPILED)
"""transformers' own `generate`: plain, with prompt lookup, and with compiled steps."""

MethodName = Annotated[str, Field(alias="contender")]
"""A method's name, which JSON has under its older key."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured."""

    device: str
    kind: str
    memory: int  # bytes; 0 if unknown, as are `threads`
    threads: int
    system: str
    driver: str | None
    versions: Mapping[str, str]

    @classmethod
    def of(cls, session: Session) -> Machine:
        """The machine on which a session runs."""
        from ..profiles.user import versions_here
        from ..specs.device import details

        device = session.loaded.device
        return cls(
            device=device.label,
            kind=device.kind,
            memory=device.memory,
            threads=device.threads,
            system=f"{platform.system()} {platform.machine()}",
            driver=details(device).driver,
            versions={**versions_here(), "python": platform.python_version()},
        )


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """The model that was measured."""

    name: str
    parameters: float
    active: float  # parameters that one token uses
    weights: str
    compute: str
    context: int  # the most tokens here
    attention: str
    captured: bool = False

    @classmethod
    def of(cls, session: Session) -> MeasuredModel:
        """The model of a session."""
        loaded, shape = session.loaded, session.loaded.spec
        local = Path(loaded.name).is_dir()
        return cls(
            name=Path(loaded.name).resolve().name if local else loaded.name,
            parameters=shape.parameters,
            active=shape.active,
            weights=shape.weights,
            compute=shape.compute,
            context=session.decoder.max_context,
            attention=session.setup.attention.name,
            captured=session.decoder.runner.captures,
        )


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was asked for."""

    prompts: str
    rows: int  # conversations that could be measured
    repeat: int
    max_new_tokens: int
    ignore_eos: bool
    template: bool  # whether they went through the model's chat template
    sampling: Mapping[str, int | float]
    profile: str
    sweep: Mapping[str, tuple[str, ...]]
    command: str
    ranks: int = 1
    parallel_mode: str | None = None

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn: transformers draws them with other random numbers."""
        return self.sampling.get("temperature", 0.0) > 0.0


@dataclass(frozen=True, slots=True)
class Method:
    """One way to decode that is measured."""

    name: str  # unique in the result
    strategy: str
    settings: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def foreign(self) -> bool:
        """Whether it is transformers' `generate`."""
        return self.strategy in FOREIGN


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one method.

    A step is a forward pass that yields tokens; the first one reads the end of the prompt.
    """

    method: MethodName
    row: str
    category: str  # of the prompt; in a sweep over contexts, the length, such as "4096"
    turn: int  # from 1 on, as is `repeat`
    repeat: int
    prompt_tokens: int
    prompt_digest: str  # of its token ids; equal where those are
    tokens: int
    first_tokens: int  # of the first step
    steps: int
    fed: int | None  # tokens fed to the model after the first step; None if unknown
    first_seconds: float  # to the first token
    step_seconds: tuple[float, ...]  # of every step after the first
    accepted: Mapping[str, int]  # draft tokens by source
    peak_memory: int | None  # bytes on the GPU, or of the process; None if unknown
    reason: str  # why it ended, as in `events.Reason`
    digest: str  # of the answer's token ids

    @property
    def key(self) -> tuple[str, int, int]:
        """Answers of two methods are paired by this."""
        return self.row, self.turn, self.repeat

    @property
    def decode_seconds(self) -> float:
        """Of all steps after the first."""
        return sum(self.step_seconds)

    @property
    def decoded(self) -> int:
        """Tokens after the first step."""
        return self.tokens - self.first_tokens


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was not measured, or a conversation that ended early, and why."""

    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A method that failed on a row, and the error in one line."""

    method: MethodName
    row: str
    error: str


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where the time of one method goes, in the steps after the first of each answer."""

    method: MethodName
    steps: int
    # Per step, by part: "draft", "forward", "commit", "learn" and "text".
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All of it, as the JSON has it; `statistics.py` makes figures from the runs."""

    schema: str
    created: str
    seconds: float  # without loading
    interrupted: bool
    reference: str | None  # the baseline of speed-ups and equality
    machine: Machine
    model: MeasuredModel
    conditions: Conditions
    methods: Annotated[tuple[Method, ...], Field(alias="contenders")]
    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...] = ()
    failures: tuple[Failure, ...] = ()
    time_spent: tuple[TimeSpent, ...] = ()

    @property
    def categories(self) -> tuple[str, ...]:
        """In the order of the rows."""
        return tuple(dict.fromkeys(run.category for run in self.runs))

    def runs_of(self, method: str, category: str | None = None) -> list[Run]:
        """The runs of a method, of one category or of all."""
        return [
            run for run in self.runs if run.method == method and category in (None, run.category)
        ]


_RESULT = TypeAdapter(Result)


def to_json(result: Result) -> str:
    """A result as one line of ASCII, so that no name in it can drive a terminal."""
    return json.dumps(_RESULT.dump_python(result, by_alias=True), allow_nan=False)


def lookahead_shown(config: LookaheadConfig) -> dict[str, int | str]:
    """Settings of lookahead as results name them."""
    window: dict[str, int | str] = {}
    if "trajectory" in config.sources:
        window = {"window": config.window, "ngram": config.ngram, "guesses": config.guesses}
    return {**window, "budget": config.step_limit, "sources": "+".join(config.sources)}


def sampling_shown(sampling: SamplingConfig) -> dict[str, int | float]:
    """Values of sampling that are not the default; the seed where tokens are drawn."""
    usual = replace(SamplingConfig(), seed=sampling.seed)
    found = {n: value for n, value in asdict(sampling).items() if value != getattr(usual, n)}
    return found if sampling.greedy else {**found, "seed": sampling.seed}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def command_line(arguments: Sequence[str]) -> str:
    """A command line from the arguments after the program's name, without absolute folders."""
    return shlex.join(["lade", *(re.sub(r"^(--[\w-]+=)?/.*/", r"\1", each) for each in arguments)])
