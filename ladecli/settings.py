"""What a user asked for: requests, checked before a model is loaded."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from . import device_map
from .decoder.config import SOURCES, STRATEGIES, LookaheadConfig, SamplingConfig
from .decoder.errors import ConfigError
from .errors import UsageError
from .places import CONFIG_FILE, PREFIX, config_path

COLORS = ("auto", "always", "never")
DTYPES = ("auto", "float32", "float16", "bfloat16")
QUANTIZE = ("none", "4bit", "8bit")
ATTENTION = ("auto", "reference", "sdpa", "flash", "triton")
PARALLEL_MODES = ("lookahead", "tensor")
EDITING_MODES = ("emacs", "vi")
ANSWER = 128
"""Tokens of an answer that is measured, where nobody says how many."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model; the fields are the command line's options of the same names.

    Attributes:
        tensor_parallel: ranks that the model is split over.

    Raises:
        UsageError: a value that is not among those that there are.
    """

    dtype: str = "auto"
    device: str = "auto"
    quantize: str = "none"
    device_map: str | None = None
    tensor_parallel: int = 1
    revision: str | None = None
    offline: bool = False
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("quantize", self.quantize, QUANTIZE)
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise UsageError(f"unknown device {self.device!r}; use auto, cpu, cuda, cuda:N or mps")
        if self.device_map is not None:
            device_map.parse(self.device_map)


@dataclass(frozen=True, slots=True)
class Request:
    """The options that all decoding commands share, under the names of their flags.

    Attributes:
        cuda_graphs: whether steps are captured; None for wherever that can be.
        compile: whether captured steps are compiled first.
        kernels: whether Triton kernels may be used.
        origins: where they are from, by name: "flag --budget", "LADE_BUDGET", "config file",
            "set in this chat"; without those that nobody set.
    """

    model: str | None = None
    system: str | None = None
    max_new_tokens: int | None = None
    stop: list[str] | None = None
    ignore_eos: bool = False
    max_context: int | None = None
    strategy: str = "lookahead"
    profile: str | None = None
    window: int | None = None
    ngram: int | None = None
    guesses: int | None = None
    budget: int | None = None
    sources: str | None = None
    pool_file: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    quantize: str = "none"
    attention: str = "auto"
    cuda_graphs: bool | None = None
    compile: bool = False
    kernels: bool = True
    device_map: str | None = None
    parallel: int | None = None
    parallel_mode: str = "lookahead"
    revision: str | None = None
    offline: bool = False
    trust_remote_code: bool = False
    color: str = "auto"
    stats: bool | None = None
    trace: str | None = None
    svg: str | None = None
    html: str | None = None
    quiet: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what can be refused without a model.

        Raises:
            UsageError, ConfigError: the message names the option and what it may be, and the
                variable or file that it is from.
        """
        try:
            self._check()
        except (UsageError, ConfigError) as error:
            raise type(error)(f"{error}{self._culprits(str(error))}") from error

    def _culprits(self, message: str) -> str:
        """What this message is due to, where the user may not have it before their eyes."""
        found = []
        for name, origin in self.origins.items():
            if origin != CONFIG_FILE and not origin.startswith(PREFIX):
                continue
            try:
                replace(self, **{name: default_of(type(self), name)})._check()
            except (UsageError, ConfigError) as error:
                if str(error) == message:
                    continue  # it is wrong without this one too
            key = name.replace("_", "-")
            here = f"{key} in the config file {config_path()}"
            found.append(here if origin == CONFIG_FILE else origin)
        return f" ({', '.join(found)})" if found else ""

    def _check(self) -> None:
        _one_of("strategy", self.strategy, STRATEGIES)
        _one_of("attention", self.attention, ATTENTION)
        _one_of("color", self.color, COLORS)
        _one_of("parallel-mode", self.parallel_mode, PARALLEL_MODES)
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
        if self.parallel is not None and self.parallel < 1:
            raise UsageError(f"parallel must be at least 1, not {self.parallel}")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UsageError(f"max-new-tokens must be at least 1, not {self.max_new_tokens}")
        if self.max_context is not None and self.max_context < 2:
            raise UsageError(f"max-context must be at least 2, not {self.max_context}")
        if not all(self.stop or ()):
            raise UsageError("stop needs a text; leave it out, and nothing ends the answer early")
        if self.profile is not None:
            from . import profiles

            profiles.read(self.profile)
        # The profile's values are not known yet; what the user gave must be right by itself.
        self.lookahead(LookaheadConfig(window=1, ngram=2))
        self.sampling(SamplingConfig())
        self.load_options()

    def load_options(self) -> LoadOptions:
        """How to load the model."""
        return LoadOptions(**{f.name: getattr(self, f.name) for f in fields(LoadOptions)})

    @property
    def read_files(self) -> list[str]:
        """Files of the user's that are read, and must stay as they are."""
        return []

    @property
    def tensor_parallel(self) -> int:
        """Ranks that the model is split over."""
        return (self.parallel or 1) if self.parallel_mode == "tensor" else 1

    @property
    def wants_paper(self) -> bool:
        """Whether the paper's own algorithm was asked for: the trajectory as the only source."""
        return self.sources is not None and _listed(self.sources) == ("trajectory",)

    def lookahead(self, profile: LookaheadConfig) -> LookaheadConfig:
        """The profile's settings with the options that were given in their place."""
        given = {
            name: value
            for name in ("window", "ngram", "guesses", "budget")
            if (value := getattr(self, name)) is not None
        }
        if self.sources is not None:
            given["sources"] = _listed(self.sources)
        elif self.window is not None or self.ngram is not None:
            # Who sets the window wants it to run, also where the profile leaves it out.
            given["sources"] = SOURCES
        if given.keys() & {"window", "ngram", "guesses"} and "budget" not in given:
            # The profile's budget was meant for the profile's window.
            given["budget"] = None
        if given.keys() & {"window", "ngram", "guesses", "budget"}:
            # So were the widths that its steps are rounded to.
            given["widths"] = ()
        window_is_theirs = self.sources is None and self.window is None and self.ngram is None
        if window_is_theirs and (self.budget or profile.window_cells) < profile.window_cells:
            # A budget that has no room for the profile's window is a wish to go without it.
            sources = tuple(s for s in profile.sources if s != "trajectory")
            given["sources"] = sources or ("context",)
        return replace(profile, **given)

    def sampling(self, default: SamplingConfig) -> SamplingConfig:
        """How tokens are chosen; sampling without a seed draws one, so that it can be told.

        Args:
            default: what holds where nothing was asked for.
        """
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        chosen = replace(default, **given)
        if self.seed is None and not chosen.greedy:
            chosen = replace(chosen, seed=secrets.randbits(32))
        return chosen


@dataclass(frozen=True, slots=True)
class GenerateRequest(Request):
    """The options of one call of `lade generate`."""

    prompt: str | None = None
    prompt_file: list[str] | None = None
    chat_template: bool | None = None
    json: bool = False

    @property
    def read_files(self) -> list[str]:
        """See `Request`."""
        return [name for name in self.prompt_file or [] if name != "-"]

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
        if self._system_is_typed and self.chat_template is False:
            raise UsageError("system needs the chat template; leave raw or system out")


@dataclass(frozen=True, slots=True)
class ChatRequest(Request):
    """The options of one call of `lade chat`."""

    raw: bool = False
    markdown: bool = True
    token_colors: bool = True
    editing_mode: str = "emacs"

    def _check(self) -> None:
        Request._check(self)
        _one_of("editing-mode", self.editing_mode, EDITING_MODES)


@dataclass(frozen=True, slots=True)
class TuneRequest(Request):
    """The options of one call of `lade tune`."""

    seconds: float = 30.0
    prompts: str | None = None
    dry_run: bool = False
    json: bool = False

    def _check(self) -> None:
        Request._check(self)
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"seconds must be finite and above 0, not {self.seconds:g}")


@dataclass(frozen=True, slots=True)
class MeasureRequest(Request):
    """The options that `lade bench` and `lade verify` share.

    Attributes:
        prompts: a suite's name, or a .jsonl file.
        limit: at most so many rows.
        raw: no chat template.
    """

    prompts: str = "builtin"
    limit: int | None = None
    raw: bool = False
    json: bool = False

    @property
    def new_tokens(self) -> int:
        """The most tokens of an answer: measuring until the context is full takes too long."""
        return self.max_new_tokens or ANSWER

    def _check(self) -> None:
        Request._check(self)
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit must be at least 1, not {self.limit}")


@dataclass(frozen=True, slots=True)
class BenchRequest(MeasureRequest):
    """The options of one call of `lade bench`.

    Attributes:
        sweep: axes with their values, as typed.
        strategies: a comma list of contenders.
        repeat: times that every row is measured.
        report: files to write: .html, .md or .json.
    """

    sweep: list[str] | None = None
    strategies: str | None = None
    repeat: int = 3
    report: list[str] | None = None

    def _check(self) -> None:
        MeasureRequest._check(self)
        if self.repeat < 1:
            raise UsageError(f"repeat must be at least 1, not {self.repeat}")


@dataclass(frozen=True, slots=True)
class VerifyRequest(MeasureRequest):
    """The options of one call of `lade verify`.

    Attributes:
        chi_square: draw so many answers and test their distribution; None for no such test.
    """

    chi_square: int | None = None

    def _check(self) -> None:
        MeasureRequest._check(self)
        if self.chi_square is not None and self.chi_square < 1:
            raise UsageError(f"chi-square must be at least 1, not {self.chi_square}")


@dataclass(frozen=True, slots=True)
class ReportRequest(Request):
    """The options of a call that says what would hold, and decodes nothing."""

    json: bool = False


def default_of(kind: type[Request], name: str) -> Any:
    """What a field of a request holds where nobody says anything."""
    return next(each.default for each in fields(kind) if each.name == name)


def _listed(text: str) -> tuple[str, ...]:
    """The items of a comma list."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"unknown {name} {value!r}; use one of {', '.join(known)}")
