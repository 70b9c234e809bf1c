"""The only place where an option exists: a field of a command's request.

Everything else is made from these fields: flags and help (`cli`), `LADE_` variables and the config
file (`config`), `/set` and `/show` of a chat, and what a program may ask for (`api`).  An option is
added by adding a field.
"""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import Any

from ..decoder.config import (
    SOURCES,
    STRATEGIES,
    LookaheadConfig,
    SamplingConfig,
)
from ..errors import UsageError
from .declare import Options, option

MEASURED_TOKENS = 128
"""Default length of an answer that is measured."""
GENERATED_TOKENS = 512
"""Default length of an answer of `lade generate`."""

_prompt = partial(option, "Prompt")
_measure = partial(option, "Measuring", lasting=False)
_plan = partial(option, "Planning", lasting=False)
_length = partial(option, "Length")
_decode = partial(option, "Decoding")
_sample = partial(option, "Sampling")
_model = partial(option, "Model")
_output = partial(option, "Output")
_model_name = partial(_model, metavar="MODEL", argument=True)
_file = partial(_output, metavar="FILE", lasting=False)
_json = partial(_output, "Print one JSON object in place of text.", default=False, lasting=False)
_argument = partial(_output, default=MISSING, argument=True, lasting=False)


@dataclass(frozen=True, kw_only=True)
class Request(Options):
    """The options that commands with a model share; each command offers those that it needs."""

    model: str | None = _model_name(
        "Hugging Face id or local folder; default: the bundled demo model."
    )
    system: str | None = _prompt("System message; needs a chat template.", "-s")
    max_new_tokens: int | None = _length(
        "Maximum number of new tokens; default: until the context is full.", "-n", least=1
    )
    stop: list[str] | None = _length(
        "End before this text; can be repeated.", metavar="TEXT", has_variable=False
    )
    ignore_eos: bool = _length("Ignore end-of-text tokens and keep generating.", default=False)
    max_context: int | None = _length(
        "Maximum number of tokens of prompt and answer; default: the model's own.", least=2
    )
    strategy: str = _decode(
        "lookahead, autoregressive, jacobi or prompt-lookup.",
        default="lookahead",
        choices=STRATEGIES,
    )
    profile: str | None = _decode("Hardware profile; default: the detected device's.")
    window: int | None = _decode("Columns of the lookahead window (W).", "-W")
    ngram: int | None = _decode("Length of the n-grams (N).", "-N")
    guesses: int | None = _decode("N-grams verified in a step (G).", "-G")
    budget: int | None = _decode("Maximum number of tokens in a step.")
    sources: str | None = _decode(
        "Where drafts come from, comma-separated: trajectory, context, recycled."
        " trajectory alone is the paper's algorithm."
    )
    pool_file: str | None = _decode(
        "Keep what was learned about drafting in this file: the next call starts with it.",
        metavar="FILE",
    )
    temperature: float | None = _sample(
        "Sampling temperature; 0 is greedy. Default: 0, and in a chat the model's own.", "-t"
    )
    top_k: int | None = _sample("Keep the K most probable tokens; 0 keeps all.")
    top_p: float | None = _sample(
        "Nucleus sampling: keep the smallest set of tokens with total probability P."
    )
    min_p: float | None = _sample("Keep tokens at least P times as probable as the best one.")
    repetition_penalty: float | None = _sample(
        "Above 1 avoids repetition; default: the model's own."
    )
    seed: int | None = _sample("Random seed for sampling; the same seed gives the same text.")
    dtype: str = _model(
        "auto, float32, float16 or bfloat16.",
        default="auto",
        choices=("auto", "float32", "float16", "bfloat16"),
    )
    device: str = _model("auto, cpu, cuda, cuda:N or mps.", default="auto")
    quantize: str = _model(
        "none, 4bit or 8bit (bitsandbytes).", default="none", choices=("none", "4bit", "8bit")
    )
    attention: str = _model(
        "auto (the fastest here), reference, sdpa, flash or triton.",
        default="auto",
        choices=("auto", "reference", "sdpa", "flash", "triton"),
    )
    cuda_graphs: bool | None = _model(
        "Capture steps as CUDA graphs, or launch kernels one by one; on with a CUDA GPU.", pair=True
    )
    compile: bool = _model(
        "Compile captured steps with torch, which can take minutes the first time.",
        default=False,
        pair=True,
    )
    kernels: bool = _model(
        "Use lade's Triton kernels on a CUDA GPU, or torch's own operations.",
        default=True,
        pair=True,
    )
    device_map: str | None = _model(
        "Spread the model over devices: auto, balanced, balanced_low_0 or sequential.",
        choices=("auto", "balanced", "balanced_low_0", "sequential"),
    )
    parallel: int | None = _model(
        "Decode with K processes on this machine, one per GPU.", metavar="K", least=1
    )
    parallel_mode: str = _model(
        "What processes share: the drafts of a step (lookahead), or the model (tensor).",
        default="lookahead",
        choices=("lookahead", "tensor"),
    )
    revision: str | None = _model("Branch, tag or commit on the hub.")
    offline: bool = _model("Do not ask the hub.", default=False)
    trust_remote_code: bool = _model("Run code that comes with the model.", default=False)
    stats: bool | None = _output("A line of statistics on stderr; on unless --quiet.", pair=True)
    trace: str | None = _file(
        "Record every step in this file, for lade replay; in a chat, of the newest reply."
    )
    svg: str | None = _file("Draw the colored answer in this file; in a chat, the newest reply.")
    html: str | None = _file("The same as a page for a browser.")
    quiet: bool = _output("Nothing on stderr but errors.", "-q", default=False)

    def _check(self) -> None:
        Options._check(self)
        if self.model == "":
            raise UsageError("MODEL is empty; name a model, or leave it out for the demo")
        if self.cuda_graphs and self.parallel_mode == "tensor":
            raise UsageError(
                "cuda-graphs do not go together with parallel-mode tensor, whose ranks wait for one"
                " another within every step; leave one of them out"
            )
        if self.cuda_graphs and re.match(r"cpu|mps", self.device):
            raise UsageError(f"cuda-graphs need a CUDA GPU, and device is {self.device}")
        if self.attention == "triton" and not self.kernels:
            raise UsageError("attention triton is a Triton kernel; leave it or no-kernels out")
        if self.compile and self.cuda_graphs is False:
            raise UsageError("only CUDA graphs are compiled; leave compile or no-cuda-graphs out")
        if not all(self.stop or ()):
            raise UsageError("stop needs a text; leave it out, and nothing ends the answer early")
        if self.profile is not None:
            from .. import profiles

            profiles.read(self.profile)
        # The profile's values are not known yet; the user's must be right by themselves.
        self.lookahead(LookaheadConfig(window=1, ngram=2))
        self.sampling(SamplingConfig())
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise UsageError(f"unknown device {self.device!r}; use auto, cpu, cuda, cuda:N or mps")

    @property
    def read_files(self) -> list[str]:
        """Files of the user's that are read, and must not be overwritten."""
        return [name for name in getattr(self, "prompt_file", None) or [] if name != "-"]

    @property
    def tensor_parallel(self) -> int:
        """Ranks that the model is split over."""
        return (self.parallel or 1) if self.parallel_mode == "tensor" else 1

    @property
    def wants_paper(self) -> bool:
        """Whether the paper's algorithm was asked for: the trajectory as the only source."""
        return self.sources is not None and _listed(self.sources) == ("trajectory",)

    def lookahead(self, profile: LookaheadConfig) -> LookaheadConfig:
        """The profile's settings, with the options that were given in their place."""
        given: dict[str, Any] = {
            name: value
            for name in ("window", "ngram", "guesses", "budget")
            if (value := getattr(self, name)) is not None
        }
        if given.keys() & {"window", "ngram", "guesses"}:
            given.setdefault("budget", None)  # the profile's was meant for the profile's window
        if given:
            given["widths"] = ()  # so were the widths that steps are rounded to
        asks_for_window = self.window is not None or self.ngram is not None
        if self.sources is not None:
            given["sources"] = _listed(self.sources)
        elif asks_for_window:
            given["sources"] = SOURCES  # also where the profile leaves the window out
        elif (self.budget or profile.window_cells) < profile.window_cells:
            # A budget without room for the profile's window is a wish to go without it.
            sources = tuple(name for name in profile.sources if name != "trajectory")
            given["sources"] = sources or ("context",)
        return replace(profile, **given)

    def sampling(self, default: SamplingConfig) -> SamplingConfig:
        """How tokens are chosen; sampling without a seed draws one, so that it can be shown.

        Args:
            default: what holds where nothing was asked for.
        """
        names = [each.name for each in fields(SamplingConfig)]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        chosen = replace(default, **given)
        if self.seed is None and not chosen.greedy:
            chosen = replace(chosen, seed=secrets.randbits(32))
        return chosen


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(Request):
    """The options of `lade generate`."""

    prompt: list[str] | None = _prompt(
        "The prompt; standard input is not read then, unless by -f -.",
        "-p",
        metavar="TEXT",
        lasting=False,
    )
    prompt_file: list[str] | None = _prompt(
        "File with a prompt, or .jsonl with many; - is stdin. Can be repeated.",
        "-f",
        metavar="FILE",
        lasting=False,
    )
    chat_template: bool | None = _prompt(
        "Put the prompt through the model's chat template (the default where it has"
        " one), or complete it as it is.",
        "--chat-template/--raw",
    )
    max_new_tokens: int | None = _length(
        "Maximum number of new tokens.", "-n", default=GENERATED_TOKENS, least=1
    )
    json: bool = _output("Print one JSON object per answer, on one line.", default=False)

    def uses_template(self, has_template: bool) -> bool:
        """Whether prompts are put through the chat template, which a model may not have.

        A system message that was asked for needs one.
        """
        if self.chat_template is not None:
            return self.chat_template
        return has_template or self._system_is_typed

    @property
    def _system_is_typed(self) -> bool:
        return self.origins.get("system", "").startswith("flag")

    def _check(self) -> None:
        Request._check(self)
        if self.prompt and len(self.prompt) > 1:
            raise UsageError(
                f"--prompt was given {len(self.prompt)} times; give it once, or a .jsonl by -f"
            )
        if self._system_is_typed and self.chat_template is False:
            raise UsageError("system needs the chat template; leave raw or system out")


@dataclass(frozen=True, kw_only=True)
class ChatRequest(Request):
    """The options of `lade chat`."""

    raw: bool = _prompt("No chat template: messages as they are, one a line.", default=False)
    markdown: bool = _output(
        "Style Markdown; code is highlighted while token colors are off.", default=True, pair=True
    )
    token_colors: bool = _output("Color tokens by where they came from.", default=True, pair=True)
    editing_mode: str = _output(
        "Keys of the input: emacs or vi.", default="emacs", choices=("emacs", "vi")
    )


@dataclass(frozen=True, kw_only=True)
class MeasureRequest(Request):
    """The options that `lade bench` and `lade verify` share."""

    omits = frozenset({"pool_file", "stats", "trace", "svg", "html"})

    max_new_tokens: int | None = _length(
        f"Maximum number of new tokens; default: {MEASURED_TOKENS}.", "-n", least=1
    )
    prompts: str = _measure(
        "builtin, mt-bench, humaneval, gsm8k, spec-bench, or a .jsonl file.",
        default="builtin",
        metavar="SUITE|FILE",
    )
    limit: int | None = _measure("Maximum number of prompts, of all categories.", least=1)
    raw: bool = _prompt("No chat template: prompts as they are.", default=False, lasting=False)
    json: bool = _json()

    @property
    def new_tokens(self) -> int:
        """Maximum number of new tokens."""
        return self.max_new_tokens or MEASURED_TOKENS


@dataclass(frozen=True, kw_only=True)
class BenchRequest(MeasureRequest):
    """The options of `lade bench`."""

    omits = MeasureRequest.omits | {"strategy"}

    strategies: str | None = _measure(
        "Some of autoregressive, jacobi, prompt-lookup, paper, lookahead, hf,"
        " hf-prompt-lookup, hf-compiled; default: all but hf-compiled, which compiles first.",
        metavar="LIST",
    )
    repeat: int = _measure("Number of times that every prompt is measured.", default=3, least=1)
    sweep: list[str] | None = _measure(
        "A grid, such as 'W=5,10,15 N=3,5 G=W'; axes: W, N, G, budget, sources, context.",
        metavar="AXES",
    )
    report: list[str] | None = _output(
        "Also write a page (.html), text (.md) or figures (.json); can be repeated.",
        metavar="FILE",
        lasting=False,
    )


@dataclass(frozen=True, kw_only=True)
class VerifyRequest(MeasureRequest):
    """The options of `lade verify`."""

    omits = MeasureRequest.omits | {"parallel", "parallel_mode"}

    chi_square: int | None = _measure(
        "Draw this many answers, and test whether they are distributed as plain sampling's.",
        metavar="SAMPLES",
        least=1,
    )


_RANKS = frozenset({"parallel", "parallel_mode"})
_DRAFTS = frozenset({"strategy", "profile", "window", "ngram", "guesses", "budget", "sources"})
_SAMPLING = frozenset(each.name for each in fields(SamplingConfig))
_ANSWER = MeasureRequest.omits | _SAMPLING | {"system", "max_new_tokens", "stop", "ignore_eos"}
"""Options about an answer, which commands that decode none do not have."""
_PLACE = frozenset({"device", "attention", "cuda_graphs", "compile", "kernels", "device_map"})


@dataclass(frozen=True, kw_only=True)
class TuneRequest(Request):
    """The options of `lade tune`."""

    omits = _ANSWER | _DRAFTS | _RANKS

    seconds: float = _measure("Maximum time in seconds, after loading.", default=30.0, lasting=True)
    prompts: str | None = _measure(
        "Prompts to try settings on: a suite, or a .jsonl; default: the builtin ones.",
        metavar="SUITE|FILE",
    )
    dry_run: bool = _measure("Measure and show; write no profile.", default=False)
    json: bool = _json()

    def _check(self) -> None:
        Request._check(self)
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"seconds must be finite and above 0, not {self.seconds:g}")


@dataclass(frozen=True, kw_only=True)
class PlanRequest(Request):
    """The options of `lade plan`."""

    omits = (_ANSWER | _DRAFTS | _RANKS | _PLACE | {"max_context", "quiet"}) - {"budget"}

    model: str | None = _model_name(
        "Hugging Face id or local folder, of which the configuration is read; default: Llama-2-7B."
    )
    gpus: int | None = _plan(
        "Number of GPUs; default: a table of 1 to 8.", metavar="N", least=1, most=1024
    )
    gpu: str | None = _plan(
        "Kind of GPU, such as a100 (lade profiles lists them); default: the one here.",
        metavar="NAME",
    )
    model_size: str | None = _plan(
        "7b, 70b, llama-3-8b and the like, in place of MODEL.", metavar="SIZE"
    )
    context: int = _plan(
        "Context length to assume.", default=1024, metavar="TOKENS", least=1, most=10_000_000
    )
    nodes: int | None = _plan("Number of nodes.", metavar="M", least=1, most=1024)
    gpus_per_node: int | None = _plan(
        "GPUs in a node; default: 8.", metavar="K", least=1, most=1024
    )
    link: str | None = _plan(
        "What joins GPUs: nvlink, pcie, ethernet, infiniband or GB/s; two with a"
        " comma: within a node, between nodes.",
        metavar="KIND|GB/S",
    )
    budget: int | None = _decode("Maximum number of tokens in a step on each GPU.")
    json: bool = _json()

    def _check(self) -> None:
        Request._check(self)
        if self.budget == 1:
            raise UsageError("budget 1 is plain decoding, which is estimated anyway; use 2 or more")
        if self.model_size is not None and self.origins.get("model") == "argument":
            raise UsageError(f"{self.model} has a size of its own; leave --model-size out")
        if self.gpus and self.nodes and self.gpus > self.nodes * self.per_node:
            raise UsageError(
                f"{self.gpus} GPUs cannot be spread over {self.nodes} nodes; change --nodes or"
                " --gpus-per-node"
            )

    @property
    def per_node(self) -> int:
        """GPUs of a node."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        return self.gpus // self.nodes if self.gpus and self.nodes else 8

    @property
    def counts(self) -> list[int]:
        """Numbers of GPUs to estimate: powers of two, and the number asked for."""
        last = max(8, self.gpus or 0, (self.nodes or 0) * self.per_node)
        powers = {1 << power for power in range(last.bit_length())}
        return sorted(powers | ({self.gpus} if self.gpus else set()))


@dataclass(frozen=True, kw_only=True)
class DoctorRequest(Request):
    """The options of `lade doctor`: those that say how a model would be decoded."""

    omits = _ANSWER | _RANKS | {"quiet"}

    json: bool = _json()


@dataclass(frozen=True, kw_only=True)
class ProfileRequest(Request):
    """The options of `lade profiles show`."""

    omits = (_ANSWER | _DRAFTS | _RANKS | {"max_context", "device_map", "quiet"}) - {"profile"}

    profile: str | None = _decode(
        "A profile; default: the one in use here.", metavar="NAME", argument=True
    )
    model: str | None = _model(
        "Settings for this model, not by size.", metavar="MODEL", lasting=False
    )
    json: bool = _json()


@dataclass(frozen=True, kw_only=True)
class ListRequest(Request):
    """The options of `lade profiles`."""

    omits = ProfileRequest.omits | _PLACE - {"device"} | {"profile", "model"}
    omits |= {"dtype", "quantize", "revision", "offline", "trust_remote_code"}

    json: bool = _json()


@dataclass(frozen=True, kw_only=True)
class ModelsRequest(Options):
    """The options of `lade models`."""

    json: bool = _json()


@dataclass(frozen=True, kw_only=True)
class ReplayRequest(Options):
    """The options of `lade replay`."""

    trace: str = _argument("A file that --trace wrote.", metavar="TRACE")
    speed: float = _output("Playback speed: 2 is twice as fast, inf is instant.", default=1.0)
    step: bool = _output("Step by step: window, n-grams, candidates.", default=False, lasting=False)


@dataclass(frozen=True, kw_only=True)
class CompareRequest(Options):
    """The options of `lade bench compare`."""

    a: str = _argument("What lade bench --json wrote.", metavar="A.json")
    b: str = _argument("The same, later.", metavar="B.json")
    fail_on_slower: bool = _measure("Exit code 1 where something became slower.", default=False)
    json: bool = _json()


@dataclass(frozen=True, kw_only=True)
class InitRequest(Options):
    """The options of `lade config init`."""

    force: bool = _output(
        "Write a new one; the old one is kept beside it.", default=False, lasting=False
    )


COMMANDS: dict[str, type[Options]] = {
    "chat": ChatRequest,
    "generate": GenerateRequest,
    "replay": ReplayRequest,
    "bench": BenchRequest,
    "bench compare": CompareRequest,
    "verify": VerifyRequest,
    "tune": TuneRequest,
    "plan": PlanRequest,
    "profiles": ListRequest,
    "profiles show": ProfileRequest,
    "models": ModelsRequest,
    "doctor": DoctorRequest,
    "config init": InitRequest,
    "config show": Options,
    "config path": Options,
}
"""The request of every command."""


def _listed(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list."""
    return tuple(item.strip() for item in text.split(",") if item.strip())
