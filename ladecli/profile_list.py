"""`lade profiles` and `lade profiles show`: tables for people, JSON objects for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from . import decode_setup, profiles, screen
from .decoder.config import SOURCES, LookaheadConfig
from .memory import ModelSpec, told
from .planner.cluster import known_model
from .profiles import Choice, Profile, user
from .profiles.recognise import TOLERANCE
from .profiles.schema import VALUES
from .terminal import Terminal
from .visualize import printable

if TYPE_CHECKING:
    from rich.console import Console

    from .device import Device
    from .options import ListRequest, ProfileRequest

SCHEMA = 1
"""Version of the JSON objects."""
WIDTHS = (16, 32, 64)
"""Steps whose cost is shown, in tokens."""
CONTEXT = 1024
"""Tokens of text before those steps."""
SIZES = ("0.5b", "1.5b", "3b", "7b", "13b", "34b", "70b")
"""Well-known models for which settings are shown where no model is named."""
_KINDS = {
    "cpu": "any processor",
    "apple": "any Apple GPU",
    "gpu": "any other GPU, if it cannot be measured; or --profile gpu",
}
"""How the profiles without names of devices are found."""


def run_list(request: ListRequest) -> int:
    """List all profiles; returns the exit code, 0.

    Raises:
        UsageError: an option is out of range, or there is no such device.
    """
    request.check()
    terminal = Terminal(request.color)
    device, own, notices = _machine(terminal, request.device)
    usual = profiles.usual(device, own)
    found = profiles.every(own)
    rows = [(found[name], _is_here(found[name], device, usual)) for name in sorted(found)]
    if not request.json:
        console = _console(terminal, notices)
        _show_list(console, device, usual, rows)
        return 0
    described = {"kind": device.kind, "label": device.label, "memory_bytes": device.memory}
    _print(
        {
            "schema": SCHEMA,
            "device": described,
            "profile": usual.name if usual else None,
            "profiles": [
                {
                    **_identity(profile),
                    "shadows_shipped": _shadows(profile),
                    "this_machine": here,
                    "hardware": _hardware(profile),
                }
                for profile, here in rows
            ],
            "notices": notices,
        }
    )
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
    choice = None
    if request.model is not None:
        profile, choice = _chosen(request, request.model, terminal)
        notices = list(choice.notices)
    elif request.profile is not None:
        profile, notices = profiles.read(request.profile), []
    else:
        profile, notices = _usual(terminal, request.device)
    if request.json:
        _print(_as_object(profile, request.model, choice, notices))
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
        from .device import measure_rates

        rates = measure_rates(device, "bfloat16")
    return profiles.measured(rates, "bfloat16"), [*notices, _used(device, None)]


def _chosen(request: ProfileRequest, model: str, terminal: Terminal) -> tuple[Profile, Choice]:
    """The settings for a model, and their profile."""
    with terminal.progress(f"looking at {model}"):
        from . import models
        from .device import measure_rates

        planned = models.plan(model, request.load_options())
        choice = decode_setup.choice_for(request, planned.device, planned.part)
        if choice.profile != profiles.MEASURED:
            return profiles.read(choice.profile), choice
        # They were measured a moment ago, and are remembered.
        rates = measure_rates(planned.device, planned.spec.compute)
        return profiles.measured(rates, planned.spec.compute), choice


def _is_here(profile: Profile, device: Device, usual: Profile | None) -> bool:
    """Whether this machine uses a profile: the usual one, or one that is tuned for some model."""
    if profile.tuned is None:
        return usual is not None and profile.name == usual.name
    return profile.tuned.device == user.key_of(device) and not user.changed(profile)


def _shadows(profile: Profile) -> bool:
    return profile.place != "shipped" and profile.name in profiles.shipped_names()


def _used(device: Device, usual: Profile | None) -> str:
    """Which profile a machine uses, in words."""
    if usual is not None:
        return f"{usual.name} is for this machine: {user.key_of(device)}"
    return profiles.unknown(device)


def _show_list(
    console: Console, device: Device, usual: Profile | None, rows: list[tuple[Profile, bool]]
) -> None:
    """The list of profiles; a star marks what this machine uses."""
    table = _table("", "profile", "for", "GB/s", "TFLOP/s", "from", right=("GB/s", "TFLOP/s"))
    for profile, here in rows:
        hardware = profile.hardware
        table.add_row(
            "*" if here else "",
            printable(profile.name),
            printable(profile.description),
            f"{hardware.bandwidth / 1e9:.0f}" if hardware else "-",
            profiles.tera(max(hardware.by_type.values())) if hardware else "-",
            f"{profile.place}, before the shipped one" if _shadows(profile) else profile.place,
            style="bold" if here else None,
        )
    screen.show(table, console)
    console.print()
    screen.line(console, f"* {printable(_used(device, usual))}")
    if any(here and profile.tuned for profile, here in rows):
        screen.line(console, "* tuned: for the model that it was tuned on")


def _show_profile(
    console: Console, profile: Profile, model: str | None, choice: Choice | None
) -> None:
    """All of a profile, with its settings by size, or what was chosen for a model."""
    screen.line(console, printable(f"{profile.name}: {profile.description}"), "bold")
    console.print()
    facts = _table()
    facts.add_column(style="cyan")
    facts.add_column(overflow="fold")
    for fact in _facts(profile):
        facts.add_row(*map(printable, fact))
    screen.show(facts, console)
    console.print()
    letters: dict[str, str] = {}
    if choice is not None:
        screen.line(console, printable(f"for {model}"), "bold")
    table = _by_size(profile, letters) if choice is None else _values(choice, letters)
    screen.show(table, console)
    console.print()
    for origin, letter in letters.items():
        screen.line(console, printable(f"{letter}  {origin}"))
    costs = f"cost of a step of N tokens after {CONTEXT} tokens of text, in plain steps"
    columns = "step_cost" if choice else ", ".join(map(str, WIDTHS))
    screen.line(console, f"{columns}: {costs}")


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """The facts that stand above the settings, each with its name."""
    place = "measured a moment ago" if profile.place == "measured" else profile.place
    path = _path(profile)
    yield "from", f"{place}: {path}" if path else place
    yield "recognised", _recognised(profile)
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
    for number, paper in enumerate(profile.papers):
        size = _up_to(paper.up_to_parameters, "larger" if number else "any size")
        yield "the paper's", f"{size}: {_wng(paper.lookahead)}, published: {paper.source}"


def _recognised(profile: Profile) -> str:
    """How a profile is found, in words."""
    if profile.place == "measured":
        return "no profile knows this GPU"
    if profile.tuned is not None:
        return "by all that it was tuned on"
    if profile.name in _KINDS:
        return _KINDS[profile.name]
    if not profile.devices:
        return "only by its name: --profile"
    text = f"by {' or '.join(map(repr, profile.devices))} in a GPU's name"
    if profile.not_devices:
        text += f", without {' or '.join(map(repr, profile.not_devices))}"
    if profile.memory:
        text += f"; memory within {TOLERANCE:.0%} of {' or '.join(map(told, profile.memory))}"
    return text


def _values(choice: Choice, letters: dict[str, str]) -> Table:
    """Every value that was chosen for a model, with a letter for its origin."""
    found: dict[str, Any] = asdict(choice.lookahead)
    found["budget"] = choice.lookahead.step_limit
    costs = zip(WIDTHS, _costs(choice.lookahead), strict=True)
    found["step_cost"] = [f"{width}: {cost}" for width, cost in costs]
    table = _table("setting", "value", "origin")
    for name in VALUES:
        value = found[name]
        text = str(value) if isinstance(value, int) else ", ".join(map(str, value)) or "any"
        table.add_row(name, text, _letter(choice.origins[name], letters))
    table.add_row("the paper's", _wng(choice.paper), _letter(choice.paper_origin, letters))
    return table


def _by_size(profile: Profile, letters: dict[str, str]) -> Table:
    """Explicit settings, then derived ones for models of the usual sizes."""
    numbers = ("W", "N", "G", "budget", *map(str, WIDTHS))
    titles = ("model", "weights", *numbers[:4], "sources", *numbers[4:], "origin")
    table = _table(*titles, right=numbers)

    def add(
        model: str, weights: str, lookahead: LookaheadConfig, origins: Mapping[str, str]
    ) -> None:
        wng = (str(value) for value in (lookahead.window, lookahead.ngram, lookahead.guesses))
        sources = "all" if len(lookahead.sources) == len(SOURCES) else " ".join(lookahead.sources)
        budget, costs = str(lookahead.step_limit), _costs(lookahead)
        table.add_row(model, weights, *wng, budget, sources, *costs, _letters(origins, letters))

    for setting in profile.settings:
        size, weights = _up_to(setting.up_to_parameters, "any"), " ".join(setting.weights) or "any"
        add(size, weights, setting.lookahead, setting.origins)
    if profile.hardware is not None:  # or else the explicit settings are for every model
        for size, shape in shapes_for(profile):
            if profile.setting(shape) is None:
                choice = profiles.choose(profile, shape)
                add(size, shape.weights, choice.lookahead, choice.origins)
    return table


def _letters(origins: Mapping[str, str], letters: dict[str, str]) -> str:
    """Letters for origins: that of most values alone, others after the values' names."""
    most = max(origins.values(), key=list(origins.values()).count)
    others = [f"{name} {_letter(o, letters)}" for name, o in origins.items() if o != most]
    return ", ".join([_letter(most, letters), *others])


def _letter(origin: str, letters: dict[str, str]) -> str:
    """The letter of an origin: the next one, if it has none yet."""
    return letters.setdefault(origin, chr(ord("a") + len(letters) % 26))


def _costs(lookahead: LookaheadConfig) -> list[str]:
    if lookahead.step_cost.widths == (1,):
        return ["-"] * len(WIDTHS)
    return [f"{lookahead.step_cost.at(width, CONTEXT):.2f}" for width in WIDTHS]


def _wng(lookahead: LookaheadConfig) -> str:
    return f"W={lookahead.window} N={lookahead.ngram} G={lookahead.guesses}"


def _up_to(parameters: float, all_others: str) -> str:
    return all_others if parameters == math.inf else f"up to {user.short(parameters)}"


def _table(*titles: str, right: Iterable[str] = ()) -> Table:
    """A table without lines; columns of numbers stand right."""
    table = Table(box=None, show_header=bool(titles), pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        number = title in right
        table.add_column(title, justify="right" if number else "left", overflow="fold")
        table.columns[-1].no_wrap = number
    return table


def _as_object(
    profile: Profile, model: str | None, choice: Choice | None, notices: list[str]
) -> dict[str, Any]:
    """What `lade profiles show --json` prints: the profile, and the settings that follow."""
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
    return {
        "schema": SCHEMA,
        **_identity(profile),
        "devices": profile.devices,
        "not_devices": profile.not_devices,
        "memory_bytes": profile.memory,
        "hardware": _hardware(profile),
        "tuned": profile.tuned.model_dump() if profile.tuned else None,
        "paper": [
            {
                "up_to_parameters": _limit(paper.up_to_parameters),
                **paper.model_dump(include={"window", "ngram", "guesses"}),
                "origin": f"published: {paper.source}",
            }
            for paper in profile.papers
        ],
        "explicit": [
            {
                "up_to_parameters": _limit(setting.up_to_parameters),
                "weights": setting.weights or None,
                **asdict(setting.lookahead),
                "origins": setting.origins,
            }
            for setting in profile.settings
        ],
        "settings": settings,
        "notices": notices,
    }


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


def _limit(parameters: float) -> float | None:
    return None if parameters == math.inf else parameters


def _console(terminal: Terminal, notices: list[str]) -> Console:
    """Show notices; what comes next goes to stdout."""
    for notice in notices:
        terminal.say(notice)
    return terminal.console(sys.stdout)


def _print(data: dict[str, Any]) -> None:
    print(json.dumps(data, ensure_ascii=False))
