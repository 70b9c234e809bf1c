"""`lade config`: write a config file, show what holds, say where the file is."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import files
from .config_file import defaults, origins
from .errors import LadeError, UsageError
from .option_table import Option, OptionTable, table_of
from .places import config_path
from .terminal import Terminal

if TYPE_CHECKING:
    import typer

_HEAD = """\
# Defaults of lade's options.  A flag comes first, then a LADE_* variable, then this file.
# Lines that begin with # and no blank are settings: take the # away, and they hold.
# "" stands for no value, as if the line were not there: what holds then, its text says.
# `lade config show` tells what holds.
"""
_FOOT = """
# --- One command alone ---

# Below the name of a command, at the end of the file, settings hold for that command alone:
# chat, generate, tune and others.
#[chat]
#max-new-tokens = ""
"""
_ALL = {"chat", "generate"}


def path() -> int:
    """Print where the config file is, or would be; returns the exit code."""
    print(config_path())
    return 0


def init(table: OptionTable, *, force: bool) -> int:
    """Write a config file with every setting in it, commented out; returns the exit code.

    Args:
        table: of the options that there are.
        force: also where there is one, which is kept beside the new one.

    Raises:
        UsageError: there is one, and no force.
        LadeError: it cannot be written.
    """
    target = config_path()
    if target.is_dir():
        raise UsageError(f"the config file {target} is a folder; remove or rename it")
    exists = target.exists()
    if exists and not force:
        raise UsageError(
            f"there is a config file {target}; --force writes a new one, and keeps a copy"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        kept = _kept(target) if exists else None
    except OSError as error:
        raise LadeError(
            f"the config file {target} cannot be written: {error.strerror or error}"
        ) from error
    files.write(target, template(table), "config init")
    print(target)
    if kept is not None:
        Terminal().say(f"the old one is {kept.name} now, in the same folder")
    return 0


def _kept(path: Path) -> Path:
    """A copy of the file, under the next free name."""
    copy, number = path.with_name(f"{path.name}.bak"), 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{path.name}.bak-{number}")
    shutil.copy2(path, copy)
    return copy


def template(table: OptionTable) -> str:
    """The text of a config file in which every setting stands, and none holds.

    Args:
        table: of the options that there are.
    """
    panels: dict[str, list[Option]] = {}
    for option in table.options.values():
        panels.setdefault(option.panel, []).append(option)
    parts = [_HEAD]
    for panel, members in panels.items():
        parts.append(f"\n# --- {panel} ---\n")
        parts += [f"\n{_entry(option)}\n" for option in members]
    return "".join([*parts, _FOOT])


def _entry(option: Option) -> str:
    about = [option.what]
    commands = dict.fromkeys(words[0] for words in option.commands)
    if not commands.keys() >= _ALL:
        about.append(f"for {' and '.join(commands)}")
    if option.variable:
        about.append(option.variable)
    lines = textwrap.wrap(option.help, 96, initial_indent="# ", subsequent_indent="# ")
    return "\n".join([*lines, f"# ({'; '.join(about)})", f"#{option.name} = {_toml(option)}"])


def _toml(option: Option) -> str:
    if option.default is None:
        return "[]" if option.kind is list else '""'
    return json.dumps(option.default, ensure_ascii=False)  # the same as TOML for these kinds


def show(app: typer.Typer, color: str) -> int:
    """Print what holds without flags: name, value and origin; returns the exit code.

    Args:
        app: the commands, as the parser knows them.
        color: auto, always or never.

    Raises:
        UsageError: the config file is wrong.
    """
    from rich.text import Text

    terminal = Terminal(color)
    rows = list(_rows(app))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    console = terminal.console(sys.stdout)
    for name, value, origin in rows:
        line = Text.assemble(
            (f"{name:<{first}}", "cyan"), f"  {value:<{second}}  ", (origin, "dim")
        )
        console.print(line, soft_wrap=True)
    if not config_path().exists():
        terminal.say("there is no config file; lade config init writes one")
    return 0


def _rows(app: typer.Typer) -> Iterator[tuple[str, str, str]]:
    """What a call of every command would find: one row where all commands agree."""
    table = table_of(app)
    found = _parsed(app, table)
    for key, option in table.options.items():
        # A group and its commands find the same: file and variables know the first word only.
        said = {
            words[0]: found[words].get(key, (option.default, "default"))
            for words in option.commands
        }
        usual = max(said.values(), key=list(said.values()).count)
        yield (option.name, _shown(usual[0]), usual[1])
        for name, (value, origin) in said.items():
            if (value, origin) != usual:
                yield (f"{name}.{option.name}", _shown(value), origin)


def _parsed(
    app: typer.Typer, table: OptionTable
) -> dict[tuple[str, ...], dict[str, tuple[Any, str]]]:
    """Value and origin of what is not left as it is, by command: as the parser finds them."""
    from typer.core import TyperGroup
    from typer.main import get_command

    everything = defaults(table)
    found = {}
    for words in dict.fromkeys(w for option in table.options.values() for w in option.commands):
        command, said = get_command(app), everything
        for word in words:
            assert isinstance(command, TyperGroup)
            command, said = command.commands[word], said.get(word, {})
        required = ["-" for parameter in command.params if parameter.required]
        context = command.make_context(words[-1], required, default_map=said)
        found[words] = {
            key: (context.params[key], origin) for key, origin in origins(context).items()
        }
    return found


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(map(repr, value)) or "-"
    return "-" if value is None else str(value)
