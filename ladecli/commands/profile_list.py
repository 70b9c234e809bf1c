"""`lade profiles` and `lade profiles show`: tables for people, JSON objects for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import profiles
from ..decoder.config import SOURCES, LookaheadConfig
from ..profiles import Choice, Profile, user
from ..profiles.schema import VALUES, Setting
from ..session import setup as decode_setup
from ..specs.memory import ModelSpec, told
from ..view import screen
from ..view.terminal import Terminal
from ..visualize import printable
from .planner import known_model

if TYPE_CHECKING:
    from rich.console import Console

    from ..options import ListRequest, ProfileRequest
    from ..specs.device import Device

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
        from ..specs.device import detect

        device = detect(request.device)
        own, notices = user.read_all()
    usual = profiles.usual(device, own)
    name = usual.name if usual else None
    known = sorted(profiles.every(own).values(), key=lambda profile: profile.name)
    rows = [_row(profile, _is_for(profile, device, name)) for profile in known]
    if request.json:
        described = {"kind": device.kind, "label": device.label, "memory_bytes": device.memory}
        _print({"device": described, "profile": name, "profiles": rows, "notices": notices})
        return 0
    console = _console(terminal, notices)
    table = []
    for row in rows:
        speeds = [screen.NONE, screen.NONE]
        if hardware := row["hardware"]:
            fastest = profiles.tera(max(hardware["rates"].values()))
            speeds = [f"{hardware['bandwidth'] / 1e9:.0f}", fastest]
        place = f"{row['from']}{', before the shipped one' if row['shadows_shipped'] else ''}"
        mark = "*" if row["this_machine"] else ""
        table.append((mark, row["name"], row["description"], *speeds, place))
    _print_table(console, " profile for GB/s> TFLOP/s> from", table)
    used = f"{name} is for this machine: {user.key_of(device)}" if name else None
    screen.line(console, f"* {printable(used or profiles.unknown(device))}")
    if any(row["from"] == "tuned" and row["this_machine"] for row in rows):
        screen.line(console, "* tuned: for the model that it was tuned on")
    return 0


def run_show(request: ProfileRequest) -> int:
    """Show one profile, or its settings for one model; returns the exit code, 0.

    Raises:
        UsageError: there is no such profile or device, or an option is out of range.
        LoadError, UnsupportedModelError: the model's configuration cannot be read or decoded.
    """
    request.check()  # before anything slow begins
    terminal = Terminal(request.color)
    profile, choice, notices = _find(request, terminal)
    if request.json:
        settings = [{"model": request.model, **_settings(choice)}] if choice else _by_size(profile)
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
    origins: dict[str, str] = {}  # of values, each with its letter
    if choice:
        screen.line(console, printable(f"for {request.model}"), "bold")
        _print_table(console, "setting value origin", _rows_by_value(choice, origins))
    else:
        columns = f"model weights W> N> G> budget> sources {'> '.join(map(str, WIDTHS))}> origin"
        _print_table(console, columns, _rows_by_size(profile, origins))
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
        from ..specs.device import detect, measure_rates

        profile: Profile | None
        choice: Choice | None = None
        if request.model is None:
            device, compute = detect(request.device), "bfloat16"
            own, notices = user.read_all()
            profile = profiles.usual(device, own)
        else:
            from .. import models

            planned = models.plan(request.model, request)
            device, compute = planned.device, planned.spec.compute
            choice = decode_setup.choice_for(request, device, planned.part)
            if choice.profile != profiles.MEASURED:
                return profiles.read(choice.profile), choice, choice.notices
            notices = list(choice.notices)
        if profile is None or choice:
            # The figures are remembered: nothing is measured twice.
            profile = profiles.measured(measure_rates(device, compute), compute)
            notices += [] if choice else [profiles.unknown(device)]
    return profile, choice, notices


def _identity(profile: Profile) -> dict[str, Any]:
    own = profile.place in ("yours", "tuned")
    return {
        "name": profile.name,
        "description": profile.description,
        "from": profile.place,
        "path": str(user.path_of(profile.name)) if own else None,
    }


def _is_for(profile: Profile, device: Device, usual: str | None) -> bool:
    """Whether a profile is the machine's usual one, or was tuned on it for some model."""
    if tuned := profile.tuned:
        return tuned.device == user.key_of(device) and not user.changed(tuned)
    return profile.name == usual


def _row(profile: Profile, this_machine: bool) -> dict[str, Any]:
    """A row of the list, as JSON has it."""
    shipped = profile.name in profiles.shipped()
    return {
        **_identity(profile),
        "shadows_shipped": shipped and profile.place != "shipped",
        "this_machine": this_machine,
        "hardware": profile.hardware.model_dump() if profile.hardware else None,
    }


def _settings(choice: Choice) -> dict[str, Any]:
    paper = {key: getattr(choice.paper, key) for key in ("window", "ngram", "guesses")}
    return {
        **asdict(choice.lookahead),
        "origins": dict(choice.origins),
        "paper": {**paper, "origin": choice.paper_origin},
    }


def _by_size(profile: Profile) -> list[dict[str, Any]]:
    """The settings of a profile for models of the usual sizes, as JSON has them."""
    return [
        {"model": size, "parameters": spec.parameters, "weights": spec.weights}
        | _settings(profiles.choose(profile, spec))
        for size, spec in specs_for(profile)
    ]


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


def _rows_by_size(profile: Profile, origins: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """Explicit settings, then derived ones by usual sizes; adds a letter for each origin."""
    rows = [
        (_up_to(each, "any"), " ".join(each.weights) or "any", each.lookahead, each.origin)
        for each in profile.settings
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
        yield (size, weights, *map(str, numbers), sources, *_costs(lookahead), letter)


def _rows_by_value(choice: Choice, origins: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """The settings for one model, a value in each row; adds a letter for each origin."""
    lookahead = choice.lookahead
    pairs = zip(WIDTHS, _costs(lookahead), strict=True)
    costs = [f"{width}: {cost}" for width, cost in pairs]
    values = asdict(lookahead) | {"budget": lookahead.step_limit, "step_cost": costs}
    for name in VALUES:
        value = values[name]
        text = str(value) if isinstance(value, int) else ", ".join(map(str, value)) or "any"
        yield name, text, _letter(choice.origins[name], origins)
    yield "the paper's", _wng(choice.paper), _letter(choice.paper_origin, origins)


def _letter(origin: str, origins: dict[str, str]) -> str:
    """The letter of an origin: a, b and so on."""
    return origins.setdefault(origin, chr(ord("a") + len(origins) % 26))


def _costs(lookahead: LookaheadConfig) -> list[str]:
    if lookahead.step_cost.widths == (1,):
        return [screen.NONE] * len(WIDTHS)
    return [f"{lookahead.step_cost.at(width, CONTEXT):.2f}" for width in WIDTHS]


def _wng(lookahead: LookaheadConfig) -> str:
    return f"W={lookahead.window} N={lookahead.ngram} G={lookahead.guesses}"


def _up_to(setting: Setting, all_others: str) -> str:
    size = setting.up_to_parameters
    return all_others if size == math.inf else f"up to {user.short(size)}"


def _print_table(console: Console, titles: str, rows: Iterable[Sequence[str]]) -> None:
    """A table with these columns; those with > at the end hold numbers, which stand right."""
    table = screen.bare_table()
    for title in titles.split(" "):
        if title.endswith(">"):
            table.add_column(title[:-1], justify="right", no_wrap=True)
        else:
            table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row), style="bold" if row[0] == "*" else None)
    screen.show(table, console)
    console.print()


def _console(terminal: Terminal, notices: Sequence[str]) -> Console:
    """Show notices; what comes next goes to stdout."""
    for notice in notices:
        terminal.say(notice)
    return terminal.console(sys.stdout)


def _print(data: Mapping[str, Any]) -> None:
    print(json.dumps({"schema": SCHEMA, **data}, ensure_ascii=False))
