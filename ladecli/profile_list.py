"""`lade profiles`: which there are, what each says, and which one this machine uses."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import launch, profiles, screen
from .profiles import Choice, Profile, user
from .profiles.listing import Machine, entries
from .terminal import Terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .settings import ReportRequest, Request


def run_list(request: ReportRequest) -> int:
    """List all profiles.

    Args:
        request: the device that they are for, and how to print them.

    Returns:
        The exit code, 0.

    Raises:
        UsageError: an option is out of range, or there is no such device.
    """
    request.check()
    terminal = Terminal(request.color)
    machine = _machine(terminal, request.device)
    rows = entries(machine, [profiles.shipped(name) for name in profiles.shipped_names()])
    if request.json:
        from .profiles.as_json import list_object

        _print(list_object(machine, rows))
        return 0
    from .profiles.tables import list_parts

    _show(terminal, list_parts(machine, rows), machine.notices)
    return 0


def run_show(request: ReportRequest) -> int:
    """Show one profile.

    Args:
        request: its profile is the one to show, and without one that of this machine; with a
            model, what is chosen for it, loaded as the request says, takes the place of settings
            by size.

    Returns:
        The exit code, 0.

    Raises:
        UsageError: there is no such profile or device, or an option is out of range.
        LoadError, UnsupportedModelError: the model's configuration cannot be read or decoded.
    """
    request.check()  # a slip is told before anything slow begins
    terminal = Terminal(request.color)
    choice = None
    if request.model is not None:
        profile, choice = _chosen(request, request.model, terminal)
        notices = list(choice.notices)
    elif request.profile is not None:
        profile, notices = profiles.read(request.profile), []
    else:
        profile, notices = _usual(terminal, request.device)
    if request.json:
        from .profiles.as_json import show_object

        _print(show_object(profile, request.model, choice, notices))
        return 0
    from .profiles.tables import show_parts

    _show(terminal, show_parts(profile, request.model, choice), notices)
    return 0


def _usual(terminal: Terminal, wanted: str) -> tuple[Profile, list[str]]:
    """The profile of a device, measured if it must be, and what to tell the user."""
    machine = _machine(terminal, wanted)
    if machine.usual is not None:
        return machine.usual, machine.notices
    with terminal.progress(f"measuring {machine.device.label}"):
        from .device import detect
        from .rates import measure_rates

        rates = measure_rates(detect(wanted), "bfloat16")
    return profiles.measured(rates, "bfloat16"), [*machine.notices, machine.told]


def _chosen(request: Request, model: str, terminal: Terminal) -> tuple[Profile, Choice]:
    """What is chosen for a model, and the profile that says so."""
    with terminal.progress(f"looking at {model}"):
        from . import models
        from .rates import measure_rates

        planned = models.plan(model, request.load_options())
        choice = launch.choice_for(request, planned.device, planned.part)
        if choice.profile != profiles.MEASURED:
            return profiles.read(choice.profile), choice
        # They were measured a moment ago, and are remembered.
        rates = measure_rates(planned.device, planned.shape.compute)
        return profiles.measured(rates, planned.shape.compute), choice


def _machine(terminal: Terminal, wanted: str) -> Machine:
    with terminal.progress("looking at this machine"):
        from .device import detect

        device = detect(wanted)
        mine, notices = user.read_all()
        return Machine(device, profiles.usual(device, mine), mine, notices)


def _show(terminal: Terminal, parts: Iterable[RenderableType], notices: list[str]) -> None:
    for notice in notices:
        terminal.say(notice)
    console = terminal.console(sys.stdout)
    for part in parts:
        screen.show(part, console)


def _print(data: dict[str, Any]) -> None:
    print(jsons.dumps(data, ensure_ascii=False))
