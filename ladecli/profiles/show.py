"""`lade profiles` and `lade profiles show`: tables for people, JSON objects for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import decode_setup, profiles
from ..decoder.config import SOURCES, LookaheadConfig
from ..memory import ModelSpec, told
from ..planner import known_model
from ..view import screen
from ..view.terminal import Terminal
from ..visualize import printable
from . import Choice, Profile, user
from .schema import VALUES, Setting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..device import Device
    from ..options import ListRequest, ProfileRequest

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
    with terminal.progress("looking at this machine"):
        from ..device import detect

        device = detect(request.device)
        own, notices = user.read_all()
    usual = profiles.usual(device, own)
    rows = [_row(profile, device, usual) for profile in profiles.every(own).values()]
    rows.sort(key=lambda row: str(row["name"]))
    described = {"kind": device.kind, "label": device.label, "memory_bytes": device.memory}
    name = usual.name if usual else None
    if request.json:
        _print({"device": described, "profile": name, "profiles": rows, "notices": notices})
        return 0
    console = _console(terminal, notices)
    table = _table("", "profile", "for", numbers=("GB/s", "TFLOP/s"), last=("from",))
    for row in rows:
        speeds = ["-", "-"]
        if hardware := row["hardware"]:
            fastest = profiles.tera(max(hardware["rates"].values()))
            speeds = [f"{hardware['bandwidth'] / 1e9:.0f}", fastest]
        place = f"{row['from']}{', before the shipped one' if row['shadows_shipped'] else ''}"
        names = printable(row["name"]), printable(row["description"])
        mine = row["this_machine"]
        table.add_row("*" if mine else "", *names, *speeds, place, style="bold" if mine else None)
    screen.show(table, console)
    console.print()
    used = f"{name} is for this machine: {user.key_of(device)}" if name else None
    screen.line(console, f"* {printable(used or profiles.unknown(device))}")
    if any(row["from"] == "tuned" and row["this_machine"] for row in rows):
        screen.line(console, "* tuned: for the model that it was tuned on")
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
    profile, choice, notices = _find(request, terminal)
    if choice is not None:
        settings = [{"model": request.model, **_settings(choice)}]
    else:
        settings = [
            {"model": size, "parameters": spec.parameters, "weights": spec.weights}
            | _settings(profiles.choose(profile, spec))
            for size, spec in specs_for(profile)
        ]
    if request.json:
        described = {**_identity(profile), **profile.as_file()}
        _print({**described, "settings": settings, "notices": list(notices)})
        return 0
    console = _console(terminal, notices)
    screen.line(console, printable(f"{profile.name}: {profile.description}"), "bold")
    facts = screen.bare_table()
    facts.show_header = False
    facts.add_column(style="cyan", no_wrap=True)
    facts.add_column(overflow="fold")
    for fact in _facts(profile):
        facts.add_row(*map(printable, fact))
    screen.show(facts, console)
    console.print()
    if choice is not None:
        screen.line(console, printable(f"for {request.model}"), "bold")
    origins: dict[str, str] = {}
    screen.show(_by_value(choice, origins) if choice else _by_size(profile, origins), console)
    console.print()
    for origin, letter in origins.items():
        screen.line(console, printable(f"{letter}  {origin}"))
    columns = "step_cost" if choice else ", ".join(map(str, WIDTHS))
    costs_of = f"cost of a step of N tokens after {CONTEXT} tokens of text, in plain steps"
    screen.line(console, f"{columns}: {costs_of}")
    return 0


def specs_for(profile: Profile) -> Iterator[tuple[str, ModelSpec]]:
    """Models of the usual sizes with the names of those, each in 16, 8 and 4 bits."""
    half = profile.hardware.half if profile.hardware else "bfloat16"
    for size in SIZES:
        for quantize in ("none", "8bit", "4bit"):
            yield size.upper(), known_model(size, half, quantize)[1]


def _find(
    request: ProfileRequest, terminal: Terminal
) -> tuple[Profile, Choice | None, Sequence[str]]:
    """The profile to show, its settings for the model that the request names, and notices."""
    if request.profile is not None and request.model is None:
        return profiles.read(request.profile), None, ()
    with terminal.progress(f"looking at {request.model or 'this machine'}"):
        from ..device import detect, measure_rates

        choice: Choice | None = None
        notices: list[str] = []
        if request.model is None:
            device, compute = detect(request.device), "bfloat16"
            own, notices = user.read_all()
            profile = profiles.usual(device, own)
        else:
            from .. import models

            planned = models.plan(request.model, request)
            device, compute = planned.device, planned.spec.compute
            choice = decode_setup.choice_for(request, device, planned.part)
            measured = choice.profile == profiles.MEASURED
            profile = None if measured else profiles.read(choice.profile)
        if profile is None:
            # The figures are remembered: nothing is measured twice.
            profile = profiles.measured(measure_rates(device, compute), compute)
            notices.append(profiles.unknown(device))
    return profile, choice, choice.notices if choice else notices


def _identity(profile: Profile) -> dict[str, Any]:
    own = profile.place in ("yours", "tuned")
    return {
        "name": profile.name,
        "description": profile.description,
        "from": profile.place,
        "path": str(user.path_of(profile.name)) if own else None,
    }


def _row(profile: Profile, device: Device, usual: Profile | None) -> dict[str, Any]:
    """A row of the list; this machine uses its usual profile, and those tuned for some model."""
    if tuned := profile.tuned:
        here = tuned.device == user.key_of(device) and not user.changed(tuned)
    else:
        here = usual is not None and profile.name == usual.name
    shipped = profile.name in profiles.shipped()
    return {
        **_identity(profile),
        "shadows_shipped": shipped and profile.place != "shipped",
        "this_machine": here,
        "hardware": profile.hardware.model_dump() if profile.hardware else None,
    }


def _settings(choice: Choice) -> dict[str, Any]:
    paper = {key: getattr(choice.paper, key) for key in ("window", "ngram", "guesses")}
    return {
        **asdict(choice.lookahead),
        "origins": dict(choice.origins),
        "paper": {**paper, "origin": choice.paper_origin},
    }


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """The facts that stand above the settings, each with its name."""
    path = _identity(profile)["path"]
    yield "from", f"{profile.place}: {path}" if path else profile.place
    if profile.devices:
        yield "devices", f"{', '.join(profile.devices)} in the name that the driver reports"
    if profile.not_devices:
        yield "but not", ", ".join(profile.not_devices)
    if profile.memory:
        yield "memory", f"about {' or '.join(map(told, profile.memory))}"
    if hardware := profile.hardware:
        yield "bandwidth", f"{hardware.bandwidth / 1e9:.0f} GB/s"
        rates = (f"{kind} {profiles.tera(rate)}" for kind, rate in hardware.rates.items())
        yield "arithmetic", f"{', '.join(rates)} TFLOP/s"
        yield "source", hardware.source
    if tuned := profile.tuned:
        versions = ", ".join(f"{name} {version}" for name, version in tuned.versions.items())
        size = f"{user.short(tuned.parameters)} parameters, {tuned.weights}"
        yield "tuned on", f"{tuned.device}; {size}; attention {tuned.attention}"
        yield "tuned with", f"{versions}; {tuned.date}"
    for paper in profile.papers:
        size = _up_to(paper, "larger models")
        yield "the paper's", f"{size}: {_wng(paper.lookahead)}, {paper.origin}"


def _by_size(profile: Profile, origins: dict[str, str]) -> Table:
    """Explicit settings, then derived ones by usual sizes; adds a letter for each origin."""
    table = _table("model", "weights", numbers=("W", "N", "G", "budget"), last=("sources",))
    for width in WIDTHS:
        table.add_column(str(width), justify="right", no_wrap=True)
    table.add_column("origin")
    rows = [
        (
            _up_to(setting, "any"),
            " ".join(setting.weights) or "any",
            setting.lookahead,
            setting.origin,
        )
        for setting in profile.settings
    ]
    for size, spec in specs_for(profile) if profile.hardware else ():
        if profile.setting(spec) is None:
            choice = profiles.choose(profile, spec)
            rows.append((size, spec.weights, choice.lookahead, choice.origin))
    for size, weights, lookahead, origin in rows:
        numbers = (lookahead.window, lookahead.ngram, lookahead.guesses, lookahead.step_limit)
        everything = len(lookahead.sources) == len(SOURCES)
        sources = "all" if everything else " ".join(lookahead.sources)
        letter = _letter(origin, origins)
        table.add_row(size, weights, *map(str, numbers), sources, *_costs(lookahead), letter)
    return table


def _by_value(choice: Choice, origins: dict[str, str]) -> Table:
    """The settings for one model, a value in each row; adds a letter for each origin."""
    table = _table("setting", "value", "origin")
    lookahead = choice.lookahead
    values: dict[str, Any] = asdict(lookahead) | {"budget": lookahead.step_limit}
    pairs = zip(WIDTHS, _costs(lookahead), strict=True)
    values["step_cost"] = [f"{width}: {cost}" for width, cost in pairs]
    for name in VALUES:
        value = values[name]
        text = str(value) if isinstance(value, int) else ", ".join(map(str, value)) or "any"
        table.add_row(name, text, _letter(choice.origins[name], origins))
    table.add_row("the paper's", _wng(choice.paper), _letter(choice.paper_origin, origins))
    return table


def _letter(origin: str, origins: dict[str, str]) -> str:
    """The letter of an origin: a, b and so on."""
    return origins.setdefault(origin, chr(ord("a") + len(origins) % 26))


def _costs(lookahead: LookaheadConfig) -> list[str]:
    if lookahead.step_cost.widths == (1,):
        return ["-"] * len(WIDTHS)
    return [f"{lookahead.step_cost.at(width, CONTEXT):.2f}" for width in WIDTHS]


def _wng(lookahead: LookaheadConfig) -> str:
    return f"W={lookahead.window} N={lookahead.ngram} G={lookahead.guesses}"


def _up_to(setting: Setting, all_others: str) -> str:
    size = setting.up_to_parameters
    return all_others if size == math.inf else f"up to {user.short(size)}"


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


def _console(terminal: Terminal, notices: Sequence[str]) -> Console:
    """Show notices; what comes next goes to stdout."""
    for notice in notices:
        terminal.say(notice)
    return terminal.console(sys.stdout)


def _print(data: dict[str, Any]) -> None:
    print(json.dumps({"schema": SCHEMA, **data}, ensure_ascii=False))
