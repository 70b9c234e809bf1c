"""Profiles as JSON objects, for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import profiles
from . import Choice, Profile, user
from .listing import Entry, Machine
from .sizes import shapes_for

if TYPE_CHECKING:
    from ..decoder.config import LookaheadConfig

SCHEMA = 1
"""Version of the objects."""


def list_object(machine: Machine, entries: Sequence[Entry]) -> dict[str, Any]:
    """What `lade profiles --json` prints: the machine, and a row for each profile."""
    device = machine.device
    return {
        "schema": SCHEMA,
        "device": {"kind": device.kind, "label": device.label, "memory_bytes": device.memory},
        "profile": machine.usual.name if machine.usual else None,
        "profiles": [
            {
                "name": entry.profile.name,
                "description": entry.profile.description,
                "from": entry.profile.place,
                "path": _path(entry.profile),
                "shadows_shipped": entry.shadows,
                "this_machine": entry.here,
                "hardware": _hardware(entry.profile),
            }
            for entry in entries
        ],
        "notices": machine.notices,
    }


def show_object(
    profile: Profile, model: str | None, choice: Choice | None, notices: Sequence[str]
) -> dict[str, Any]:
    """What `lade profiles show --json` prints: all of a profile, and the settings that follow.

    Args:
        profile: the profile.
        model: the name of the model that it was chosen for, if there is one.
        choice: what was chosen for that.
        notices: what the user would be told.
    """
    if choice is not None:
        settings = [{"model": model, **_settled(choice)}]
    else:
        settings = [
            {
                "model": size,
                "parameters": shape.parameters,
                "weights": shape.weights,
                **_settled(profiles.choose(profile, shape)),
            }
            for size, shape in shapes_for(profile)
        ]
    return {
        "schema": SCHEMA,
        "name": profile.name,
        "description": profile.description,
        "from": profile.place,
        "path": _path(profile),
        "devices": list(profile.devices),
        "not_devices": list(profile.not_devices),
        "memory_bytes": list(profile.memory),
        "hardware": _hardware(profile),
        "tuned": asdict(profile.tuned) if profile.tuned else None,
        "paper": [
            {
                "up_to_parameters": _limit(paper.up_to_parameters),
                **_paper(paper.lookahead),
                "origin": f"published: {paper.source}",
            }
            for paper in profile.papers
        ],
        "explicit": [
            {
                "up_to_parameters": _limit(setting.up_to_parameters),
                "weights": list(setting.weights) or None,
                **asdict(setting.lookahead),
                "origins": profiles.origins_of(setting),
            }
            for setting in profile.settings
        ],
        "settings": settings,
        "notices": list(notices),
    }


def _settled(choice: Choice) -> dict[str, Any]:
    return {
        **asdict(choice.lookahead),
        "origins": dict(choice.origins),
        "paper": {**_paper(choice.paper), "origin": choice.paper_origin},
    }


def _paper(lookahead: LookaheadConfig) -> dict[str, int]:
    return {key: getattr(lookahead, key) for key in ("window", "ngram", "guesses")}


def _hardware(profile: Profile) -> dict[str, Any] | None:
    return asdict(profile.hardware) if profile.hardware else None


def _path(profile: Profile) -> str | None:
    own = profile.place in ("yours", "tuned")
    return str(user.path_of(profile.name)) if own else None


def _limit(parameters: float) -> float | None:
    return None if parameters == math.inf else parameters
