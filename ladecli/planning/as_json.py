"""An outlook as a JSON object, for programs; its keys are part of the interface."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from . import words
from .cost import MODES, exchanged
from .links import Link
from .outlook import PAYS, Choice, Outlook, Row
from .words import Subject

SCHEMA = "lade-plan/1"


def as_object(subject: Subject, outlook: Outlook) -> dict[str, Any]:
    """What --json prints; seconds, bytes, and shares of 1.

    Args:
        subject: what was planned for.
        outlook: the estimates.
    """
    setup = outlook.setup
    return {
        "schema": SCHEMA,
        "estimated": True,
        "model": {"name": subject.model, **asdict(setup.shape)},
        "gpu": {
            "name": subject.gpu.name,
            "description": subject.gpu.profile.description,
            "memory_bytes": setup.memory,
            **asdict(setup.rates),
        },
        "links": {
            "gpus_per_node": setup.fabric.per_node,
            "within": _link(setup.fabric.within),
            "between": _link(setup.fabric.between),
        },
        "budget": setup.budget,
        "context": setup.context,
        "text": setup.growth.text,
        "asked": outlook.asked,
        "exchange_bytes": exchanged(setup.budget),
        "pays_from": PAYS,
        "baseline": _choice(outlook.baseline),
        "modes": {mode: _mode(outlook, mode) for mode in MODES},
        "best": _choice(outlook.best()),
        "caveats": words.caveats(subject, outlook),
        "assumptions": words.assumptions(subject, outlook),
    }


def _mode(outlook: Outlook, mode: str) -> dict[str, Any]:
    stop = outlook.stop(mode)
    return {
        "rows": [_row(outlook, mode, row) for row in outlook.rows[mode]],
        "stops": None if stop is None else asdict(stop),
        "verdict": words.verdict(outlook, mode),
    }


def _row(outlook: Outlook, mode: str, row: Row) -> dict[str, Any]:
    step = row.step
    return {
        "gpus": row.gpus,
        "nodes": row.nodes,
        "possible": step is not None,
        "why_not": words.why_not(outlook, row),
        "needed_bytes": row.needed,
        "step_seconds": step and step.seconds,
        "computing_seconds": step and step.computing,
        "drafting_seconds": step and step.drafting,
        "talking_seconds": step and step.talking,
        "sent_bytes": step and step.sent,
        "tokens_per_step": step and step.tokens,
        "tokens_per_second": step and step.speed,
        "speedup": outlook.speedup(row),
        "efficiency": outlook.efficiency(mode, row),
    }


def _choice(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {
        "mode": choice.mode,
        "gpus": choice.gpus,
        "step_seconds": choice.step.seconds,
        "tokens_per_second": choice.step.speed,
    }


def _link(link: Link) -> dict[str, Any]:
    return asdict(link)
