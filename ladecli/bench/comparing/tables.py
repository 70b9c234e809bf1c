"""A comparison as tables: what is not the same, times, and what is exact."""

from __future__ import annotations

from ...table import NONE, Column, Table
from ..wording import clean, label, memory, milliseconds
from .change import FASTER, SLOWER, Change
from .values import UNRELATED, Compared, Comparison
from .words import between, moved, percent


def unlike(comparison: Comparison) -> Table:
    """What is not the same about the two."""
    rows = tuple((clean(d.what), clean(d.a), clean(d.b)) for d in comparison.unlike)
    columns = (Column("", number=False), Column("A", number=False), Column("B", number=False))
    return Table("Not the same", columns, rows)


def times(comparison: Comparison) -> Table:
    """The time per token of every contender, and what became of it."""
    over = comparison.yardstick
    beside = "" if over is None else f" over the yardstick's ({label(over)}) in the same round"
    both = "ms/token: behind the first step, all answers together, so a change is not quite B/A"
    columns = (
        Column("", number=False),
        Column("ms/token", weight=2, note=both),
        Column("by the clock", weight=3, note="by the clock: the change as it was measured"),
        Column("change", note=f"change: of an answer's time{beside}, the middle of all answers"),
        Column("95 %", weight=1, note="95 %: where the true change lies, with that confidence"),
        Column("verdict", number=False),
    )
    rows = tuple(_times_row(comparison, each) for each in comparison.contenders)
    table = Table("Time per token", columns, rows)
    # Without a yardstick, the change is what the clock says.
    return table.of_columns([0, 1, 3, 4, 5]) if over is None else table


def _times_row(comparison: Comparison, each: Compared) -> tuple[str, ...]:
    change = each.change
    cells = (
        label(each.contender),
        moved(each.seconds_per_token, milliseconds),
        percent(each.raw) if each.raw else NONE,
    )
    if change is None:
        mine = each.contender == comparison.yardstick
        return (*cells, NONE, NONE, "yardstick" if mine else "no time to compare")
    verdict = comparison.verdict_on(change)
    verdict = NONE if verdict == UNRELATED else verdict
    return (*cells, percent(change.ratio.value), between(change), verdict)


def others(comparison: Comparison) -> Table:
    """What is exact, the time to the first token, steps and memory."""
    over = "" if comparison.yardstick is None else ", over the yardstick's"
    columns = (
        Column("", number=False),
        Column("tok/step", weight=1),
        Column("other text", weight=2, note="other text: answers with other tokens"),
        Column("ms/step", weight=5, note="ms/step: the median"),
        Column("first token", weight=3, note=f"first token: change of the time to it{over}"),
        Column("memory", weight=4, note="memory: the peak"),
    )
    rows = tuple(_others_row(comparison, each) for each in comparison.contenders)
    return Table("Beside that", columns, rows).without_empty()


def _others_row(comparison: Comparison, each: Compared) -> tuple[str, ...]:
    counts, first = each.counted, each.first
    return (
        label(each.contender),
        moved(counts.tokens_per_step, "{:.3f}".format) if counts else NONE,
        f"{counts.other_texts} of {counts.answers}" if counts else NONE,
        moved(each.step_seconds, milliseconds) if each.step_seconds else NONE,
        _first(comparison, first) if first else NONE,
        _memory(each),
    )


def _first(comparison: Comparison, change: Change) -> str:
    """The first token's change; most are noise, so only the others are named."""
    verdict = comparison.verdict_on(change)
    named = f" {verdict}" if verdict in (SLOWER, FASTER) else ""
    return percent(change.ratio.value) + named


def _memory(each: Compared) -> str:
    """The peak; of both only where they differ by more than allocators do from run to run."""
    if each.memory is None:
        return NONE
    return moved(each.memory, memory) if each.memory_changed else memory(each.memory.b)
