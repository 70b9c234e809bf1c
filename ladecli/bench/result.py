"""What a benchmark measured, as values, and the JSON that holds them (schema `lade-bench/1`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import UsageError

SCHEMA = "lade-bench/1"
PLAIN = "autoregressive"
"""The baseline of speed-ups and equality, where it takes part."""
STOCK, STOCK_LOOKUP, STOCK_COMPILED = "hf", "hf-prompt-lookup", "hf-compiled"
FOREIGN = (STOCK, STOCK_LOOKUP, STOCK_COMPILED)
"""transformers' own `generate`: plain, with prompt lookup, and with compiled steps."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured.

    Attributes:
        device: name of the GPU or of the processor.
        kind: "cpu", "cuda" or "mps".
        memory: bytes; 0 if unknown.
        threads: of torch, on a CPU; 0 elsewhere.
        system: operating system and architecture.
        driver: of the GPU, or None.
        versions: of lade, python, torch and transformers.
    """

    device: str
    kind: str
    memory: int
    threads: int
    system: str
    driver: str | None
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Model:
    """What was measured.

    Attributes:
        name: Hugging Face id, or name of the folder.
        parameters: of the whole model.
        active: parameters that one token uses.
        weights, compute: types of the weights, and of activations and cache.
        weight_bytes: of all weights.
        cache_bytes: of the keys and values of one token.
        context: maximum tokens of prompt and answer.
        made_for: maximum tokens that the model was trained for.
        attention: backend of our own strategies.
        captured: whether their steps are CUDA graphs.
        compiled: whether those were compiled by torch first.
    """

    name: str
    parameters: float
    active: float
    weights: str
    compute: str
    weight_bytes: float
    cache_bytes: float
    context: int
    made_for: int
    attention: str
    captured: bool = False
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was asked of it.

    Attributes:
        prompts: name of the suite or file.
        rows: conversations measured.
        repeat: measurements of each.
        max_new_tokens: of an answer.
        ignore_eos: whether answers go on after end tokens.
        template: whether prompts went through the model's chat template.
        sampling: what differs from greedy decoding, and the seed.
        profile: hardware profile of the default settings.
        sweep: values by axis.
        command: the command line, without folders of the user's.
        ranks: processes that decode together.
        parallel_mode: "lookahead" or "tensor", with several ranks.
    """

    prompts: str
    rows: int
    repeat: int
    max_new_tokens: int
    ignore_eos: bool
    template: bool
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
    """One way to decode that is measured; JSON calls it a contender.

    Attributes:
        name: unique in the result.
        strategy: one of `methods.STRATEGIES`.
        settings: window, ngram, guesses, budget, sources, where it has them.
        cell: its values in a sweep by axis, as typed; empty outside.
    """

    name: str
    strategy: str
    settings: Mapping[str, int | str] = field(default_factory=dict)
    cell: Mapping[str, str] = field(default_factory=dict)

    @property
    def foreign(self) -> bool:
        """Whether it is transformers' `generate`."""
        return self.strategy in FOREIGN


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one method.

    A step is a forward pass that yields tokens; the first one reads the end of the prompt.

    Attributes:
        contender: name of the method.
        row: id of the prompt.
        category: of the prompt; in a sweep over contexts, the length, such as "4096".
        turn, repeat: from 1 on.
        place: position of the method in this round, from 1 on.
        began: seconds after the first round's start.
        prompt_tokens: of the prompt.
        prompt_digest: of its token ids; equal where the prompts are.
        tokens: of the answer.
        first_tokens: those of the first step.
        steps: of the answer.
        fed: tokens fed to the model after the first step; None if unknown (transformers).
        first_seconds: time to the first token; where methods share a prompt that is read
            already, what reading it took.
        step_seconds: of every step after the first.
        accepted: draft tokens by source.
        peak_memory: bytes allocated on the GPU, or resident for the process; None if unknown.
        reason: why it ended, as in `events.Reason`.
        digest: of the answer's token ids; equal where the answers are.
    """

    contender: str
    row: str
    category: str
    turn: int
    repeat: int
    place: int
    began: float
    prompt_tokens: int
    prompt_digest: str
    tokens: int
    first_tokens: int
    steps: int
    fed: int | None
    first_seconds: float
    step_seconds: tuple[float, ...]
    accepted: Mapping[str, int]
    peak_memory: int | None
    reason: str
    digest: str

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

    contender: str
    row: str
    error: str


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where the time of one method goes, in the steps after the first of each answer.

    Attributes:
        contender: name of the method.
        steps: number of these steps.
        seconds: per step, by part: "draft", "forward", "verify", "learn" and "text".
        width: mean tokens fed per step.
        context: mean tokens before a step.
        read_bytes: weights, keys and values that a step must read.
        operations: of a step; a multiply-add is two.
    """

    contender: str
    steps: int
    seconds: Mapping[str, float]
    width: float
    context: float
    read_bytes: float
    operations: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Bytes and operations per second that this machine reached in the same process."""

    bandwidth: float
    arithmetic: float


@dataclass(frozen=True, slots=True)
class Result:
    """All of it; `statistics.py` makes figures from the runs.

    Attributes:
        created: ISO 8601 date and time.
        seconds: duration, loading left out.
        overhead: share of the time in which no method was running.
        interrupted: whether Ctrl-C ended it early.
        reference: the baseline of speed-ups and equality; None without one.
        contenders: the methods.
        attention_why: why this attention backend was chosen.
        compile_seconds: compiling transformers' steps, which no figure contains.
    """

    created: str
    seconds: float
    overhead: float
    interrupted: bool
    reference: str | None
    machine: Machine
    model: Model
    conditions: Conditions
    contenders: tuple[Method, ...]
    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...] = ()
    failures: tuple[Failure, ...] = ()
    time_spent: tuple[TimeSpent, ...] = ()
    ceiling: Ceiling | None = None
    attention_why: str = ""
    compile_seconds: float = 0.0

    @property
    def categories(self) -> tuple[str, ...]:
        """In the order of the rows."""
        return tuple(dict.fromkeys(run.category for run in self.runs))

    def runs_of(self, method: str, category: str | None = None) -> list[Run]:
        """The runs of a method, of one category or of all."""
        return [
            run for run in self.runs if run.contender == method and category in (None, run.category)
        ]


@cache
def _adapter() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


def as_object(result: Result) -> dict[str, Any]:
    """A result as an object for `json.dumps`; its keys are part of the interface."""
    return {"schema": SCHEMA, **_adapter().dump_python(result, mode="json")}


def to_json(result: Result) -> str:
    """A result as one line of ASCII, so that no name in it can drive a terminal."""
    return json.dumps(as_object(result), allow_nan=False)


def read(path: Path) -> Result:
    """The result in a file.

    Raises:
        UsageError: it cannot be read, or is no result; the message says why.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a BOM
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(
            f"{path} is not UTF-8 (older PowerShells write UTF-16 after >); let --report write it"
        ) from None
    except ValueError as error:
        raise UsageError(
            f"{path} is no result of lade bench ({error}); give one that --json or --report wrote"
        ) from None
    schema = data.pop("schema", None) if isinstance(data, dict) else None
    if schema != SCHEMA:
        what = f"has schema {schema!r}" if schema else "has no schema"
        raise UsageError(f"{path} {what}, and this program reads {SCHEMA}; measure again")
    try:
        return _adapter().validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path} is damaged: {where}: {first['msg']}") from None
