"""`lade doctor`: what is here, what is wrong or missing, and how to mend it."""

from __future__ import annotations

import json as jsons
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from . import __version__, profiles, ways
from .checks import findings, hub, machine, model
from .checks.findings import NOTE, PROBLEM, WARNING, Finding, Section, look
from .config_file import read_config, stray_variables
from .decoder.errors import ConfigError
from .errors import UsageError, told
from .places import PREFIX, config_path
from .profiles import user
from .settings import ReportRequest
from .terminal import Terminal
from .visualize import counted

if TYPE_CHECKING:
    from .option_table import OptionTable
    from .settings import Request

SCHEMA = 1
"""Version of what --json prints."""


def run(request: ReportRequest, table: OptionTable) -> int:
    """Look at everything, and tell it.

    Args:
        request: what to look at the machine for; its model is looked at too, if it has one.
        table: of the options that there are.

    Returns:
        The exit code: 0, or 1 where something cannot work.

    Raises:
        UsageError, ConfigError: what was given with this call is wrong.  What variables and the
            config file say wrongly is told among the rest.
    """
    by_hand = {
        key: getattr(request, key)
        for key, origin in request.origins.items()
        if origin == "argument" or origin.startswith("flag ")
    }
    ReportRequest(**by_hand).check()
    terminal = Terminal(request.color)
    with terminal.progress("looking around"):
        sections = examine(request, table)
    failed = findings.count(sections, PROBLEM) > 0
    if request.json:
        told_all = {"schema": SCHEMA, "lade": __version__, "ok": not failed}
        told_all["checks"] = findings.as_object(sections)
        print(jsons.dumps(told_all, ensure_ascii=False))
        return int(failed)
    console = terminal.console(sys.stdout)
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    width = console.width if sys.stdout.isatty() else None
    for line in findings.lines(sections, width, unicode):
        console.print(line, soft_wrap=True)
    console.print(findings.summary(sections), soft_wrap=True)
    return int(failed)


def examine(request: Request, table: OptionTable) -> list[Section]:
    """Everything that can be found out; nothing raises.

    Args:
        request: what to look at the machine for, and the model, if there is one.
        table: of the options that there are.
    """
    broken = _broken_import()
    hardware: dict[str, Callable[[], Iterable[Finding]]] = {
        "device": machine.devices,
        "processor": machine.processor,
        "GPU": machine.unused_gpu,
    }
    versions = {
        "versions": machine.versions,
        "torch": machine.torch_version,
        "requirements": machine.requirements,
    }
    settings: dict[str, Callable[[], Iterable[Finding]]] = {
        "config file": lambda: _config_file(table),
        "profiles": lambda: _profiles(request),
        "CUDA graphs": lambda: _graphs(request),
        "variables": lambda: _variables(table),
    }
    if broken is not None:
        # It is told once, and not for everything that hangs on it.
        hardware = {broken.name: lambda: [broken]}
        del versions["torch"], settings["profiles"], settings["CUDA graphs"]
    wrong = _wrong(request) if broken is None else None
    if wrong is not None:
        settings["profiles"] = lambda: [wrong]
        del settings["CUDA graphs"]
    offline = request.origins.get("offline", "a program") if request.offline else None
    sections = [
        look("Machine", hardware),
        look("Versions", versions),
        look("Optional parts", {"parts": lambda: machine.optional_parts(_kind(request))}),
        look("Settings", settings),
        look("Hub", {"hub": lambda: hub.reach(offline), "token": hub.token, "cache": hub.cache}),
    ]
    if request.model is not None and broken is None and wrong is None:
        sections.append(look("Model", {"model": lambda: model.model(request)}))
    return sections


def _wrong(request: Request) -> Finding | None:
    """What a variable or the config file says that no command can work with, if so."""
    try:
        from .device import detect

        request.check()
        detect(request.device)
    except (UsageError, ConfigError) as error:
        return Finding("options", str(error), PROBLEM)
    except Exception:  # told by the probe of the devices
        return None
    return None


def _kind(request: Request) -> str:
    """The kind of device that models run on; "cpu" where none can be found out."""
    try:
        from .device import detect

        return detect(request.device).kind
    except Exception:  # told by the probe of the devices, or as a wrong option
        return "cpu"


def _broken_import() -> Finding | None:
    """Why nothing can be computed here, if so."""
    try:
        # All that decoding needs hangs on this.
        from . import session  # noqa: F401
    except Exception as error:
        name = getattr(error, "name", None) or "torch"
        return Finding(
            name,
            f"cannot be imported: {told(error)}",
            PROBLEM,
            f"pip install --force-reinstall {name.partition('.')[0]}",
        )
    return None


def _config_file(table: OptionTable) -> Iterator[Finding]:
    path = config_path()
    data = {"path": str(path), "exists": path.exists()}
    if not path.exists():
        yield Finding("config file", f"none at {path}", NOTE, "lade config init writes one", data)
        return
    try:
        read_config(table)
    except UsageError as error:
        yield Finding("config file", str(error), PROBLEM, f"correct {path}", data)
        return
    yield Finding("config file", str(path), data=data)


def _profiles(request: Request) -> Iterator[Finding]:
    """The profile that is used here, and the user's own ones."""
    from .device import detect

    mine, faults = user.read_all()
    device = detect(request.device)
    usual = profiles.usual(device, mine)
    if request.profile is not None:
        value = f"{request.profile}, by {request.origins.get('profile', 'a program')}"
        yield Finding("profile", value, data={"name": request.profile})
    elif usual is None:
        value = f"none knows {device.label}: settings come from a quick measurement"
        yield Finding("profile", value, WARNING, "lade tune MODEL measures them well")
    else:
        why = "for Apple GPUs" if device.kind == "mps" else "for processors"
        why = f"knows {device.label}" if usual.devices else why
        yield Finding("profile", f"{usual.name}: {why}", data={"name": usual.name})
    tuned = sum(profile.tuned is not None for profile in mine)
    own = f"{counted(len(mine), 'profile')}, {tuned} of them tuned, in" if mine else "none in"
    yield Finding(
        "your profiles",
        f"{own} {user.folder()}",
        data={"folder": str(user.folder()), "names": [profile.name for profile in mine]},
    )
    for fault in faults:
        yield Finding("your profiles", fault, WARNING, "correct the file, or remove it")


def _graphs(request: Request) -> Iterator[Finding]:
    """Whether steps are captured as CUDA graphs, as far as that is known without a model."""
    from .device import detect

    why = ways.no_graphs(request, detect(request.device))
    data = {"on": why is None}
    if why is None:
        yield Finding("CUDA graphs", "on, for every model whose steps can be captured", data=data)
    elif request.cuda_graphs:
        yield Finding("CUDA graphs", why, PROBLEM, "leave --cuda-graphs out", data)
    else:
        yield Finding("CUDA graphs", f"off: {why}", NOTE, data=data)


def _variables(table: OptionTable) -> Iterator[Finding]:
    """Variables that change what commands do, and those that are misspelt."""
    strays = stray_variables(table, os.environ)
    idle = {line.split(" ")[0] for line in strays}
    given = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIX) and name not in idle
    }
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    yield Finding("variables", words or "none is set", data=given)
    for line in strays:
        yield Finding("variables", line, WARNING)
