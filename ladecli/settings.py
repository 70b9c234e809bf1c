"""What a user asked for: the config file, and a request checked before a model is loaded."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, fields, replace
from typing import Any

from . import toml
from .decoder.config import SOURCES, STRATEGIES, LookaheadConfig, SamplingConfig
from .errors import UsageError

COLORS = ("auto", "always", "never")
DTYPES = ("auto", "float32", "float16", "bfloat16")
QUANTIZE = ("none", "4bit", "8bit")
ATTENTION = ("auto", "reference", "sdpa")
# Given anew with every call, so a config file cannot hold them.
_NOT_IN_CONFIG = frozenset({"prompt", "prompt_file"})


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model; the fields are the command line's options of the same names.

    Raises:
        UsageError: a value that is not among those that there are.
    """

    dtype: str = "auto"
    device: str = "auto"
    quantize: str = "none"
    device_map: str | None = None
    revision: str | None = None
    offline: bool = False
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("quantize", self.quantize, QUANTIZE)
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise UsageError(f"unknown device {self.device!r}; use auto, cpu, cuda, cuda:N or mps")


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one call of `lade generate`, under the names of their flags."""

    model: str | None = None
    prompt: str | None = None
    prompt_file: list[str] | None = None
    system: str | None = None
    chat_template: bool = False
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
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float | None = None
    seed: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    quantize: str = "none"
    attention: str = "auto"
    device_map: str | None = None
    revision: str | None = None
    offline: bool = False
    trust_remote_code: bool = False
    color: str = "auto"
    stats: bool | None = None
    json: bool = False
    quiet: bool = False

    def check(self) -> None:
        """Refuse what can be refused without a model.

        Raises:
            UsageError, ConfigError: the message names the option and what it may be.
        """
        _one_of("strategy", self.strategy, STRATEGIES)
        _one_of("attention", self.attention, ATTENTION)
        _one_of("color", self.color, COLORS)
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UsageError(f"max-new-tokens must be at least 1, not {self.max_new_tokens}")
        if self.max_context is not None and self.max_context < 2:
            raise UsageError(f"max-context must be at least 2, not {self.max_context}")
        # The profile's values are not known yet; what the user gave must be right by itself.
        self.lookahead(LookaheadConfig(window=1, ngram=2))
        self.sampling(default_penalty=1.0)
        self.load_options()

    def load_options(self) -> LoadOptions:
        """How to load the model."""
        return LoadOptions(**{f.name: getattr(self, f.name) for f in fields(LoadOptions)})

    def lookahead(self, profile: LookaheadConfig) -> LookaheadConfig:
        """The profile's settings with the options that were given in their place."""
        given = {
            name: value
            for name in ("window", "ngram", "guesses", "budget")
            if (value := getattr(self, name)) is not None
        }
        if self.sources is not None:
            given["sources"] = tuple(s.strip() for s in self.sources.split(",") if s.strip())
        elif self.window is not None or self.ngram is not None:
            # Who sets the window wants it to run, also where the profile leaves it out.
            given["sources"] = SOURCES
        if given.keys() & {"window", "ngram", "guesses"} and "budget" not in given:
            # The profile's budget was meant for the profile's window.
            given["budget"] = None
        if given.keys() & {"window", "ngram", "guesses", "budget"}:
            # So were the widths that its steps are rounded to.
            given["widths"] = ()
        return replace(profile, **given)

    def sampling(self, default_penalty: float) -> SamplingConfig:
        """How tokens are chosen; sampling without a seed draws one, so that it can be told."""
        seed = self.seed
        if seed is None:
            seed = secrets.randbits(32) if self.temperature > 0 else 0
        penalty = self.repetition_penalty
        return SamplingConfig(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=default_penalty if penalty is None else penalty,
            seed=seed,
        )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"unknown {name} {value!r}; use one of {', '.join(known)}")


def read_config() -> dict[str, Any]:
    """Defaults from the user's config file; empty where there is none.

    Raises:
        UsageError: it cannot be read, is no TOML, or has an unknown key.
    """
    from platformdirs import user_config_path

    path = user_config_path("lade", appauthor=False) / "config.toml"
    try:
        found = toml.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError) as error:
        raise UsageError(f"the config file {path} cannot be read: {error}") from error
    known = {field.name for field in fields(Request)} - _NOT_IN_CONFIG
    config = {key.replace("-", "_"): value for key, value in found.items()}
    for key in config:
        if key not in known:
            listed = ", ".join(sorted(name.replace("_", "-") for name in known))
            raise UsageError(f"the config file {path} has an unknown key {key!r}; known: {listed}")
    return config
