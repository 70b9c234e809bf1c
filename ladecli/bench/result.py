"""What a benchmark found, as values: reports, comparisons and resuming all start from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = "lade-bench/1"
PLAIN = "autoregressive"
"""The contender that others are measured against, where it takes part."""
STOCK, STOCK_LOOKUP, STOCK_COMPILED = "hf", "hf-prompt-lookup", "hf-compiled"
FOREIGN = (STOCK, STOCK_LOOKUP, STOCK_COMPILED)
"""transformers' own `generate`: plain, with prompt lookup, and with a static cache and compiled
steps."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured.

    Attributes:
        device: its own name: of the GPU, as its driver says it, or of the processor.
        kind: "cpu", "cuda" or "mps".
        memory: bytes of it; 0 if unknown.
        threads: that torch computes with on a CPU; 0 elsewhere.
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
        active: of them, those that one token meets.
        weights: type that they are stored in.
        compute: type of activations, keys and values.
        weight_bytes: of all weights.
        cache_bytes: of the keys and values of one token.
        context: the most tokens of prompt and answer.
        made_for: as many as the model was made for: behind them, its text means nothing.
        attention: the backend of our own strategies.
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
        repeat: times that each was measured.
        max_new_tokens: of an answer.
        ignore_eos: whether answers go on behind end tokens.
        template: whether prompts went through the model's chat template.
        sampling: temperature, top_k and so on, and the seed; what is off is left out.
        profile: hardware profile of the default settings.
        sweep: values by axis, where settings or lengths were swept.
        command: the command line, without paths that lead to files of the user's.
        ranks: processes that decode together.
        parallel_mode: what they share, "lookahead" or "tensor", where there are several.
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
class Contender:
    """Something that decodes.

    Attributes:
        name: unique in a result: "lookahead", or "lookahead W=5 N=3 G=5" in a sweep.
        strategy: "autoregressive", "jacobi", "prompt-lookup", "paper", "lookahead", "hf",
            "hf-prompt-lookup" or "hf-compiled".
        settings: window, ngram, guesses, budget, sources, where it has them.
        cell: its place in a sweep by axis, as typed; empty outside.
    """

    name: str
    strategy: str
    settings: Mapping[str, int | str] = field(default_factory=dict)
    cell: Mapping[str, str] = field(default_factory=dict)

    @property
    def foreign(self) -> bool:
        """Whether it is transformers' `generate`: none of our code."""
        return self.strategy in FOREIGN


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one contender.

    A step is a forward pass that yields tokens; the first one reads the end of the prompt.

    Attributes:
        contender: its name.
        row: id of the prompt's row.
        category: of the row; in a sweep over contexts, the length, "4096" for example.
        turn: of the conversation, from 1 on.
        repeat: from 1 on.
        place: when its turn came among the contenders of the round, from 1 on.
        began: seconds after the benchmark's start.
        prompt_tokens: of the prompt.
        prompt_digest: of its token ids; equal where the prompts are.
        tokens: of the answer.
        first_tokens: of them, those of the first step.
        steps: how many there were.
        fed: tokens that those behind the first fed to the model; None where nobody knows
            (transformers).
        first_seconds: from the prompt to the first token; where contenders find the prompt read,
            what reading it took.
        step_seconds: of every step behind the first, to the microsecond.
        accepted: draft tokens by source.
        peak_memory: bytes: allocated on the GPU, or resident for the process; None if unknown.
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
        """Of all steps behind the first."""
        return sum(self.step_seconds)

    @property
    def decoded(self) -> int:
        """Tokens behind the first step."""
        return self.tokens - self.first_tokens


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was not measured, or a conversation that ended early, and why: "longer than the
    context: 2,100 of 2,048 tokens"."""

    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A contender that could not go on: where, and the line that says why."""

    contender: str
    row: str
    error: str


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where one contender's time goes, from answers of their own beside the timed ones.

    Attributes:
        contender: its name.
        steps: behind the first of each answer, so many.
        seconds: per step, by part: "draft" (and layout), "forward", "verify" (and the cache, and
            agreeing with other ranks), "learn" and "view" (drawing the text).
        width: tokens fed per step, mean.
        context: tokens that a step stood behind, mean.
        read_bytes: weights, keys and values that a step must read.
        operations: that a step must do; a product and a sum are two.
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
    """What this machine reached in the same run: bytes and operations per second."""

    bandwidth: float
    arithmetic: float


@dataclass(frozen=True, slots=True)
class Result:
    """All of it; figures are made from the runs, by `figures.py`.

    Attributes:
        created: date and time, ISO 8601 with the zone.
        seconds: how long it took, loading left out.
        overhead: share of the time between the first run and the last that no run had.
        interrupted: whether Ctrl-C ended it early.
        reference: the contender that speed-ups and equality refer to; None without any.
        attention_why: what spoke for the attention backend; "" where nobody says.
        compile_seconds: what compiling transformers' steps took, beside all figures; 0 where
            nothing was compiled for them.
    """

    created: str
    seconds: float
    overhead: float
    interrupted: bool
    reference: str | None
    machine: Machine
    model: Model
    conditions: Conditions
    contenders: tuple[Contender, ...]
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

    def runs_of(self, contender: str, category: str | None = None) -> list[Run]:
        """The runs of a contender, of one category or of all."""
        return [
            run
            for run in self.runs
            if run.contender == contender and category in (None, run.category)
        ]
