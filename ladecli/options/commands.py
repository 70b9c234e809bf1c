"""The options of commands that serve, measure, list or check."""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, dataclass
from functools import partial

from ..errors import UsageError
from .answer import (
    KEEP_MEMORY,
    AnswerOptions,
    DraftTextOptions,
    MemoryOptions,
    QuietOptions,
    RankedOptions,
    TemplateOptions,
    bytes_in,
    length_option,
    output_option,
)
from .declare import Options, option
from .drafting import DraftOptions, decode_option
from .model import DeviceOptions, SessionOptions, model_argument

_serve = partial(option, "Serving")
_measure = partial(option, "Measuring", lasting=False)
_argument = partial(output_option, default=MISSING, argument=True, lasting=False)


@dataclass(frozen=True, kw_only=True)
class ServeRequest(DraftTextOptions, MemoryOptions, RankedOptions):
    """Serve OpenAI's and Anthropic's APIs at http://127.0.0.1:8000/v1.

    Requests are answered one at a time. A request may override the options given here.
    """

    max_new_tokens: int | None = length_option(
        "Maximum number of new tokens of an answer, unless its request says otherwise.",
        "-n",
        default=4096,
        least=1,
    )
    host: str = _serve("Address to listen on; 0.0.0.0 means all addresses.", default="127.0.0.1")
    port: int = _serve(
        "Port to listen on; 0 means any free one.", default=8000, least=0, most=65535
    )
    served_name: str | None = _serve(
        "Name of the model for clients; default: MODEL itself.",
        "--name",
        metavar="NAME",
        lasting=False,
    )
    api_key: str | None = _serve(
        "Key that clients must send; better in LADE_API_KEY, which other users cannot see.",
        metavar="KEY",
        secret=True,
    )
    cors: list[str] | None = _serve(
        "Origin of web pages that may send requests, such as http://localhost:3000; * means all."
        " Can be repeated.",
        metavar="ORIGIN",
    )
    keep_memory: str = _serve(
        "Memory for keys and values of earlier conversations, such as 500MB or 2GiB; 0: none.",
        default=KEEP_MEMORY,
        metavar="SIZE",
    )
    queue: int = _serve(
        "Maximum number of requests that wait; further ones are refused.", default=16, least=1
    )
    client_timeout: float = _serve(
        "Seconds that a client may take to send a request, or may stop reading its answer.",
        default=30.0,
        least=0.1,
    )

    def _check(self) -> None:
        super()._check()
        bytes_in(self.keep_memory)
        for origin in self.cors or ():
            if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+", origin):
                raise UsageError(
                    f"cors {origin} is not a web origin; write it as http://localhost:3000"
                )
        if self.api_key == "":
            raise UsageError("api-key is empty; give a key, or leave it out")


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
    """Measure how long steps of each width take here, and keep the times for this model."""

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

    model: str | None = model_argument("Hugging Face id, local folder or GGUF file to check.")


@dataclass(frozen=True, kw_only=True)
class ProfileRequest(JsonOptions, DeviceOptions):
    """List the hardware profiles, and mark the one that this machine uses; or show one as TOML."""

    profile: str | None = decode_option("A profile to show.", metavar="NAME", argument=True)


class ModelsRequest(JsonOptions):
    """List the models in the Hugging Face cache: name, size, path, and whether they fit."""


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
