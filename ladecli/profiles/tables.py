"""Profiles as tables, for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from .. import profiles
from ..decoder.config import SOURCES
from ..memory import told
from ..visualize import printable
from . import Choice, Profile, user
from .listing import Entry, Machine
from .recognise import TOLERANCE
from .schema import VALUES
from .sizes import shapes_for

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..decoder.config import LookaheadConfig

WIDTHS = (16, 32, 64)
"""Steps whose cost is shown, in tokens."""
CONTEXT = 1024
"""Tokens of text before those steps."""
_WHAT_COSTS = (
    f"what a step of so many tokens costs, in plain steps, behind {CONTEXT} tokens of text"
)
_KINDS = {
    "cpu": "any processor",
    "apple": "any Apple GPU",
    "gpu": "any other GPU, if it cannot be measured; or --profile gpu",
}
"""How those are found that have no names of devices."""


def list_parts(machine: Machine, entries: Sequence[Entry]) -> Iterator[RenderableType]:
    """The list of profiles; a star marks what this machine uses."""
    table = _grid("", "profile", "for", "GB/s", "TFLOP/s", "from", right=("GB/s", "TFLOP/s"))
    for entry in entries:
        profile, hardware = entry.profile, entry.profile.hardware
        table.add_row(
            "*" if entry.here else "",
            printable(profile.name),
            printable(profile.description),
            f"{hardware.bandwidth / 1e9:.0f}" if hardware else "-",
            profiles.tera(max(hardware.rates.values())) if hardware else "-",
            f"{profile.place}, before the shipped one" if entry.shadows else profile.place,
            style="bold" if entry.here else None,
        )
    yield table
    yield ""
    yield f"* {printable(machine.told)}"
    if any(entry.here and entry.profile.tuned for entry in entries):
        yield "* tuned: for the model that it was tuned on"


def show_parts(
    profile: Profile, model: str | None, choice: Choice | None
) -> Iterator[RenderableType]:
    """All of a profile, with its settings by size, or what was chosen for a model.

    Args:
        profile: the profile.
        model: the name of the model that it was chosen for, if there is one.
        choice: what was chosen for that.
    """
    yield Text(f"{printable(profile.name)}: {printable(profile.description)}", style="bold")
    yield ""
    facts = _grid(None, None)
    for fact in _facts(profile):
        facts.add_row(*map(printable, fact))
    yield facts
    yield ""
    if choice is not None:
        yield Text(f"for {printable(model or '')}", style="bold")
        yield from _values(choice)
    else:
        yield from _by_size(profile)


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """What there is to say before any setting, each with its name."""
    where = {
        "shipped": "shipped",
        "measured": "measured a moment ago",
        "yours": f"yours: {user.path_of(profile.name)}",
        "tuned": f"tuned: {user.path_of(profile.name)}",
    }
    yield "from", where[profile.place]
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
        last = "larger" if number else "any size"
        size = _up_to(paper.up_to_parameters, last)
        values = f"W={paper.lookahead.window} N={paper.lookahead.ngram} G={paper.lookahead.guesses}"
        yield "the paper's", f"{size}: {values}, published: {paper.source}"


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
    said = f"by {' or '.join(map(repr, profile.devices))} in a GPU's name"
    if profile.not_devices:
        said += f", without {' or '.join(map(repr, profile.not_devices))}"
    if profile.memory:
        sizes = " or ".join(map(told, profile.memory))
        said += f"; memory within {TOLERANCE:.0%} of {sizes}"
    return said


def _values(choice: Choice) -> Iterator[RenderableType]:
    """Every value that was chosen for a model, with letters for their origins and a legend."""
    table = _grid("setting", "value", "origin")
    letters: dict[str, str] = {}
    for name in VALUES:
        origin = choice.origins[name]
        table.add_row(name, _told(choice.lookahead, name), _letter(origin, letters))
    paper = choice.paper
    values = f"W={paper.window} N={paper.ngram} G={paper.guesses}"
    table.add_row("the paper's", values, _letter(choice.paper_origin, letters))
    yield table
    yield ""
    yield from _legend(letters)
    yield f"step_cost: {_WHAT_COSTS}"


def _told(lookahead: LookaheadConfig, name: str) -> str:
    if name == "step_cost":
        return ", ".join(f"{w}: {c}" for w, c in zip(WIDTHS, _costs(lookahead), strict=True))
    if name == "budget":
        return str(lookahead.step_limit)
    value = getattr(lookahead, name)
    return ", ".join(map(str, value)) or "any" if isinstance(value, tuple) else str(value)


def _by_size(profile: Profile) -> Iterator[RenderableType]:
    """Settings in a table, with letters for their origins and a legend."""
    titles = ("model", "weights", "W", "N", "G", "budget", "sources", *(f"{w}" for w in WIDTHS))
    table = _grid(*titles, "origin", right=("W", "N", "G", "budget", *map(str, WIDTHS)))
    letters: dict[str, str] = {}
    for model, weights, lookahead, origins in _rows(profile):
        table.add_row(
            model,
            weights,
            *(str(getattr(lookahead, key)) for key in ("window", "ngram", "guesses")),
            str(lookahead.step_limit),
            "all" if len(lookahead.sources) == len(SOURCES) else " ".join(lookahead.sources),
            *_costs(lookahead),
            _lettered(origins, letters),
        )
    yield table
    yield ""
    yield from _legend(letters)
    yield f"{', '.join(map(str, WIDTHS))}: {_WHAT_COSTS}"


def _rows(
    profile: Profile,
) -> Iterator[tuple[str, str, LookaheadConfig, dict[str, str]]]:
    """Model, weights, settings and origins: explicit ones, then those for the usual sizes."""
    for setting in profile.settings:
        weights = " ".join(setting.weights) or "any"
        size = _up_to(setting.up_to_parameters, "any")
        yield size, weights, setting.lookahead, profiles.origins_of(setting)
    if profile.hardware is None:
        return  # the explicit settings are for every model
    for size, shape in shapes_for(profile):
        if profile.setting(shape) is None:
            choice = profiles.choose(profile, shape)
            yield size, shape.weights, choice.lookahead, dict(choice.origins)


def _lettered(origins: dict[str, str], letters: dict[str, str]) -> str:
    """Letters for origins: that of most values alone, others behind the values' names."""
    most = max(origins.values(), key=list(origins.values()).count)
    others = [f"{name} {_letter(o, letters)}" for name, o in origins.items() if o != most]
    return ", ".join([_letter(most, letters), *others])


def _letter(origin: str, letters: dict[str, str]) -> str:
    """The letter of an origin: the next one, if it has none yet."""
    return letters.setdefault(origin, ascii_lowercase[len(letters) % len(ascii_lowercase)])


def _legend(letters: dict[str, str]) -> Iterator[str]:
    return (f"{letter}  {printable(origin)}" for origin, letter in letters.items())


def _costs(lookahead: LookaheadConfig) -> list[str]:
    if lookahead.step_cost.widths == (1,):
        return ["-"] * len(WIDTHS)
    return [f"{lookahead.step_cost.at(width, CONTEXT):.2f}" for width in WIDTHS]


def _up_to(parameters: float, all_others: str) -> str:
    return all_others if parameters == math.inf else f"up to {user.short(parameters)}"


def _grid(*titles: str | None, right: Iterable[str] = ()) -> Table:
    """A table without lines; columns without a title hold names in the first."""
    headed = any(titles)
    table = Table(box=None, show_header=headed, pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(titles):
        table.add_column(
            title or "",
            justify="right" if (title or "") in right else "left",
            style="cyan" if not headed and number == 0 else "",
            overflow="fold",
            no_wrap=(title or "") in right,
        )
    return table
