"""`lade profiles`: print all profiles as a table, one as TOML, or both as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from .. import profiles
from ..errors import printable
from ..models import device as machine
from ..profiles import Profile, user
from ..view import screen
from ..view.screen import Column, Table
from ..view.terminal import Terminal

if TYPE_CHECKING:
    from ..options.commands import ProfileRequest

SCHEMA = 5
"""Version of the JSON objects."""


def run(request: ProfileRequest) -> int:
    """List all profiles, or show one; return 0.

    Raises:
        UsageError: there is no such profile or device.
    """
    if request.profile is None:
        return _list(request)
    profile = profiles.read(request.profile)
    if request.json:
        return _print(**(_identity(profile) | profile.as_file()))
    print(printable(profiles.dump(profile)), end="")
    return 0


def _list(request: ProfileRequest) -> int:
    terminal = Terminal(request.color)
    with terminal.progress("looking at this machine"):
        device = machine.detect(request.device)
        own, notices = user.read_all()
    usual = profiles.usual(device, own)
    known = sorted(profiles.every(own).values(), key=lambda profile: profile.name)
    if request.json:
        rows = [
            _identity(profile)
            | {
                "this_machine": profile == usual,
                "hardware": profile.hardware and profile.hardware.model_dump(),
            }
            for profile in known
        ]
        described = {"kind": device.kind, "label": device.label, "memory_bytes": device.memory}
        name = usual and usual.name
        return _print(device=described, profile=name, profiles=rows, notices=notices)
    terminal.say(*notices)
    console = terminal.console(sys.stdout)
    cells = []
    for profile in known:
        speeds = [screen.NONE, screen.NONE]
        if hardware := profile.hardware:
            speeds[0] = f"{hardware.bandwidth / 1e9:.0f}"
            speeds[1] = f"{max(hardware.rates.values()) / 1e12:.0f}"
        mark = "* " if profile == usual else "  "
        cells.append((mark + profile.name, profile.description, *speeds, profile.place))
    heads = ("profile", "for", "GB/s", "TFLOP/s", "from")
    columns = tuple(Column(head, number=head in ("GB/s", "TFLOP/s")) for head in heads)
    screen.print_table(Table("Hardware profiles", columns, tuple(cells)), console)
    used = f"{usual.name} is for this machine: {user.key_of(device)}" if usual else None
    screen.line(console, f"\n* {used or profiles.unknown(device)}")
    return 0


def _identity(profile: Profile) -> dict[str, Any]:
    own = profile.place == "yours"
    return {
        "name": profile.name,
        "description": profile.description,
        "from": profile.place,
        "path": str(user.path_of(profile.name)) if own else None,
    }


def _print(**data: Any) -> int:
    """Print a JSON object, and return 0."""
    print(json.dumps({"schema": SCHEMA, **data}, ensure_ascii=False))
    return 0
