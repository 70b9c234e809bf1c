"""A comparison as JSON: the versioned schema that programs read."""

from __future__ import annotations

from typing import Any

from ..result import Result
from .change import Change
from .values import Compared, Comparison, Counted, Pair
from .words import findings, notes

SCHEMA = "lade-compare/1"


def as_object(
    comparison: Comparison, a: str, b: str, ours: Result, theirs: Result
) -> dict[str, Any]:
    """A comparison as an object for `json.dumps`; its keys are part of the interface.

    Args:
        comparison: what was found.
        a, b: the files.
        ours, theirs: what they hold.
    """
    over = comparison.yardstick
    return {
        "schema": SCHEMA,
        "a": {"file": a, "created": ours.created},
        "b": {"file": b, "created": theirs.created},
        "verdict": comparison.verdict,
        "yardstick": None if over is None else over.name,
        "yardstick_is_foreign": comparison.foreign,
        "same_run": comparison.same_run,
        "not_the_same": [{"what": d.what, "a": d.a, "b": d.b} for d in comparison.unlike],
        "other_work": list(comparison.other_work),
        "other_prompts": list(comparison.other_prompts),
        "missing": [each.name for each in comparison.missing],
        "contenders": [_contender(comparison, each) for each in comparison.contenders],
        "notes": notes(comparison),
        "findings": [finding.text for finding in findings(comparison)],
    }


def _contender(comparison: Comparison, each: Compared) -> dict[str, Any]:
    return {
        "contender": each.name,
        "verdict": comparison.verdict_on(each.change) if each.change else None,
        "seconds_per_token": _pair(each.seconds_per_token),
        "step_seconds": _pair(each.step_seconds),
        "raw_ratio": each.raw,
        "change": _change(comparison, each.change),
        "first_token_change": _change(comparison, each.first),
        "exact": _counts(each.counted),
        "peak_memory": _pair(each.memory),
        "memory_changed": each.memory_changed,
    }


def _pair(pair: Pair | None) -> dict[str, float] | None:
    return None if pair is None else {"a": pair.a, "b": pair.b}


def _change(comparison: Comparison, change: Change | None) -> dict[str, Any] | None:
    if change is None:
        return None
    known = change.visible is not None
    return {
        "verdict": comparison.verdict_on(change),
        "ratio": change.ratio.value,
        "low": change.ratio.low if known else None,
        "high": change.ratio.high if known else None,
        "visible": change.visible,
        "pairs": change.pairs,
    }


def _counts(counts: Counted | None) -> dict[str, Any] | None:
    if counts is None:
        return None
    first = None if counts.first is None else {"row": counts.first[0], "turn": counts.first[1]}
    return {
        "tokens_per_step": _pair(counts.tokens_per_step),
        "answers": counts.answers,
        "other_texts": counts.other_texts,
        "other_steps": counts.other_steps,
        "other_accepted": counts.other_accepted,
        "first_other_text": first,
        "settled": counts.settled,
    }
