"""Options as fields of requests: their declaration, names and checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from ..decoder.errors import ConfigError
from ..errors import UsageError

PREFIX = "LADE_"
"""The prefix of variables that set options."""
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
CONFIG_FILE = "config file"
"""The origin of values in the config file."""
PANELS = (
    *("", "Prompt", "Measuring", "Serving"),
    *("Length", "Decoding", "Sampling", "Model", "Output"),
)
"""Headings in the order of the help; arguments have none."""


@dataclass(frozen=True)
class Option:
    """A field of a request that users can set."""

    panel: str  # heading in the help and in the config file
    help: str  # one sentence for users
    flag: str = ""  # a short form such as "-n", or a flag in place of the field's name
    metavar: str | None = None
    choices: tuple[str, ...] = ()  # () for any value
    pattern: str = ""  # of a text; the help then describes the valid texts
    least: int | None = None
    most: int | None = None
    argument: bool = False  # a positional argument
    lasting: bool = True  # the config file can hold it; False for options of single calls
    secret: bool = False  # the value is not shown
    key: str = ""  # the field's name, such as max_new_tokens
    annotation: Any = None  # the field's type with its optional None, for Typer
    default: Any = None  # None for no value, MISSING if a value is required

    @property
    def name(self) -> str:
        """The name in the config file and in messages."""
        return self.flags[-1].split("/")[0].removeprefix("--")

    @property
    def kind(self) -> type:
        """int, float, bool, str, or list for several texts."""
        kind: type = (*get_args(self.annotation), self.annotation)[0]  # without its None
        return get_origin(kind) or kind

    @property
    def described(self) -> str:
        """A description of the values, for messages."""
        return _KINDS.get(self.kind, "a list of texts")

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags; the last one is the long one."""
        if self.flag.startswith("--"):
            return (self.flag,)
        name = self.key.replace("_", "-")
        switched_off = self.kind is bool and self.default is not False
        long = f"--{name}/--no-{name}" if switched_off else f"--{name}"
        return (self.flag, long) if self.flag else (long,)

    @property
    def variable(self) -> str | None:
        """The environment variable that sets the option; None for lists and for options of single
        calls."""
        named = self.lasting and self.kind is not list
        return PREFIX + self.name.replace("-", "_").upper() if named else None

    def typed(self, value: Any) -> Any:
        """Return a value of a file or a program in the type of the option; a list option accepts a
        single text.

        Raises:
            UsageError: the value has another type.
        """
        from pydantic import TypeAdapter, ValidationError

        if self.kind is list and isinstance(value, str):
            return [value]
        try:
            return TypeAdapter(self.annotation).validate_python(value, strict=True)
        except ValidationError:
            wrong = f"{self.name} must be {self.described}, not {value!r:.60}"
            raise UsageError(wrong) from None

    def check(self, value: Any) -> None:
        """Raise a UsageError if a value is not one of the choices, or out of range."""
        least, most = self.least, self.most
        if value is not None and self.choices and value not in self.choices:
            raise UsageError(f"unknown {self.name} {value!r}; use one of {', '.join(self.choices)}")
        if value is not None and self.pattern and not re.fullmatch(self.pattern, value):
            raise UsageError(f"unknown {self.name} {value!r}; use {self.help.rstrip('.')}")
        if value is not None and least is not None and not least <= value <= (most or value):
            allowed = f"at least {least}" if most is None else f"from {least} to {most}"
            raise UsageError(f"{self.name} must be {allowed}, not {value}")


def option(panel: str, help: str, flag: str = "", *, default: Any = None, **facts: Any) -> Any:
    """Return a field of a request that users can set; see `Option`."""
    return field(default=default, metadata={"option": Option(panel, help, flag, **facts)})


_OPTIONS: dict[type[Options], dict[str, Option]] = {}
"""The results of `options_of`, kept because evaluating annotations takes milliseconds."""


def config_path() -> Path:
    """Return the path of the config file; it may not exist."""
    from platformdirs import user_config_path

    return user_config_path("lade", appauthor=False) / "config.toml"


def options_of(kind: type[Options]) -> dict[str, Option]:
    """Return the options of a request, by key, in the order of the help."""
    if kind in _OPTIONS:
        return _OPTIONS[kind]
    hints = get_type_hints(kind)
    options = [
        replace(
            declared.metadata["option"],
            key=declared.name,
            annotation=hints[declared.name],
            default=declared.default,
        )
        for declared in fields(kind)
        if "option" in declared.metadata
    ]
    options.sort(key=lambda option: PANELS.index("" if option.argument else option.panel))
    return _OPTIONS.setdefault(kind, {option.key: option for option in options})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every command.

    `origins` has the origin of each value that is not a default, by key: "flag --budget",
    "LADE_BUDGET", "config file", "set in this chat".
    """

    color: str = option(
        "Output",
        "Color the output: auto, always or never.",
        default="auto",
        choices=("auto", "always", "never"),
    )
    origins: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Check the options, as far as that needs no model.

        Raises:
            UsageError, ConfigError: the message names the option, its valid values and its origin.
        """
        try:
            self._check()
        except (UsageError, ConfigError) as error:
            raise type(error)(f"{error}{self._culprits(str(error))}") from error

    def _typed(self, key: str) -> bool:
        """Return True if an option comes from the command line."""
        return self.origins.get(key, "").startswith("flag")

    def _check(self) -> None:
        for option in options_of(type(self)).values():
            option.check(getattr(self, option.key))

    def _culprits(self, message: str) -> str:
        """Return the variables and lines of the config file that cause an error."""
        culprits = []
        for key, origin in self.origins.items():
            if origin != CONFIG_FILE and not origin.startswith(PREFIX):
                continue  # the user just typed the flag
            try:
                replace(self, **{key: options_of(type(self))[key].default})._check()
            except (UsageError, ConfigError) as error:
                if str(error) == message:
                    continue  # the error does not depend on this value
            line = f"{key.replace('_', '-')} in the config file {config_path()}"
            culprits.append(line if origin == CONFIG_FILE else origin)
        return f" ({', '.join(culprits)})" if culprits else ""
