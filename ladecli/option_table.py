"""Every setting that there is, read from the commands' own options: one source of truth."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args, get_origin

if TYPE_CHECKING:
    import typer

_LISTS = frozenset({"stop"})
"""Settings without a variable, which would be split at its blanks."""
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True, slots=True)
class Option:
    """An option whose default the config file can set; most can have a variable too.

    Attributes:
        key: its name in requests, such as max_new_tokens.
        kind: int, float, bool, str, or list for several texts.
        default: what holds where nobody says anything; None for no value.
        help: one sentence for people.
        panel: the group that it stands in.
        variable: of the environment; None where there is none.
        commands: those that have it, by their words: ("chat",), ("profiles", "show").
    """

    key: str
    kind: type
    default: Any
    help: str
    panel: str
    variable: str | None
    commands: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """Its name in the config file, and that of its flag."""
        return self.key.replace("_", "-")

    @property
    def what(self) -> str:
        """What its values are, in words."""
        return _KINDS.get(self.kind, "a list of texts")


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options of all commands.

    Attributes:
        options: that can be set for good, by their keys, in the order of the commands and of
            their help.
        given_anew: keys of those that belong to one call: no file and no variable can hold them.
    """

    options: Mapping[str, Option]
    given_anew: frozenset[str]

    @property
    def commands(self) -> frozenset[str]:
        """The first words of all commands that have options."""
        return frozenset(words[0] for each in self.options.values() for words in each.commands)

    def of(self, command: str) -> dict[str, Option]:
        """Those of one command, by its first word."""
        return {
            key: option
            for key, option in self.options.items()
            if any(words[0] == command for words in option.commands)
        }


@functools.cache
def table_of(app: typer.Typer) -> OptionTable:
    """The options of a program's commands."""
    options = _options(app)
    every = {key for _, function in _commands(app) for key, _, _ in _parameters(function)}
    return OptionTable(options, frozenset(every - options.keys()))


def _options(app: typer.Typer) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for command, function in _commands(app):
        for key, parameter, info in _parameters(function):
            if info.envvar is None and key not in _LISTS:
                continue  # given anew with every call
            if key in found:
                before = found[key]
                found[key] = replace(before, commands=(*before.commands, command))
                continue
            kinds = [k for k in (get_args(parameter) or (parameter,)) if k is not type(None)]
            found[key] = Option(
                key,
                list if parameter is list or get_origin(kinds[0]) is list else kinds[0],
                inspect.signature(function).parameters[key].default,
                info.help,
                info.rich_help_panel or "Model",
                info.envvar,
                (command,),
            )
    return found


def _commands(app: typer.Typer) -> Iterator[tuple[tuple[str, ...], Callable[..., Any]]]:
    """The words of every command, and its function."""
    for info in app.registered_commands:
        assert info.callback is not None
        yield (info.name or info.callback.__name__,), info.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        assert group.name is not None
        own = group.typer_instance.registered_callback
        if own is not None and own.callback is not None:
            yield (group.name,), own.callback
        for info in group.typer_instance.registered_commands:
            assert info.callback is not None
            yield (group.name, info.name or info.callback.__name__), info.callback


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and Typer's description of every option of a command."""
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if get_args(parameter.annotation) and hasattr(parameter.annotation, "__metadata__"):
            yield name, parameter.annotation.__origin__, parameter.annotation.__metadata__[0]
