"""`lade profiles` and `lade profiles show`: tables for people, JSON objects for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import profiles
from ..decoder.config import SOURCES, LookaheadConfig
from ..profiles import Choice, Profile, user
from ..profiles.schema import VALUES, Setting
from ..session import setup as decode_setup
from ..specs.memory import ModelSpec, told
from ..view import screen
from ..view.screen import Column, Table
from ..view.terminal import Terminal
from ..visualize import printable
from .planner import known_model

if TYPE_CHECKING:
    from rich.console import Console

    from ..options import ListRequest, ProfileRequest

SCHEMA = 2
"""Version of the JSON objects."""
WIDTHS, CONTEXT = (16, 32, 64), 1024
"""Steps whose cost is shown, in tokens, and tokens of text before them."""
SIZES = ("0.5b", "1.5b", "3b", "7b", "13b", "34b", "70b")
"""Well-known models for which settings are shown where no model is named."""


def run_list(request: ListRequest) -> int:
    """List all profiles; returns the exit code, 0."""
    terminal = Terminal(request.color)
    with terminal.progress("looking at this machine"):
        from ..specs.device import detect

        device = detect(request.device)
        own, notices = user.read_all()
    usual = profiles.usual(device, own)
    name = usual.name if usual else None
    rows = []
    for profile in sorted(profiles.every(own).values(), key=lambda profile: profile.name):
        tuned, hardware = profile.tuned, profile.hardware
        here = tuned.device == user.key_of(device) and not user.changed(tuned) if tuned else None
        rows.append(
            _identity(profile)
            | {
                "shadows_shipped": profile.place != "shipped"
                and profile.name in profiles.shipped(),
                "this_machine": profile.name == name if here is None else here,
                "hardware": hardware.model_dump() if hardware else None,
            }
        )
    if request.json:
        described = {"kind": device.kind, "label": device.label, "memory_bytes": device.memory}
        return _print(device=described, profile=name, profiles=rows, notices=notices)
    console = _console(terminal, notices)
    table = []
    for row in rows:
        speeds = [screen.NONE, screen.NONE]
        if found := row["hardware"]:
            fastest = profiles.tera(max(found["rates"].values()))
            speeds = [f"{found['bandwidth'] / 1e9:.0f}", fastest]
        place = f"{row['from']}{', before the shipped one' if row['shadows_shipped'] else ''}"
        mark = "* " if row["this_machine"] else "  "
        table.append((mark + row["name"], row["description"], *speeds, place))
    _show_table(console, "Hardware profiles", "profile for GB/s> TFLOP/s> from", table)
    used = f"{name} is for this machine: {user.key_of(device)}" if name else None
    screen.line(console, f"* {printable(used or profiles.unknown(device))}")
    if any(row["from"] == "tuned" and row["this_machine"] for row in rows):
        screen.line(console, "* tuned: for the model that it was tuned on")
    return 0


def run_show(request: ProfileRequest) -> int:
    """Show one profile, or its settings for one model; returns the exit code, 0.

    Raises:
        UsageError: there is no such profile or device.
        LoadError, UnsupportedModelError: the model's configuration cannot be read or decoded.
    """
    terminal = Terminal(request.color)
    profile, choice, notices = _find(request, terminal)
    if request.json:
        by_size = _choices(profile) if choice is None else ()
        settings = [{"model": request.model, **_settings(choice)}] if choice else []
        settings += [
            {"model": size, "parameters": spec.parameters, "weights": spec.weights}
            | _settings(each)
            for size, spec, each in by_size
        ]
        found = {**_identity(profile), **profile.as_file()}
        return _print(**found, settings=settings, notices=list(notices))
    console = _console(terminal, notices)
    screen.line(console, printable(f"{profile.name}: {profile.description}"), "bold")
    for name, fact in _facts(profile):
        screen.line(console, printable(f"{name:<12} {fact}"))
    console.print()
    if choice:
        _show_table(console, f"for {request.model}", "setting value origin", _by_value(choice))
    else:
        columns = f"model weights W> N> G> budget> sources {'> '.join(map(str, WIDTHS))}> origin"
        _show_table(console, "settings by the size of a model", columns, _by_size(profile))
    what = "step_cost" if choice else ", ".join(map(str, WIDTHS))
    costs = f"cost of a step of N tokens after {CONTEXT} tokens of text, in plain steps"
    screen.line(console, f"{what}: {costs}")
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

        choice, notices = None, list[str]()
        if request.model is None:
            device, compute = detect(request.device), "bfloat16"
            own, notices = user.read_all()
            if usual := profiles.usual(device, own):
                return usual, None, notices
            notices.append(profiles.unknown(device))
        else:
            from .. import models

            planned = models.plan(request.model, request)
            device, compute = planned.device, planned.spec.compute
            choice = decode_setup.choice_for(request, device, planned.part)
            if choice.profile != profiles.MEASURED:
                return profiles.read(choice.profile), choice, choice.notices
        # The figures are remembered: nothing is measured twice.
        profile = profiles.measured(measure_rates(device, compute), compute)
        return profile, choice, choice.notices if choice else notices


def _identity(profile: Profile) -> dict[str, Any]:
    own = profile.place in ("yours", "tuned")
    return {
        "name": profile.name,
        "description": profile.description,
        "from": profile.place,
        "path": str(user.path_of(profile.name)) if own else None,
    }


def _settings(choice: Choice) -> dict[str, Any]:
    """The settings for a model, as JSON has them."""
    paper = {key: getattr(choice.paper, key) for key in ("window", "ngram", "guesses")}
    return {
        **asdict(choice.lookahead),
        "origins": dict(choice.origins),
        "paper": {**paper, "origin": choice.paper_origin},
    }


def _choices(profile: Profile) -> Iterator[tuple[str, ModelSpec, Choice]]:
    """The settings of a profile for models of the usual sizes."""
    for size, spec in specs_for(profile):
        yield size, spec, profiles.choose(profile, spec)


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """The facts that stand above the settings, each with its name."""
    path = _identity(profile)["path"]
    yield "from", f"{profile.place}: {path}" if path else profile.place
    if profile.devices:
        yield "devices", f"{', '.join(profile.devices)} in the name that the driver reports"
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


def _by_size(profile: Profile) -> Iterator[tuple[str, ...]]:
    """Explicit settings, then derived ones by usual sizes."""
    rows = [
        (_up_to(each, "any"), " ".join(each.weights) or "any", each.lookahead, each.origin)
        for each in profile.settings
    ]
    if profile.hardware:
        rows += [
            (size, spec.weights, choice.lookahead, choice.origin)
            for size, spec, choice in _choices(profile)
            if profile.setting(spec) is None
        ]
    for size, weights, lookahead, origin in rows:
        numbers = (lookahead.window, lookahead.ngram, lookahead.guesses, lookahead.step_limit)
        everything = len(lookahead.sources) == len(SOURCES)
        sources = "all" if everything else " ".join(lookahead.sources)
        yield (size, weights, *map(str, numbers), sources, *_costs(lookahead), origin)


def _by_value(choice: Choice) -> Iterator[tuple[str, ...]]:
    """The settings for one model, a value in each row."""
    lookahead = choice.lookahead
    pairs = zip(WIDTHS, _costs(lookahead), strict=True)
    costs = [f"{width}: {cost}" for width, cost in pairs]
    values = asdict(lookahead) | {"budget": lookahead.step_limit, "step_cost": costs}
    for name in VALUES:
        value = values[name]
        text = str(value) if isinstance(value, int) else ", ".join(map(str, value)) or "any"
        yield name, text, choice.origins[name]
    yield "the paper's", _wng(choice.paper), choice.paper_origin


def _costs(lookahead: LookaheadConfig) -> list[str]:
    if lookahead.step_cost.widths == (1,):
        return [screen.NONE] * len(WIDTHS)
    return [f"{lookahead.step_cost.at(width, CONTEXT):.2f}" for width in WIDTHS]


def _wng(lookahead: LookaheadConfig) -> str:
    return f"W={lookahead.window} N={lookahead.ngram} G={lookahead.guesses}"


def _up_to(setting: Setting, all_others: str) -> str:
    size = setting.up_to_parameters
    return all_others if size == math.inf else f"up to {user.short(size)}"


def _show_table(console: Console, title: str, heads: str, rows: Iterable[Sequence[str]]) -> None:
    """A table with these columns (> for numbers); a long origin, the last cell, is a footnote."""
    notes: dict[str, str] = {}
    cells = []
    for *first, origin in rows:
        if ":" in origin:
            origin = notes.setdefault(origin, chr(ord("a") + len(notes) % 26))
        cells.append(tuple(map(printable, (*first, origin))))
    columns = tuple(Column(head.rstrip(">"), head.endswith(">")) for head in heads.split())
    footnotes = tuple(printable(f"{letter}  {origin}") for origin, letter in notes.items())
    screen.print_table(Table(title, columns, tuple(cells), footnotes), console)
    console.print()


def _console(terminal: Terminal, notices: Sequence[str]) -> Console:
    """Show notices; what comes next goes to stdout."""
    for notice in notices:
        terminal.say(notice)
    return terminal.console(sys.stdout)


def _print(**data: Any) -> int:
    """Print a JSON object; returns the exit code, 0."""
    print(json.dumps({"schema": SCHEMA, **data}, ensure_ascii=False))
    return 0
