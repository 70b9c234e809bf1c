"""`lade profiles` and `lade profiles show`: tables for people, JSON objects for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import profiles
from ..decoder.config import LookaheadConfig
from ..profiles import Choice, Profile, user
from ..profiles.schema import VALUES
from ..session import setup as decode_setup
from ..specs import device as machine
from ..specs.memory import ModelSpec, format_bytes, smaller_forms
from ..view import screen
from ..view.screen import Column, Table
from ..view.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import Console

    from ..options.commands import ListRequest, ProfileRequest

SCHEMA = 3
"""Version of the JSON objects."""
WIDTHS, CONTEXT = (16, 32, 64), 1024
"""Steps whose cost is shown, in tokens, and tokens of text before them."""
USUAL = "llama-2-7b"
"""The model whose settings are shown when no model is named."""


def run_list(request: ListRequest) -> int:
    """List all profiles; returns the exit code, 0."""
    terminal = Terminal(request.color)
    with terminal.progress("looking at this machine"):
        device = machine.detect(request.device)
        own, notices = user.read_all()
    usual = profiles.usual(device, own)
    name = usual.name if usual else None
    rows = []
    for profile in sorted(profiles.every(own).values(), key=lambda profile: profile.name):
        tuned, hardware = profile.tuned, profile.hardware
        here = tuned.device == user.key_of(device) if tuned else profile.name == name
        rows.append(
            _identity(profile)
            | {
                "shadows_shipped": profile.place != "shipped"
                and profile.name in profiles.shipped(),
                "this_machine": here,
                "hardware": hardware.model_dump() if hardware else None,
            }
        )
    if request.json:
        described = {"kind": device.kind, "label": device.label, "memory_bytes": device.memory}
        return _print(device=described, profile=name, profiles=rows, notices=notices)
    terminal.say(*notices)
    console = terminal.console(sys.stdout)
    cells = []
    for row in rows:
        speeds = [screen.NONE, screen.NONE]
        if found := row["hardware"]:
            speeds = [
                f"{found['bandwidth'] / 1e9:.0f}",
                profiles.tera(max(found["rates"].values())),
            ]
        place = f"{row['from']}{', before the shipped one' if row['shadows_shipped'] else ''}"
        mark = "* " if row["this_machine"] else "  "
        cells.append((mark + row["name"], row["description"], *speeds, place))
    heads = ("profile", "for", "GB/s", "TFLOP/s", "from")
    columns = tuple(Column(head, number=head in ("GB/s", "TFLOP/s")) for head in heads)
    screen.print_table(Table("Hardware profiles", columns, tuple(cells)), console)
    console.print()
    used = f"{name} is for this machine: {user.key_of(device)}" if name else None
    screen.line(console, f"* {used or profiles.unknown(device)}")
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
    profile, choice, model, notices = _find(request, terminal)
    if request.json:
        found = {**_identity(profile), **profile.as_file()}
        settings = [{"model": model, **_settings(choice)}]
        return _print(**found, settings=settings, notices=list(notices))
    terminal.say(*notices)
    console = terminal.console(sys.stdout)
    screen.line(console, f"{profile.name}: {profile.description}", "bold")
    _print_pairs(_facts(profile), console)
    screen.line(console, f"\nfor {model}", "bold")
    for origin, values in _by_origin(choice).items():
        screen.line(console, origin)
        _print_pairs(values, console)
    return 0


def _print_pairs(pairs: Iterable[tuple[str, str]], console: Console) -> None:
    for name, text in pairs:
        screen.line(console, f"  {name:<12} {text}")


def _find(
    request: ProfileRequest, terminal: Terminal
) -> tuple[Profile, Choice, str, Sequence[str]]:
    """The profile to show, its settings for a model, the model's name, and notices."""
    with terminal.progress(f"looking at {request.model or 'this machine'}"):
        if request.model is not None:
            from .. import models
            from ..options.model import PlacementOptions

            place = PlacementOptions(device=request.device)
            planned = models.plan(request.model, request, place)
            choice = decode_setup.choose_profile(
                request.profile, request, planned.device, planned.part
            )
            if choice.profile == profiles.MEASURED:
                profile = _measured(planned.device, planned.spec.compute)
            else:
                profile = profiles.read(choice.profile)
            return profile, choice, request.model, choice.notices
        notices: list[str] = []
        if request.profile is not None:
            profile = profiles.read(request.profile)
        else:
            device = machine.detect(request.device)
            own, notices = user.read_all()
            usual = profiles.usual(device, own)
            profile = usual or _measured(device, "bfloat16")
            notices += [] if usual else [profiles.unknown(device)]
        dtype = profile.hardware.half if profile.hardware else "float32"
        spec = _usual_spec(dtype, request.quantize)
        return profile, profiles.choose(profile, spec), f"{USUAL} in {spec.weights}", notices


def _usual_spec(dtype: str, quantize: str) -> ModelSpec:
    """Return the shape of the usual model."""
    parameters = 6.74e9
    weight_bytes = parameters * (4 if dtype == "float32" else 2)
    layers, hidden, inner, heads, vocabulary = 32, 4096, 11008, 32, 32000
    numbers = (layers, hidden, inner, heads, heads, hidden // heads, vocabulary)
    spec = ModelSpec(parameters, parameters, dtype, weight_bytes, dtype, *numbers)
    return dict(smaller_forms(spec, "cuda")).get(f"--quantize {quantize}", spec)


def _measured(device: machine.Device, compute: str) -> Profile:
    """A profile of a device by its measured rates, which are remembered."""
    return profiles.profile_of(machine.measure_rates(device, compute), compute)


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


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """The facts that stand above the settings, each with its name."""
    path = _identity(profile)["path"]
    yield "from", f"{profile.place}: {path}" if path else profile.place
    if profile.devices:
        yield "devices", f"{', '.join(profile.devices)} in the name that the driver reports"
    if profile.memory:
        yield "memory", f"about {' or '.join(map(format_bytes, profile.memory))}"
    if hardware := profile.hardware:
        yield "bandwidth", f"{hardware.bandwidth / 1e9:.0f} GB/s"
        rates = (f"{kind} {profiles.tera(rate)}" for kind, rate in hardware.rates.items())
        yield "arithmetic", f"{', '.join(rates)} TFLOP/s"
        yield "source", hardware.source
    if tuned := profile.tuned:
        size = f"{user.short(tuned.parameters)} parameters, {tuned.weights}"
        yield "tuned on", f"{tuned.device}; {size}; attention {tuned.attention}"
        yield "tuned with", f"{tuned.packages}; {tuned.date}"
    for kind, settings in (("settings", profile.settings), ("the paper's", profile.papers)):
        for each in settings:
            most = each.up_to_parameters
            size = "any size" if most == math.inf else f"up to {user.short(most)}"
            form = f" in {' or '.join(each.weights)}" if each.weights else ""
            show = _wng if kind == "the paper's" else profiles.summarise
            yield kind, f"{size}{form}: {show(each.lookahead)}, {each.origin}"


def _by_origin(choice: Choice) -> dict[str, list[tuple[str, str]]]:
    """The settings for one model, name and value, by the origin that they share."""
    lookahead = choice.lookahead
    costs = [f"{width}: {lookahead.step_cost.at(width, CONTEXT):.2f}" for width in WIDTHS]
    cost = f"{', '.join(costs)} plain steps for so many tokens, after {CONTEXT} of text"
    if lookahead.step_cost.widths == (1,):
        cost = screen.NONE
    values = asdict(lookahead) | {"budget": lookahead.step_limit, "step_cost": cost}
    found: dict[str, list[tuple[str, str]]] = {}
    window = "trajectory" in lookahead.sources
    for name in VALUES:
        if name in ("window", "ngram", "guesses") and not window:
            continue  # none runs
        value = values[name]
        text = ", ".join(map(str, value)) or "any" if isinstance(value, tuple) else str(value)
        found.setdefault(choice.origins[name], []).append((name, text))
    found.setdefault(choice.paper_origin, []).append(("the paper's", _wng(choice.paper)))
    return found


def _wng(lookahead: LookaheadConfig) -> str:
    return f"W={lookahead.window} N={lookahead.ngram} G={lookahead.guesses}"


def _print(**data: Any) -> int:
    """Print a JSON object; returns the exit code, 0."""
    print(json.dumps({"schema": SCHEMA, **data}, ensure_ascii=False))
    return 0
