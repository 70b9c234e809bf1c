"""What holds where no flag is given: the config file, `LADE_` variables, and `lade config`."""

from __future__ import annotations

import difflib
import errno
import functools
import itertools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from ..errors import LadeError, UsageError, one_line
from ..options import COMMANDS, request_of
from ..options.declare import PANELS, PREFIX, Option, Options, config_path, options_of
from ..view.screen import Column, Table, line, print_table
from ..view.terminal import Terminal

if TYPE_CHECKING:
    from ..options.commands import InitRequest

_HEAD = """\
# Defaults of lade's options.  A flag comes first, then a LADE_* variable, then this file.
# Lines that begin with # and no blank are settings: remove the # to set them.
# "" stands for no value, as if the line were not there.  `lade config` tells what holds.
"""
_FOOT = """
# --- One command alone ---

# Below the name of a command, at the end of the file, settings hold for that command alone:
# chat, generate, tune and others.
#[chat]
#max-new-tokens = ""
"""


def _table(command: str) -> str:
    """The table of the config file that holds a command's own settings."""
    return command.split()[0]


@functools.cache
def lasting() -> dict[str, tuple[Option, list[str]]]:
    """Every setting that the config file can hold, by key, with the commands that have it."""
    found: dict[str, tuple[Option, list[str]]] = {}
    for command in COMMANDS:
        for key, setting in options_of(request_of(command)).items():
            if setting.lasting:
                found.setdefault(key, (setting, []))[1].append(command)
    return found


def read() -> dict[str, dict[str, Any]]:
    """What the config file says: settings by key, for each command's first word; "" for all.

    Raises:
        UsageError: it cannot be read, is no TOML, has an unknown key or a value of a wrong type.
    """
    path = config_path()
    where = f"the config file {path}"
    try:
        content = files.parse_toml(files.read(path).decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):  # HOME=/dev/null is a way to have none
        return {}
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # so there is no such file
            return {}
        raise UsageError(f"{where} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        fix = "mend it, or lade config init --force writes a new one"
        raise UsageError(f"{where} is not valid TOML: {reason}; {fix}") from error
    found = {"": content}
    for command in set(map(_table, COMMANDS)) & content.keys():
        found[command] = content.pop(command)
        if not isinstance(found[command], dict):
            raise UsageError(
                f"{where}: {command} is a command; its settings stand below [{command}]"
            )
    return {
        command: _checked(said, command, f"{where}, [{command}]" if command else where)
        for command, said in found.items()
    }


def _checked(said: Mapping[str, Any], command: str, where: str) -> dict[str, Any]:
    """The settings of the file, or of what it says for one command."""
    known = {
        setting.name: setting
        for setting, having in lasting().values()
        if not command or command in map(_table, having)
    }
    found: dict[str, Any] = {}
    for written, value in said.items():
        name = written.replace("_", "-")
        if name not in known:
            names = [*known, *(() if command else map(_table, COMMANDS))]
            near = difflib.get_close_matches(name.lower(), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
            raise UsageError(f"{where} has an unknown key {written!r}; {hint}")
        key = known[name].key
        # An empty text is as if the line were not there, as with variables.
        try:
            found[key] = value if value == "" else known[name].typed(value)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    return {key: value for key, value in found.items() if value not in ("", [])}


def defaults(command: str) -> dict[str, Any]:
    """The config file's settings for a command, by key, as click's default_map.

    Raises:
        UsageError: as `read`.
    """
    if not (found := read()):
        return {}
    own = {**found[""], **found.get(_table(command), {})}
    return {
        key: own[key] for key, (_, having) in lasting().items() if key in own and command in having
    }


def stray_variables(environment: Mapping[str, str]) -> list[str]:
    """A line about every LADE_* variable that is set and does nothing."""
    given = [name for name in sorted(environment) if name.startswith(PREFIX) and environment[name]]
    if not given:
        return []
    known = {PREFIX + key.upper(): setting.variable for key, (setting, _) in lasting().items()}
    lines = []
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, filter(None, known.values()), n=1, cutoff=0.75)
            hint = f"did you mean {near[0]}?" if near else "it sets no option"
            lines.append(f"{name} is set and does nothing: {hint}")
        elif not known[name]:  # a list
            lines.append(f"{name} is set and does nothing: set it in the config file")
    return lines


def _print_path(path: Path) -> None:
    """Print a path: on a terminal without what would drive it, else as it is, for programs."""
    print(one_line(str(path)) if sys.stdout.isatty() else path)


def run_init(request: InitRequest) -> int:
    """Write a config file with every setting in it, commented out; returns the exit code.

    Raises:
        UsageError: there is one, and no --force, which keeps it beside the new one.
        LadeError: it cannot be written.
    """
    target = config_path()
    if target.exists() and not request.force:
        raise UsageError(
            f"there is a config file {target}; --force writes a new one, and keeps a copy"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        kept = _kept(target) if target.exists() else None
    except OSError as error:
        reason = error.strerror or error
        raise LadeError(f"the config file {target} cannot be written: {reason}") from error
    files.write(target, template(), "config init")
    if kept is not None:
        Terminal().say(f"the old one is {kept.name} now, in the same folder")
    _print_path(target)
    return 0


def _kept(path: Path) -> Path:
    """A copy of the file, under a name that no earlier copy has."""
    names = (f"{path.name}.bak{number or ''}" for number in itertools.count())
    copy = next(each for each in map(path.with_name, names) if not each.exists())
    shutil.copy2(path, copy)
    return copy


def template() -> str:
    """The text of a config file in which every setting stands, and none holds."""
    parts = [_HEAD]
    for panel in PANELS:
        entries = [
            _entry(setting, having)
            for setting, having in lasting().values()
            if setting.panel == panel
        ]
        if entries:
            parts.append("\n".join([f"\n# --- {panel} ---\n", *entries]))
    return "".join([*parts, _FOOT])


def _entry(setting: Option, having: list[str]) -> str:
    about = [setting.described]
    commands = dict.fromkeys(map(_table, having))
    if not commands.keys() >= {"chat", "generate"}:
        about.append(f"for {' and '.join(commands)}")
    if setting.variable:
        about.append(setting.variable)
    empty = [] if setting.kind is list else ""
    # JSON is the same as TOML for these kinds.
    value = json.dumps(empty if setting.default is None else setting.default, ensure_ascii=False)
    lines = textwrap.wrap(setting.help, 96, initial_indent="# ", subsequent_indent="# ")
    return "\n".join([*lines, f"# ({'; '.join(about)})", f"#{setting.name} = {value}", ""])


def show(found: Mapping[str, Options], color: str) -> int:
    """Print the path of the config file, and what holds without flags, by command; returns the
    exit code."""
    terminal = Terminal(color)
    console = terminal.console(sys.stdout)
    missing = "" if os.path.exists(config_path()) else " (not there; lade config init writes it)"
    line(console, f"{config_path()}{missing}")
    columns = tuple(Column(head, number=False) for head in ("setting", "value", "from"))
    table = Table("What holds without flags", columns, tuple(_rows(found)))
    print_table(table, console)
    return 0


def _rows(found: Mapping[str, Options]) -> Iterator[tuple[str, str, str]]:
    """One row a setting where all commands agree, and one for each command that does not."""
    for key, (setting, having) in lasting().items():
        rows = {}
        for command in having:
            request = found[command]
            value, origin = getattr(request, key), request.origins.get(key, "default")
            rows[_table(command)] = "***" if setting.secret and value else value, origin
        usual = max(rows.values(), key=list(rows.values()).count)
        yield setting.name, _shown(usual[0]), usual[1]
        for command, (value, origin) in rows.items():
            if (value, origin) != usual:
                yield f"{command}.{setting.name}", _shown(value), origin


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(map(repr, value)) or "-"
    return "-" if value is None else str(value)
