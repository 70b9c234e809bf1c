"""`lade profiles` and `lade profiles show`: tables for people, JSON objects for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import decode_setup, profiles
from .decoder.config import SOURCES, LookaheadConfig
from .memory import ModelSpec, told
from .planner import known_model
from .profiles import Choice, Profile, user
from .profiles.schema import VALUES
from .view import screen
from .view.terminal import Terminal
from .visualize import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .device import Device
    from .options import ListRequest, ProfileRequest

SCHEMA = 2
"""Version of the JSON objects."""
WIDTHS = (16, 32, 64)
"""Steps whose cost is shown, in tokens."""
CONTEXT = 1024
"""Tokens of text before those steps."""
SIZES = ("0.5b", "1.5b", "3b", "7b", "13b", "34b", "70b")
"""Well-known models for which settings are shown where no model is named."""


def run_list(request: ListRequest) -> int:
    """List all profiles; returns the exit code, 0.

    Raises:
        UsageError: an option is out of range, or there is no such device.
    """
    request.check()
    terminal = Terminal(request.color)
    device, own, notices = _machine(terminal, request.device)
    usual = profiles.usual(device, own)
    found = sorted(profiles.every(own).values(), key=lambda profile: profile.name)
    here = {each.name for each in found if _is_here(each, device, usual)}
    if not request.json:
        _show_list(_console(terminal, notices), device, usual, found, here)
        return 0
    rows = [
        {
            **_identity(profile),
            "shadows_shipped": _shadows(profile),
            "this_machine": profile.name in here,
            "hardware": _hardware(profile),
        }
        for profile in found
    ]
    described = {"kind": device.kind, "label": device.label, "memory_bytes": device.memory}
    name = usual.name if usual else None
    _print({"device": described, "profile": name, "profiles": rows, "notices": notices})
    return 0


def run_show(request: ProfileRequest) -> int:
    """Show one profile; returns the exit code, 0.

    Args:
        request: the profile to show, or else this machine's; with a model, its settings take the
            place of settings by size.

    Raises:
        UsageError: there is no such profile or device, or an option is out of range.
        LoadError, UnsupportedModelError: the model's configuration cannot be read or decoded.
    """
    request.check()  # before anything slow begins
    terminal = Terminal(request.color)
    choice, notices = None, []
    if request.model is not None:
        profile, choice = _chosen(request, request.model, terminal)
        notices = list(choice.notices)
    elif request.profile is not None:
        profile = profiles.read(request.profile)
    else:
        profile, notices = _usual(terminal, request.device)
    if request.json:
        _print({**_as_object(profile, request.model, choice), "notices": notices})
    else:
        _show_profile(_console(terminal, notices), profile, request.model, choice)
    return 0


def shapes_for(profile: Profile) -> Iterator[tuple[str, ModelSpec]]:
    """Models of the usual sizes with the names of those, each in 16, 8 and 4 bits."""
    half = profile.hardware.half if profile.hardware else "bfloat16"
    for size in SIZES:
        for quantize in ("none", "8bit", "4bit"):
            yield size.upper(), known_model(size, half, quantize)[1]


def _machine(terminal: Terminal, wanted: str) -> tuple[Device, list[Profile], list[str]]:
    """The device, the user's profiles, and a notice about each broken file."""
    with terminal.progress("looking at this machine"):
        from .device import detect

        return detect(wanted), *user.read_all()


def _usual(terminal: Terminal, wanted: str) -> tuple[Profile, list[str]]:
    """The profile of a device, measured if none knows it, and notices."""
    device, own, notices = _machine(terminal, wanted)
    usual = profiles.usual(device, own)
    if usual is not None:
        return usual, notices
    with terminal.progress(f"measuring {device.label}"):
        return _measured(device, "bfloat16"), [*notices, profiles.unknown(device)]


def _chosen(request: ProfileRequest, model: str, terminal: Terminal) -> tuple[Profile, Choice]:
    """The settings for a model, and their profile."""
    with terminal.progress(f"looking at {model}"):
        from . import models

        planned = models.plan(model, request.load_options())
        choice = decode_setup.choice_for(request, planned.device, planned.part)
        if choice.profile == profiles.MEASURED:
            return _measured(planned.device, planned.spec.compute), choice
        return profiles.read(choice.profile), choice


def _measured(device: Device, compute: str) -> Profile:
    """The profile of a device that is measured now; `measure_rates` remembers the figures."""
    from .device import measure_rates

    return profiles.measured(measure_rates(device, compute), compute)


def _is_here(profile: Profile, device: Device, usual: Profile | None) -> bool:
    """Whether this machine uses a profile: the usual one, or one that is tuned for some model."""
    if profile.tuned is None:
        return usual is not None and profile.name == usual.name
    return profile.tuned.device == user.key_of(device) and not user.changed(profile)


def _shadows(profile: Profile) -> bool:
    return profile.place != "shipped" and profile.name in profiles.shipped_names()


def _show_list(
    console: Console, device: Device, usual: Profile | None, found: list[Profile], here: set[str]
) -> None:
    """The list of profiles; a star marks what this machine uses."""
    table = _table("", "profile", "for", numbers=("GB/s", "TFLOP/s"), last=("from",))
    for profile in found:
        hardware, mine = profile.hardware, profile.name in here
        table.add_row(
            "*" if mine else "",
            printable(profile.name),
            printable(profile.description),
            f"{hardware.bandwidth / 1e9:.0f}" if hardware else "-",
            profiles.tera(max(hardware.by_type.values())) if hardware else "-",
            f"{profile.place}, before the shipped one" if _shadows(profile) else profile.place,
            style="bold" if mine else None,
        )
    screen.show(table, console)
    console.print()
    used = f"{usual.name} is for this machine: {user.key_of(device)}" if usual else None
    screen.line(console, f"* {printable(used or profiles.unknown(device))}")
    if any(profile.tuned for profile in found if profile.name in here):
        screen.line(console, "* tuned: for the model that it was tuned on")


def _show_profile(
    console: Console, profile: Profile, model: str | None, choice: Choice | None
) -> None:
    """All of a profile, with its settings by size, or what was chosen for a model."""
    screen.line(console, printable(f"{profile.name}: {profile.description}"), "bold")
    facts = screen.bare_table()
    facts.show_header = False
    facts.add_column(style="cyan", no_wrap=True)
    facts.add_column(overflow="fold")
    for fact in _facts(profile):
        facts.add_row(*map(printable, fact))
    screen.show(facts, console)
    console.print()
    origins: list[str] = []  # their letters are a, b and so on

    def letter(origin: str) -> str:
        if origin not in origins:
            origins.append(origin)
        return chr(ord("a") + origins.index(origin) % 26)

    if choice is None:
        numbers = ("W", "N", "G", "budget")
        table = _table("model", "weights", numbers=numbers, last=("sources",))
        for width in WIDTHS:
            table.add_column(str(width), justify="right", no_wrap=True)
        table.add_column("origin")
        for size, weights, lookahead, origin in _by_size(profile):
            shape = (lookahead.window, lookahead.ngram, lookahead.guesses, lookahead.step_limit)
            all_of_them = len(lookahead.sources) == len(SOURCES)
            sources = "all" if all_of_them else " ".join(lookahead.sources)
            costs = _costs(lookahead)
            table.add_row(size, weights, *map(str, shape), sources, *costs, letter(origin))
    else:
        screen.line(console, printable(f"for {model}"), "bold")
        table = _table("setting", "value", "origin")
        for name, value in _values(choice.lookahead).items():
            table.add_row(name, value, letter(choice.origins[name]))
        table.add_row("the paper's", _wng(choice.paper), letter(choice.paper_origin))
    screen.show(table, console)
    console.print()
    for origin in origins:
        screen.line(console, printable(f"{letter(origin)}  {origin}"))
    columns = "step_cost" if choice else ", ".join(map(str, WIDTHS))
    costs_of = f"cost of a step of N tokens after {CONTEXT} tokens of text, in plain steps"
    screen.line(console, f"{columns}: {costs_of}")


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """The facts that stand above the settings, each with its name."""
    path = _path(profile)
    yield "from", f"{profile.place}: {path}" if path else profile.place
    if profile.devices:
        yield "devices", f"{', '.join(profile.devices)} in the name that the driver reports"
    if profile.not_devices:
        yield "but not", ", ".join(profile.not_devices)
    if profile.memory:
        yield "memory", f"about {' or '.join(map(told, profile.memory))}"
    if hardware := profile.hardware:
        yield "bandwidth", f"{hardware.bandwidth / 1e9:.0f} GB/s"
        rates = (f"{kind} {profiles.tera(rate)}" for kind, rate in hardware.by_type.items())
        yield "arithmetic", f"{', '.join(rates)} TFLOP/s"
        yield "source", hardware.source
    if tuned := profile.tuned:
        versions = ", ".join(f"{name} {version}" for name, version in tuned.versions.items())
        size = f"{user.short(tuned.parameters)} parameters, {tuned.weights}"
        yield "tuned on", f"{tuned.device}; {size}; attention {tuned.attention}"
        yield "tuned with", f"{versions}; {tuned.date}"
    for paper in profile.papers:
        size = _up_to(paper.up_to_parameters, "larger models")
        yield "the paper's", f"{size}: {_wng(paper.lookahead)}, published: {paper.source}"


def _by_size(profile: Profile) -> Iterator[tuple[str, str, LookaheadConfig, str]]:
    """Size, weights, settings and origin: explicit settings, then derived ones by usual sizes."""
    for setting in profile.settings:
        size, weights = _up_to(setting.up_to_parameters, "any"), " ".join(setting.weights) or "any"
        yield size, weights, setting.lookahead, setting.origin
    if profile.hardware is not None:  # or else the explicit settings are for every model
        for size, shape in shapes_for(profile):
            if profile.setting(shape) is None:
                choice = profiles.choose(profile, shape)
                yield size, shape.weights, choice.lookahead, choice.origin


def _values(lookahead: LookaheadConfig) -> dict[str, str]:
    """Every value of the settings as text."""
    found: dict[str, Any] = asdict(lookahead) | {"budget": lookahead.step_limit}
    pairs = zip(WIDTHS, _costs(lookahead), strict=True)
    found["step_cost"] = [f"{width}: {cost}" for width, cost in pairs]
    return {
        name: str(value) if isinstance(value, int) else ", ".join(map(str, value)) or "any"
        for name, value in ((name, found[name]) for name in VALUES)
    }


def _costs(lookahead: LookaheadConfig) -> list[str]:
    if lookahead.step_cost.widths == (1,):
        return ["-"] * len(WIDTHS)
    return [f"{lookahead.step_cost.at(width, CONTEXT):.2f}" for width in WIDTHS]


def _wng(lookahead: LookaheadConfig) -> str:
    return f"W={lookahead.window} N={lookahead.ngram} G={lookahead.guesses}"


def _up_to(parameters: float, all_others: str) -> str:
    return all_others if parameters == math.inf else f"up to {user.short(parameters)}"


def _table(*titles: str, numbers: tuple[str, ...] = (), last: tuple[str, ...] = ()) -> Table:
    """A table with columns of text, of numbers, which stand right, and of text again."""
    table = screen.bare_table()
    for title in titles:
        table.add_column(title, overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    for title in last:
        table.add_column(title, overflow="fold")
    return table


def _as_object(profile: Profile, model: str | None, choice: Choice | None) -> dict[str, Any]:
    """The profile as in its file, and the settings that follow from it."""
    if choice is not None:
        settings = [{"model": model, **_settings(choice)}]
    else:
        settings = [
            {
                "model": size,
                "parameters": shape.parameters,
                "weights": shape.weights,
                **_settings(profiles.choose(profile, shape)),
            }
            for size, shape in shapes_for(profile)
        ]
    written = profile.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    return {**_identity(profile), **written, "settings": settings}


def _identity(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "description": profile.description,
        "from": profile.place,
        "path": _path(profile),
    }


def _settings(choice: Choice) -> dict[str, Any]:
    paper = {key: getattr(choice.paper, key) for key in ("window", "ngram", "guesses")}
    return {
        **asdict(choice.lookahead),
        "origins": dict(choice.origins),
        "paper": {**paper, "origin": choice.paper_origin},
    }


def _hardware(profile: Profile) -> dict[str, Any] | None:
    return profile.hardware.model_dump(exclude_none=True) if profile.hardware else None


def _path(profile: Profile) -> str | None:
    own = profile.place in ("yours", "tuned")
    return str(user.path_of(profile.name)) if own else None


def _console(terminal: Terminal, notices: list[str]) -> Console:
    """Show notices; what comes next goes to stdout."""
    for notice in notices:
        terminal.say(notice)
    return terminal.console(sys.stdout)


def _print(data: dict[str, Any]) -> None:
    print(json.dumps({"schema": SCHEMA, **data}, ensure_ascii=False))
