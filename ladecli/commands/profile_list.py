"""`lade profiles`: a table of all for people, one as TOML, JSON objects for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from .. import profiles
from ..profiles import Profile, user
from ..specs import device as machine
from ..view import screen
from ..view.screen import Column, Table
from ..view.terminal import Terminal

if TYPE_CHECKING:
    from ..options.commands import ProfileRequest

SCHEMA = 4
"""Version of the JSON objects."""


def run(request: ProfileRequest) -> int:
    """List all profiles, or show one; returns the exit code, 0.

    Raises:
        UsageError: there is no such profile or device.
    """
    if request.profile is None:
        return _list(request)
    profile = profiles.read(request.profile)
    if request.json:
        return _print(**{**_identity(profile), **profile.as_file()})
    print(profiles.dump(profile), end="")
    return 0


def _list(request: ProfileRequest) -> int:
    terminal = Terminal(request.color)
    with terminal.progress("looking at this machine"):
        device = machine.detect(request.device)
        own, notices = user.read_all()
    usual = profiles.usual(device, own)
    name = usual.name if usual else None
    rows = []
    for profile in sorted(profiles.every(own).values(), key=lambda profile: profile.name):
        hardware = profile.hardware
        rows.append(
            _identity(profile)
            | {
                "shadows_shipped": profile.place != "shipped"
                and profile.name in profiles.shipped(),
                "this_machine": profile.name == name,
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
        if rates := row["hardware"]:
            speeds = [
                f"{rates['bandwidth'] / 1e9:.0f}",
                profiles.tera(max(rates["rates"].values())),
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
    """Print a JSON object; returns the exit code, 0."""
    print(json.dumps({"schema": SCHEMA, **data}, ensure_ascii=False))
    return 0
