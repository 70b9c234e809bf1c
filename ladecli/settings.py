"""What a user asked for: requests checked before a model is loaded, and the config file."""

from __future__ import annotations

import difflib
import re
import secrets
from dataclasses import dataclass, fields, replace
from typing import Any, get_args, get_type_hints

from . import toml
from .decoder.config import SOURCES, STRATEGIES, LookaheadConfig, SamplingConfig
from .errors import UsageError

COLORS = ("auto", "always", "never")
DTYPES = ("auto", "float32", "float16", "bfloat16")
QUANTIZE = ("none", "4bit", "8bit")
ATTENTION = ("auto", "reference", "sdpa")
EDITING_MODES = ("emacs", "vi")
# Given anew with every call, so a config file cannot hold them.
_NOT_IN_CONFIG = frozenset({"prompt", "prompt_file", "trace", "svg", "html"})


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
    """The options that all decoding commands share, under the names of their flags."""

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
    device_map: str | None = None
    revision: str | None = None
    offline: bool = False
    trust_remote_code: bool = False
    color: str = "auto"
    stats: bool | None = None
    trace: str | None = None
    svg: str | None = None
    html: str | None = None
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
        self.sampling(SamplingConfig())
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
    chat_template: bool = False
    json: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest(Request):
    """The options of one call of `lade chat`."""

    raw: bool = False
    markdown: bool = True
    token_colors: bool = True
    editing_mode: str = "emacs"

    def check(self) -> None:
        """Refuse what can be refused without a model.

        Raises:
            UsageError, ConfigError: the message names the option and what it may be.
        """
        Request.check(self)
        _one_of("editing-mode", self.editing_mode, EDITING_MODES)


LIVE = (
    *("strategy", "profile", "window", "ngram", "guesses", "budget", "sources"),
    *("temperature", "top-k", "top-p", "min-p", "repetition-penalty", "seed"),
    *("max-new-tokens", "stop", "ignore-eos"),
    *("markdown", "token-colors", "stats"),
)
"""Options that a chat can change as it goes, by their flags' names."""
SWITCHES = ("ignore-eos", "markdown", "token-colors", "stats")
"""Those of them that are on or off."""
_OFF = {"top-k": 0, "top-p": 1.0, "min-p": 0.0, "repetition-penalty": 1.0}
"""What switches a way of sampling off, whatever the model's own is."""
_WORDS = {"on": True, "true": True, "yes": True, "1": True}
_WORDS |= {"off": False, "false": False, "no": False, "0": False}


def change(request: ChatRequest, name: str, text: str) -> ChatRequest:
    """The request with one option changed.

    The word "default" takes a change back, and "off" switches off what can be.

    Args:
        request: what held until now.
        name: of a flag, without its dashes.
        text: the value as it was typed.

    Raises:
        UsageError, ConfigError: there is no such option, it belongs to the start of the
            program, or it cannot have this value; the message says what it may be.
    """
    name = name.lstrip("-").replace("_", "-").lower()
    known = {field.name.replace("_", "-") for field in fields(ChatRequest)}
    if name in known and name not in LIVE:
        raise UsageError(f"{name} belongs to the start: leave, and give --{name} to lade chat")
    if name not in LIVE:
        near = difflib.get_close_matches(name, LIVE, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; one of {', '.join(LIVE)}"
        raise UsageError(f"there is no setting {name!r}{hint}")
    key = name.replace("-", "_")
    value: Any
    if text.lower() == "off" and name in _OFF:
        value = _OFF[name]
    elif text.lower() == "default" or (name not in SWITCHES and text.lower() in ("none", "off")):
        value = next(field.default for field in fields(ChatRequest) if field.name == key)
    else:
        value = _typed(name, text, get_type_hints(ChatRequest)[key])
    if value == [""]:
        raise UsageError(f"{name} needs a text; off takes it back")
    changed = replace(request, **{key: value})
    changed.check()
    return changed


def _typed(name: str, text: str, kind: Any) -> Any:
    """A value of the type that an option has."""
    kinds = [k for k in (get_args(kind) or (kind,)) if k is not type(None)]
    if bool in kinds:
        if text.lower() not in _WORDS:
            raise UsageError(f"{name} is on or off, not {text!r}")
        return _WORDS[text.lower()]
    for number in (int, float):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                what = "a whole number" if number is int else "a number"
                raise UsageError(f"{name} must be {what}, not {text!r}") from None
    return text if str in kinds else [_literal(text)]


def _literal(text: str) -> str:
    r"""A text as it was typed, with \n and \t for what a line cannot hold; quotes keep blanks."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return text.replace("\\n", "\n").replace("\\t", "\t")


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
    requests = (GenerateRequest, ChatRequest)
    known = {field.name for kind in requests for field in fields(kind)} - _NOT_IN_CONFIG
    config = {key.replace("-", "_"): value for key, value in found.items()}
    for key in config:
        if key not in known:
            listed = ", ".join(sorted(name.replace("_", "-") for name in known))
            raise UsageError(f"the config file {path} has an unknown key {key!r}; known: {listed}")
    return config
