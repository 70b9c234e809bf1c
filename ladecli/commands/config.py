"""Settings without flags: the config file, `LADE_` variables, and `lade config`."""

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


@functools.cache
def lasting() -> dict[str, tuple[Option, list[str]]]:
    """Return every setting of the config file, by key, with the commands that have it."""
    settings: dict[str, tuple[Option, list[str]]] = {}  # those that are not only for single calls
    for command in COMMANDS:
        for key, setting in options_of(request_of(command)).items():
            if setting.lasting:
                settings.setdefault(key, (setting, []))[1].append(command)
    return settings


def read() -> dict[str, Any]:
    """Return the settings of the config file by key.

    Raises:
        UsageError: it cannot be read, is not TOML, has an unknown key or a value of a wrong type.
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
        fix = "correct it, or write a new one with lade config init --force"
        raise UsageError(f"{where} is not valid TOML: {reason}; {fix}") from error
    known = {setting.name: setting for setting, _ in lasting().values()}
    settings: dict[str, Any] = {}
    for written, value in content.items():
        name = written.replace("_", "-")
        if name not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise UsageError(f"{where} has an unknown key {written!r}; {hint}")
        if value in ("", []):  # means no value, as with variables
            continue
        try:
            settings[known[name].key] = known[name].typed(value)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    return settings


def defaults(command: str) -> dict[str, Any]:
    """Return the config file's settings for a command, by key, as click's default_map.

    Raises:
        UsageError: as `read`.
    """
    return {key: value for key, value in read().items() if command in lasting()[key][1]}


def stray_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a line about every LADE_* variable that is set and has no effect."""
    known = {setting.variable for setting, _ in lasting().values() if setting.variable}
    lines = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and environment[name] and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            hint = f"did you mean {near[0]}?" if near else "it sets no option"
            lines.append(f"{name} is set and does nothing: {hint}")
    return lines


def run_init(request: InitRequest) -> int:
    """Write a config file with every setting in it, commented out; return the exit code.

    Raises:
        UsageError: there is one already, and no --force, which keeps a copy of it.
        LadeError: it cannot be written.
    """
    target = config_path()
    if target.exists() and not request.force:
        raise UsageError(
            f"there is a config file {target}; --force writes a new one, and keeps a copy"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            copies = (target.with_name(f"{target.name}.bak{n or ''}") for n in itertools.count())
            copy = next(path for path in copies if not path.exists())
            shutil.copy2(target, copy)
            Terminal().say(f"the old one is {copy.name} now, in the same folder")
    except OSError as error:
        reason = error.strerror or error
        raise LadeError(f"the config file {target} cannot be written: {reason}") from error
    files.write(target, template(), "config init")
    # Only a terminal needs control characters removed from the path.
    print(one_line(str(target)) if sys.stdout.isatty() else target)
    return 0


def template() -> str:
    """Return the text of a config file with every setting, commented out."""
    parts = [_HEAD]
    for panel in PANELS:
        entries = [
            _entry(setting, commands)
            for setting, commands in lasting().values()
            if setting.panel == panel
        ]
        if entries:
            parts.append("\n".join([f"\n# --- {panel} ---\n", *entries]))
    return "".join(parts)


def _entry(setting: Option, commands: list[str]) -> str:
    about = [setting.described]
    if not {*commands} >= {"chat", "generate"}:
        about.append(f"for {' and '.join(commands)}")
    if setting.variable:
        about.append(setting.variable)
    empty = [] if setting.kind is list else ""
    # JSON is the same as TOML for these kinds.
    value = json.dumps(empty if setting.default is None else setting.default, ensure_ascii=False)
    lines = textwrap.wrap(setting.help, 96, initial_indent="# ", subsequent_indent="# ")
    return "\n".join([*lines, f"# ({'; '.join(about)})", f"#{setting.name} = {value}", ""])


def show(requests: Mapping[str, Options], color: str) -> int:
    """Print the path of the config file and the settings of requests without flags; return the exit
    code."""
    terminal = Terminal(color)
    console = terminal.console(sys.stdout)
    missing = "" if os.path.exists(config_path()) else " (not there; lade config init writes it)"
    line(console, f"{config_path()}{missing}")
    columns = tuple(Column(head, number=False) for head in ("setting", "value", "from"))
    table = Table("Settings without flags", columns, tuple(_rows(requests)))
    print_table(table, console)
    return 0


def _rows(requests: Mapping[str, Options]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for every setting, and one for each command that differs."""
    for key, (setting, commands) in lasting().items():
        rows = {}
        for command in commands:
            request = requests[command]
            value, origin = getattr(request, key), request.origins.get(key, "default")
            rows[command] = "***" if setting.secret and value else value, origin
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
