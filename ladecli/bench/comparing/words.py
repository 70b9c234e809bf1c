"""What a comparison comes to, in lines for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...visualize import counted
from ..wording import clean, label, listed, listed_some, memory, share
from .change import EQUAL, FASTER, SLOWER, UNCLEAR, VISIBLE, Change
from .values import Compared, Comparison, Pair

MOVED = 0.03
"""The yardstick's own change that is worth a line."""
_ROWS_NAMED = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A line, and the verdict that it tells, if any."""

    text: str
    verdict: str | None = None


def notes(comparison: Comparison) -> list[str]:
    """What to know before believing the verdicts."""
    found = []
    if comparison.same_run:
        found.append("A and B are one and the same run: nothing can differ; measure again for B")
    if comparison.other_prompts:
        rows = listed_some([clean(row) for row in comparison.other_prompts], _ROWS_NAMED)
        found.append(f"prompts of these rows are not the same, so they are left out: {rows}")
    rooms = _rooms(comparison) & ({"machine"} if comparison.other_work else {"machine", "model"})
    found += [
        f"the {room} is not the same: changes can come from that, too" for room in sorted(rooms)
    ]
    found += _yardstick(comparison)
    if comparison.compiled and any(each.memory for each in comparison.contenders):
        found.append(
            f"what transformers compiled in {listed(comparison.compiled)}, and its static cache,"
            " are part of everybody's memory there"
        )
    visible = [
        each.change.visible
        for each in comparison.judged
        if each.change and each.change.verdict == EQUAL and each.change.visible is not None
    ]
    if visible and not (comparison.other_work or comparison.same_run):
        found.append(f'"equal": a change of {share(max(visible))} or more would have shown')
    return found


def _rooms(comparison: Comparison) -> set[str]:
    """What is not the same, roughly: "machine", "model", …"""
    return {each.what.split(":")[0] for each in comparison.unlike}


def _yardstick(comparison: Comparison) -> Iterator[str]:
    """What the yardstick is worth, and what its own change means."""
    over = comparison.yardstick
    if over is None:
        yield (
            "nothing here tells a slower program from a slower machine; measure both with hf among"
            " --strategies"
        )
        return
    raw = next((each.raw for each in comparison.contenders if each.contender == over), None)
    if raw is not None and abs(raw - 1.0) >= MOVED:
        whose = "not our code" if comparison.foreign else "the yardstick"
        cause = "machine, load or torch" if comparison.foreign else "machine or code"
        why = f"{cause} changed"
        if comparison.other_work:
            why = "it did other work there, too"
        elif "model" in _rooms(comparison):
            why = f"the model, {why}"
        yield f"{label(over)}, {whose}, takes {_amount(raw)} time per token in B: {why}"
    if not comparison.foreign:
        yield (
            f"changes are over {label(over)}, which is our code too: a change that hits all alike"
            " is not seen; measure both with hf among --strategies"
        )


def findings(comparison: Comparison) -> list[Finding]:
    """What it comes to, a line for each thing that changed for sure or cannot be told."""
    found = []
    if comparison.other_work:
        what = listed(comparison.other_work)
        text = f"nothing is called slower or faster: A and B did other work (not the same: {what})"
        found.append(Finding(text))
    changed = [
        _changed(comparison, each, each.change)
        for each in comparison.judged
        if each.change and each.change.verdict in (SLOWER, FASTER)
    ]
    found += changed
    if not changed and not comparison.other_work:
        found.append(Finding(_nothing(comparison)))
    found += [
        Finding(f"{label(each)} is missing in B: it has answers in A only", SLOWER)
        for each in comparison.missing
    ]
    for each in comparison.contenders:
        found += map(Finding, _exact(each))
        if each.first and each.first.verdict in (SLOWER, FASTER):
            more = _amount(each.first.ratio.value)
            text = f"{_beside(comparison)}the first token takes {more} time than in A"
            found.append(Finding(f"{label(each.contender)}: {text}"))
        if each.memory_changed and each.memory:
            text = f"peak memory {moved(each.memory, memory)}"
            found.append(Finding(f"{label(each.contender)}: {text}"))
    return found if comparison.other_work else [*found, *_unclear(comparison)]


def _changed(comparison: Comparison, each: Compared, change: Change) -> Finding:
    """A time that changed for sure; where the clock says the opposite, that too."""
    name, verdict = label(each.contender), comparison.verdict_on(change)
    who = name
    text = _beside(comparison)
    if not comparison.other_work:
        text, who = f"{name} is {verdict} in B: {text}", "it"
    text += f"{who} takes {_amount(change.ratio.value)} time per token than in A"
    text += f" ({between(change)})"
    if each.raw is not None and (each.raw > 1.0) != (change.ratio.value > 1.0):
        text += f"; by the clock, {_amount(each.raw)}"
    return Finding(text, verdict)


def _beside(comparison: Comparison) -> str:
    """What a change is measured against: the beginning of a sentence."""
    over = comparison.yardstick
    return "" if over is None else f"compared with {label(over)}, "


def _nothing(comparison: Comparison) -> str:
    if comparison.judged or comparison.yardstick is None:
        return "no time per token changed by more than noise"
    return f"only {label(comparison.yardstick)} has times in both"


def _exact(each: Compared) -> Iterator[str]:
    """What is no noise, or why it cannot be told."""
    counts, name = each.counted, label(each.contender)
    if counts is None or not (counts.other_texts or counts.other_steps or counts.other_accepted):
        return
    if not counts.settled:
        yield f"{name}: answers or steps differ between repeats of the same run"
        return
    if counts.other_texts and counts.first:
        row, turn = counts.first
        yield (
            f"{name}: {counts.other_texts} of {counted(counts.answers, 'answer')} have"
            f" other tokens, first {clean(row)} in turn {turn}"
        )
    if counts.other_steps or counts.other_accepted:
        number = max(counts.other_steps, counts.other_accepted)
        rate = moved(counts.tokens_per_step, "{:.3f}".format)
        yield (
            f"{name}: {number} of {counted(counts.answers, 'answer')} were drafted"
            f" otherwise, tokens per step {rate}; this is exact"
        )


def _unclear(comparison: Comparison) -> Iterator[Finding]:
    for each in comparison.judged:
        change = each.change
        if change is None or change.verdict != UNCLEAR:
            continue
        seen, shown = "any change", "give an interval"
        if change.visible is not None:
            seen = f"a change of {share(change.visible)}"
            shown = f"show {share(math.expm1(VISIBLE))}"
        fix = ""
        if change.repeats is not None:
            more = math.ceil(comparison.repeats * change.repeats)
            fix = f"; --repeat {more} or more rows {shown}"
        yield Finding(f"{label(each.contender)} is unclear: {seen} could be noise{fix}", UNCLEAR)


def moved(pair: Pair, tell: Callable[[float], str]) -> str:
    """A figure in A and in B; one where both read alike."""
    a, b = tell(pair.a), tell(pair.b)
    return a if a == b else f"{a} → {b}"


def percent(ratio: float) -> str:
    """A quotient of two figures as a change: "+9.3 %"."""
    return f"{round(100 * (ratio - 1.0), 1) + 0.0:+.1f} %"  # never "-0.0"


def _amount(ratio: float) -> str:
    return f"{share(abs(ratio - 1.0))} {'more' if ratio > 1.0 else 'less'}"


def between(change: Change) -> str:
    """The interval of a change, or why there is none."""
    if change.visible is None:
        return f"{counted(change.pairs, 'pair')} only"
    return f"{percent(change.ratio.low)} to {percent(change.ratio.high)}"
