"""The user's config file: what it may hold, and what it says for each command."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import toml
from .errors import UsageError
from .option_table import Option, OptionTable
from .places import CONFIG_FILE, PREFIX, config_path


class Call(Protocol):
    """The part of a parser's context that knows where the options of a call are from."""

    command: Any
    params: dict[str, Any]

    def get_parameter_source(self, name: str) -> Any:
        """An enumeration's member, or None for what is no option of the call."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a config file says; keys as in requests.

    Attributes:
        everywhere: for all commands.
        alone: for one command alone, by its name; these come first.
    """

    everywhere: Mapping[str, Any] = field(default_factory=dict)
    alone: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, command: str) -> dict[str, Any]:
        """What holds for one command."""
        return {**self.everywhere, **self.alone.get(command, {})}


def read_config(table: OptionTable) -> Config:
    """What the user's config file says; nothing where there is none.

    Args:
        table: of the options that there are.

    Raises:
        UsageError: it cannot be read, is no TOML, has an unknown key or a value of a wrong type.
    """
    path = config_path()
    try:
        return parse(table, path.read_text(encoding="utf-8-sig"), f"the config file {path}")
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the config file {path} cannot be read: {reason}") from error


def parse(table: OptionTable, text: str, where: str) -> Config:
    """A config file from its text: settings of all commands, then a table for each command.

    Args:
        table: of the options that there are.
        text: the TOML.
        where: what to call the file in messages.

    Raises:
        TOMLDecodeError: the text is no TOML.
        UsageError: an unknown key, or a value of a wrong type.
    """
    commands = table.commands
    everywhere, alone = {}, {}
    for key, value in toml.loads(text).items():
        if key not in commands:
            everywhere[key] = value
        elif isinstance(value, dict):
            alone[key] = _settings(table, value, key, f"{where}, [{key}]")
        else:
            raise UsageError(f"{where}: {key} is a command; its settings stand below [{key}]")
    return Config(_settings(table, everywhere, None, where), alone)


def _settings(
    table: OptionTable, found: Mapping[str, Any], command: str | None, where: str
) -> dict[str, Any]:
    """The settings of the file, or of what it says for one command, checked."""
    known = table.options if command is None else table.of(command)
    settings: dict[str, Any] = {}
    for name, value in found.items():
        key = name.replace("-", "_")
        if key not in known:
            raise UsageError(f"{where} {_unknown(table, name, value, command)}")
        if key in settings:
            raise UsageError(f"{where} has {known[key].name} twice; keep one of them")
        settings[key] = _checked(known[key], value, where)
    # An empty text is as if the line were not there, as with variables.
    return {key: value for key, value in settings.items() if value not in ("", [])}


def _unknown(table: OptionTable, name: str, value: Any, command: str | None) -> str:
    key = name.replace("-", "_")
    if isinstance(value, dict):
        tables = sorted(table.commands) if command is None else []
        near = difflib.get_close_matches(name.lower(), tables, n=1)
        hint = f"did you mean [{near[0]}]?" if near else f"known: {', '.join(tables)}"
        return f"has an unknown table [{name}]; {hint}"
    if key in table.given_anew:
        return f"cannot hold {name}: it is given with each call, as --{key.replace('_', '-')}"
    if key in table.options:
        commands = dict.fromkeys(words[0] for words in table.options[key].commands)
        return f"has {name}, which is only for {' and '.join(commands)}"
    known = table.options if command is None else table.of(command)
    names = sorted(option.name for option in known.values())
    near = difflib.get_close_matches(key.replace("_", "-").lower(), names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
    return f"has an unknown key {name!r}; {hint}"


def _checked(option: Option, value: Any, where: str) -> Any:
    """A value of the type that the option has."""
    if value == "":
        return value
    if option.kind is list and isinstance(value, str):
        return [value]
    if option.kind is list:
        fits = isinstance(value, list) and all(isinstance(v, str) and v for v in value)
    elif option.kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        fits = type(value) is option.kind  # true is no number
    if not fits:
        shown = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
        shown = "a table" if isinstance(value, dict) else shown
        raise UsageError(f"{where}: {option.name} must be {option.what}, not {shown}")
    return value


def defaults(table: OptionTable) -> dict[str, Any]:
    """What the config file says for every command, as click looks it up.

    Args:
        table: of the options that there are.

    Raises:
        UsageError: the file is wrong; see `read_config`.
    """
    config, found = read_config(table), dict[str, Any]()
    for key, option in table.options.items():
        for words in option.commands:
            if key in (said := config.of(words[0])):
                place = found
                for word in words:
                    place = place.setdefault(word, {})
                place[key] = said[key]
    return found


def origins(context: Call) -> dict[str, str]:
    """Where the options of a call come from, by their keys; without those left as they are."""
    found = {}
    for option in context.command.params:
        key, source = option.name, context.get_parameter_source(option.name)
        if source is None or source.name == "DEFAULT":
            continue
        if source.name == "ENVIRONMENT":
            found[key] = str(option.envvar)
        elif source.name == "DEFAULT_MAP":
            found[key] = CONFIG_FILE
        elif option.param_type_name == "argument":
            found[key] = "argument"
        else:
            off = option.secondary_opts and context.params.get(key) is False
            flags = option.secondary_opts if off else option.opts
            found[key] = f"flag {max(flags, key=len)}"
    return found


def stray_variables(table: OptionTable, environment: Mapping[str, str]) -> list[str]:
    """A line about every LADE_* variable that is set and does nothing.

    Args:
        table: of the options that there are.
        environment: the variables.
    """
    known = {option.variable for option in table.options.values() if option.variable}
    lines = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known or not environment[name]:
            continue
        key = name[len(PREFIX) :].lower()
        flag = key.replace("_", "-")
        words = sorted(each[len(PREFIX) :] for each in known)
        near = difflib.get_close_matches(key.upper(), words, n=1)
        if key in table.options:
            hint = f"set {flag} in the config file"
        elif key in table.given_anew:
            hint = f"--{flag} is given with each call"
        else:
            hint = f"did you mean {PREFIX}{near[0]}?" if near else "no setting has this name"
        lines.append(f"{name} is set and does nothing: {hint}")
    return lines
