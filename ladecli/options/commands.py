"""The options of commands that measure, list or check."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from functools import partial

from ..errors import UsageError
from .answer import (
    AnswerOptions,
    QuietOptions,
    RankedOptions,
    TemplateOptions,
    length_option,
    output_option,
)
from .declare import Options, option
from .drafting import DraftOptions, decode_option
from .model import (
    DeviceOptions,
    SessionOptions,
    model_argument,
)

_measure = partial(option, "Measuring", lasting=False)
_argument = partial(output_option, default=MISSING, argument=True, lasting=False)


@dataclass(frozen=True, kw_only=True)
class JsonOptions(Options):
    """The option of commands with output for programs."""

    json: bool = output_option(
        "Print one JSON object in place of text.", default=False, lasting=False
    )


@dataclass(frozen=True, kw_only=True)
class MeasureRequest(JsonOptions, AnswerOptions):
    """The options that `lade bench` and `lade verify` share."""

    max_new_tokens: int = length_option("Maximum number of new tokens.", "-n", default=128, least=1)
    prompts: str = _measure(
        "builtin, mt-bench, humaneval, gsm8k, spec-bench, or a .jsonl file.",
        default="builtin",
        metavar="SUITE|FILE",
    )
    limit: int | None = _measure("Maximum number of prompts, of all categories.", least=1)


@dataclass(frozen=True, kw_only=True)
class BenchRequest(MeasureRequest, RankedOptions):
    """Measure strategies and transformers' own generate side by side."""

    strategy: str = "lookahead"  # no option: each method has a strategy of its own
    max_new_tokens: int = length_option("Maximum number of new tokens.", "-n", default=64, least=1)
    limit: int | None = _measure(
        "Maximum number of prompts, of all categories; default: 6 of the builtin ones.", least=1
    )
    strategies: str | None = _measure(
        "Some of autoregressive, jacobi, prompt-lookup, paper, lookahead, hf,"
        " hf-prompt-lookup, hf-compiled; default: autoregressive,prompt-lookup,lookahead,hf.",
        metavar="LIST",
    )
    repeat: int = _measure("Number of times that every prompt is measured.", default=1, least=1)
    sweep: list[str] | None = _measure(
        "A grid, such as 'W=5,10,15 N=3,5 G=W'; axes: W, N, G, budget, sources, context.",
        metavar="AXES",
    )
    report: list[str] | None = output_option(
        "Also write the tables (.md) or the figures (.json); can be repeated.",
        metavar="FILE",
        lasting=False,
    )


@dataclass(frozen=True, kw_only=True)
class VerifyRequest(MeasureRequest):
    """Decode prompts again without drafts, and report the first difference.

    The exit code is 1 if rounding does not explain a difference.
    """


@dataclass(frozen=True, kw_only=True)
class TuneRequest(JsonOptions, QuietOptions, SessionOptions):
    """Measure what a step of each width takes here, and keep it for this model."""

    seconds: float = _measure("Time in seconds, after loading.", default=10.0, lasting=True)
    dry_run: bool = _measure("Measure and show; write nothing.", default=False)

    def _check(self) -> None:
        super()._check()
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"seconds must be finite and above 0, not {self.seconds:g}")


@dataclass(frozen=True, kw_only=True)
class DoctorRequest(JsonOptions, TemplateOptions, DraftOptions, SessionOptions):
    """Check this machine and installation, and suggest fixes.

    With a model: whether it fits, and how it would be decoded.
    """

    model: str | None = model_argument("Hugging Face id or local folder to check, too.")


@dataclass(frozen=True, kw_only=True)
class ProfileRequest(JsonOptions, DeviceOptions):
    """List the hardware profiles, and mark the one that this machine uses; or show one as TOML."""

    profile: str | None = decode_option("A profile to show.", metavar="NAME", argument=True)


class ModelsRequest(JsonOptions):
    """List the models on this machine: name, size, path, and whether they fit."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest(Options):
    """Print a recorded generation again, or look into its steps."""

    trace: str = _argument("A file that --trace wrote.", metavar="TRACE")
    step: bool = output_option(
        "Step by step: window, n-grams, candidates.", default=False, lasting=False
    )


@dataclass(frozen=True, kw_only=True)
class InitRequest(Options):
    """Write a config file with every setting in it, commented out."""

    force: bool = output_option(
        "Write a new file, and keep a copy of the old one.", default=False, lasting=False
    )


class ShowRequest(Options):
    """Show the path of the config file, and each of its settings with its value and origin.

    lade config init writes a config file.
    """
