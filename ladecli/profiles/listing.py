"""`lade profiles` and `lade profiles show`: tables for people, JSON objects for programs."""

from __future__ import annotations

import json as jsons
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table
from rich.text import Text

from .. import launch, profiles, screen
from ..decoder.config import SOURCES, LookaheadConfig
from ..memory import smaller_forms, told
from ..shape import ModelShape
from ..terminal import Terminal
from ..visualize import printable
from . import Choice, Profile, user
from .recognise import TOLERANCE, NamedDevice
from .schema import VALUES

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..options import ListRequest, ProfileRequest

SCHEMA = 1
"""Version of the JSON objects."""
WIDTHS = (16, 32, 64)
"""Steps whose cost is shown, in tokens."""
CONTEXT = 1024
"""Tokens of text before those steps."""
_COSTS = f"cost of a step of N tokens after {CONTEXT} tokens of text, in plain steps"
_KINDS = {
    "cpu": "any processor",
    "apple": "any Apple GPU",
    "gpu": "any other GPU, if it cannot be measured; or --profile gpu",
}
"""How the profiles without names of devices are found."""
SIZES = {
    # parameters, layers, hidden, inner, heads, heads of keys and values, vocabulary
    "0.5B": (494e6, 24, 896, 4864, 14, 2, 151936),  # Qwen2.5
    "1.5B": (1.54e9, 28, 1536, 8960, 12, 2, 151936),  # Qwen2.5
    "3B": (3.21e9, 28, 3072, 8192, 24, 8, 128256),  # Llama 3.2
    "7B": (6.74e9, 32, 4096, 11008, 32, 32, 32000),  # Llama 2
    "13B": (13.0e9, 40, 5120, 13824, 40, 40, 32000),  # Llama 2
    "34B": (33.7e9, 48, 8192, 22016, 64, 8, 32000),  # Code Llama
    "70B": (69.0e9, 80, 8192, 28672, 64, 8, 32000),  # Llama 2
}
"""Real models of the usual sizes, to show settings before there is a model."""


class _Row(NamedTuple):
    """A profile in the list, and whether this machine uses it."""

    profile: Profile
    replaces_shipped: bool
    here: bool


def run_list(request: ListRequest) -> int:
    """List all profiles; returns the exit code, 0.

    Raises:
        UsageError: an option is out of range, or there is no such device.
    """
    request.check()
    terminal = Terminal(request.color)
    device, own, notices = _machine(terminal, request.device)
    usual = profiles.usual(device, own)
    rows = _rows(device, usual, own)
    if request.json:
        _print(_list_object(device, usual, rows, notices))
    else:
        _show(terminal, _list_parts(device, usual, rows), notices)
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
        _print(_show_object(profile, request.model, choice, notices))
    else:
        _show(terminal, _show_parts(profile, request.model, choice), notices)
    return 0


def shapes_for(profile: Profile) -> Iterator[tuple[str, ModelShape]]:
    """Models with the names of their sizes, each in 16, 8 and 4 bits.

    Args:
        profile: a device without units for bfloat16 is shown float16.
    """
    rates = dict(profile.hardware.rates) if profile.hardware else {}
    full = "float16" if "float16" in rates and "bfloat16" not in rates else "bfloat16"
    for name, (size, layers, hidden, inner, heads, kv_heads, vocabulary) in SIZES.items():
        numbers = (layers, hidden, inner, heads, kv_heads, hidden // heads, vocabulary)
        shape = ModelShape(size, size, full, 2 * size, full, *numbers)
        yield name, shape
        for _, smaller in smaller_forms(shape):
            yield name, smaller


def _machine(terminal: Terminal, wanted: str) -> tuple[NamedDevice, list[Profile], list[str]]:
    """The device, the user's profiles, and a notice about each broken file."""
    with terminal.progress("looking at this machine"):
        from ..device import detect

        return detect(wanted), *user.read_all()


def _usual(terminal: Terminal, wanted: str) -> tuple[Profile, list[str]]:
    """The profile of a device, measured if none knows it, and notices."""
    device, own, notices = _machine(terminal, wanted)
    usual = profiles.usual(device, own)
    if usual is not None:
        return usual, notices
    with terminal.progress(f"measuring {device.label}"):
        from ..device import detect
        from ..rates import measure_rates

        rates = measure_rates(detect(wanted), "bfloat16")
    return profiles.measured(rates, "bfloat16"), [*notices, _used(device, None)]


def _chosen(request: ProfileRequest, model: str, terminal: Terminal) -> tuple[Profile, Choice]:
    """The settings for a model, and their profile."""
    with terminal.progress(f"looking at {model}"):
        from .. import models
        from ..rates import measure_rates

        planned = models.plan(model, request.load_options())
        choice = launch.choice_for(request, planned.device, planned.part)
        if choice.profile != profiles.MEASURED:
            return profiles.read(choice.profile), choice
        # They were measured a moment ago, and are remembered.
        rates = measure_rates(planned.device, planned.shape.compute)
        return profiles.measured(rates, planned.shape.compute), choice


def _rows(device: NamedDevice, usual: Profile | None, own: list[Profile]) -> list[_Row]:
    """All valid profiles, by name."""
    shipped = profiles.shipped_names()
    names = {profile.name for profile in own}
    versions = user.versions_here()

    def here(profile: Profile) -> bool:
        if profile.tuned is None:
            return usual is not None and profile.name == usual.name
        same = profile.tuned.device == user.key_of(device)
        return same and not user.changed(profile, versions)

    found = [*own, *(profiles.shipped(name) for name in shipped if name not in names)]
    return [
        _Row(profile, profile.place != "shipped" and profile.name in shipped, here(profile))
        for profile in sorted(found, key=lambda profile: profile.name)
    ]


def _used(device: NamedDevice, usual: Profile | None) -> str:
    """Which profile a machine uses, in words."""
    if usual is not None:
        return f"{usual.name} is for this machine: {user.key_of(device)}"
    return (
        f"no profile knows {device.label}: settings come from a quick measurement;"
        " lade tune finds better ones"
    )


def _list_parts(
    device: NamedDevice, usual: Profile | None, rows: Sequence[_Row]
) -> Iterator[RenderableType]:
    """The list of profiles; a star marks what this machine uses."""
    table = _table("", "profile", "for", "GB/s", "TFLOP/s", "from", right=("GB/s", "TFLOP/s"))
    for profile, replaces_shipped, here in rows:
        hardware = profile.hardware
        table.add_row(
            "*" if here else "",
            printable(profile.name),
            printable(profile.description),
            f"{hardware.bandwidth / 1e9:.0f}" if hardware else "-",
            profiles.tera(max(hardware.rates.values())) if hardware else "-",
            f"{profile.place}, before the shipped one" if replaces_shipped else profile.place,
            style="bold" if here else None,
        )
    yield table
    yield ""
    yield f"* {printable(_used(device, usual))}"
    if any(row.here and row.profile.tuned for row in rows):
        yield "* tuned: for the model that it was tuned on"


def _show_parts(
    profile: Profile, model: str | None, choice: Choice | None
) -> Iterator[RenderableType]:
    """All of a profile, with its settings by size, or what was chosen for a model."""
    yield Text(f"{printable(profile.name)}: {printable(profile.description)}", style="bold")
    yield ""
    facts = _table()
    facts.add_column(style="cyan")
    facts.add_column(overflow="fold")
    for fact in _facts(profile):
        facts.add_row(*map(printable, fact))
    yield facts
    yield ""
    letters: dict[str, str] = {}
    if choice is not None:
        yield Text(f"for {printable(model or '')}", style="bold")
        yield _values(choice, letters)
    else:
        yield _by_size(profile, letters)
    yield ""
    yield from (f"{letter}  {printable(origin)}" for origin, letter in letters.items())
    yield f"{'step_cost' if choice else ', '.join(map(str, WIDTHS))}: {_COSTS}"


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """The facts that stand above the settings, each with its name."""
    place = "measured a moment ago" if profile.place == "measured" else profile.place
    path = _path(profile)
    yield "from", f"{place}: {path}" if path else place
    yield "recognised", _recognised(profile)
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
    table = _table("setting", "value", "origin")
    for name in VALUES:
        origin = _letter(choice.origins[name], letters)
        table.add_row(name, _value(choice.lookahead, name), origin)
    table.add_row("the paper's", _wng(choice.paper), _letter(choice.paper_origin, letters))
    return table


def _value(lookahead: LookaheadConfig, name: str) -> str:
    if name == "step_cost":
        return ", ".join(f"{w}: {c}" for w, c in zip(WIDTHS, _costs(lookahead), strict=True))
    value = lookahead.step_limit if name == "budget" else getattr(lookahead, name)
    return ", ".join(map(str, value)) or "any" if isinstance(value, tuple) else str(value)


def _by_size(profile: Profile, letters: dict[str, str]) -> Table:
    """Explicit settings, then derived ones for models of the usual sizes."""
    numbers = ("W", "N", "G", "budget", *map(str, WIDTHS))
    titles = ("model", "weights", *numbers[:4], "sources", *numbers[4:], "origin")
    table = _table(*titles, right=numbers)

    def add(
        model: str, weights: str, lookahead: LookaheadConfig, origins: Mapping[str, str]
    ) -> None:
        table.add_row(
            *(model, weights, str(lookahead.window), str(lookahead.ngram), str(lookahead.guesses)),
            str(lookahead.step_limit),
            "all" if len(lookahead.sources) == len(SOURCES) else " ".join(lookahead.sources),
            *_costs(lookahead),
            _letters(origins, letters),
        )

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
        if title in right:
            table.add_column(title, justify="right", no_wrap=True)
        else:
            table.add_column(title, overflow="fold")
    return table


def _list_object(
    device: NamedDevice, usual: Profile | None, rows: Sequence[_Row], notices: list[str]
) -> dict[str, Any]:
    """What `lade profiles --json` prints."""
    return {
        "schema": SCHEMA,
        "device": {"kind": device.kind, "label": device.label, "memory_bytes": device.memory},
        "profile": usual.name if usual else None,
        "profiles": [
            {
                **_identity(profile),
                "shadows_shipped": replaces_shipped,
                "this_machine": here,
                "hardware": profile.hardware.model_dump() if profile.hardware else None,
            }
            for profile, replaces_shipped, here in rows
        ],
        "notices": notices,
    }


def _show_object(
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
        "hardware": profile.hardware.model_dump() if profile.hardware else None,
        "tuned": asdict(profile.tuned) if profile.tuned else None,
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


def _path(profile: Profile) -> str | None:
    own = profile.place in ("yours", "tuned")
    return str(user.path_of(profile.name)) if own else None


def _limit(parameters: float) -> float | None:
    return None if parameters == math.inf else parameters


def _show(terminal: Terminal, parts: Iterable[RenderableType], notices: list[str]) -> None:
    for notice in notices:
        terminal.say(notice)
    console = terminal.console(sys.stdout)
    for part in parts:
        screen.show(part, console)


def _print(data: dict[str, Any]) -> None:
    print(jsons.dumps(data, ensure_ascii=False))
