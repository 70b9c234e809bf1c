"""Answers of two benchmarks to the same prompts, side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...errors import UsageError
from ...metrics import ratio
from ..result import PLAIN, Contender, Result, Run

Key = tuple[str, int, int]
"""Of a run: row, turn and repeat."""
Keyed = Mapping[Key, Run]

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Paired:
    """What both have.

    Attributes:
        contenders: those with answers in both, in A's order.
        ours, theirs: by contender, the runs of A and of B; the same keys in both.
        missing: contenders with answers in A, and none of them in B.
        other_prompts: rows of one id whose prompts are not the same; they are left out.
        yardstick: what changes are measured against; with a single contender there is nothing.
    """

    contenders: tuple[Contender, ...]
    ours: Mapping[str, Keyed]
    theirs: Mapping[str, Keyed]
    missing: tuple[Contender, ...]
    other_prompts: frozenset[str]
    yardstick: Contender | None

    def changes(self, name: str, time: Callable[[Run], float]) -> dict[Key, float]:
        """Logarithms of B over A for every answer of a contender that has such a time."""
        a, b = (
            {k: time(run) for k, run in side[name].items()} for side in (self.ours, self.theirs)
        )
        return {key: math.log(b[key] / a[key]) for key in a if a[key] > 0.0 and b[key] > 0.0}

    def samples(self, time: Callable[[Run], float]) -> dict[str, list[float]]:
        """The same by contender, each answer over the yardstick's to the same prompt in the same
        round; without the yardstick, and without contenders that have no such times."""
        drift = self.changes(self.yardstick.name, time) if self.yardstick else None
        found: dict[str, list[float]] = {}
        for each in self.contenders:
            if each == self.yardstick:
                continue
            changes = self.changes(each.name, time)
            over = [
                change - (drift[key] if drift is not None else 0.0)
                for key, change in changes.items()
                if drift is None or key in drift
            ]
            if over:
                found[each.name] = over
        return found


def pair_up(a: Result, b: Result) -> Paired:
    """Pair what is in both.

    Raises:
        UsageError: nothing is.
    """
    theirs_too = {contender.name for contender in b.contenders}
    if not any(contender.name in theirs_too for contender in a.contenders):
        has = [", ".join(c.name for c in r.contenders[:_NAMES_SHOWN]) or "none" for r in (a, b)]
        raise UsageError(
            f"nothing to compare: no contender is in both (A has {has[0]}; B has {has[1]}); measure"
            " both with the same --strategies"
        )
    other = _other_prompts(a, b)
    ours, theirs = _keyed(a, other), _keyed(b, other)
    for name in ours:
        common = ours[name].keys() & theirs[name].keys()
        for side in (ours, theirs):
            side[name] = {key: run for key, run in side[name].items() if key in common}
    both = tuple(each for each in a.contenders if ours.get(each.name))
    if not both:
        raise UsageError(
            "nothing to compare: no contender of both has an answer to the same prompt; measure"
            " both with the same --prompts"
        )
    measured = {run.contender for run in a.runs}
    missing = tuple(each for each in a.contenders if each.name in measured and each not in both)
    yardstick = _yardstick((a.reference, b.reference), both)
    return Paired(both, ours, theirs, missing, other, yardstick)


def _keyed(result: Result, without: Iterable[str]) -> dict[str, dict[Key, Run]]:
    found: dict[str, dict[Key, Run]] = defaultdict(dict)
    for run in result.runs:
        if run.row not in without:
            found[run.contender][run.row, run.turn, run.repeat] = run
    return found


def _other_prompts(a: Result, b: Result) -> frozenset[str]:
    """Rows that have the same id and begin with other prompts."""
    if a.model.name != b.model.name or a.conditions.template != b.conditions.template:
        return frozenset()  # the same text has other tokens
    ours, theirs = (
        {run.row: run.prompt_digest for run in each.runs if run.turn == 1} for each in (a, b)
    )
    return frozenset(row for row, prompt in ours.items() if theirs.get(row, prompt) != prompt)


def _yardstick(references: tuple[str | None, ...], both: tuple[Contender, ...]) -> Contender | None:
    """Code that is not ours before our own; "hf" before others, which are less steady."""
    if len(both) < 2:
        return None
    foreign = sorted((each for each in both if each.foreign), key=lambda each: each.strategy)
    known = {each.name: each for each in both}
    ours = [known[name] for name in (*references, PLAIN) if name in known]
    return next(iter([*foreign, *ours]), None)


def per_token(run: Run) -> float:
    """Seconds per token behind the first step; 0 where there is none."""
    return ratio(run.decode_seconds, run.decoded)
