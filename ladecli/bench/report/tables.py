"""A report as tables that every format shows: how fast, by category, from which source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ...table import NONE, Column, Table
from ...visualize import counted
from ..figures import FEWEST, Figures
from ..wording import clean, decimal, interval, memory, milliseconds, share, times
from .summary import Summary

# Weights grow with what a reader can do without.
_OVERALL = (
    Column("", number=False),
    Column("speed-up"),
    Column(
        "95 %",
        weight=1,
        note="95 %: the interval that holds it for prompts like these, 95 times in 100",
    ),
    Column("equal", weight=2, note="equal: answers that are the reference's, of those compared"),
    Column("tok/s", weight=3, note="tok/s: behind the first step"),
    Column("tok/step", weight=4),
    Column("first ms", weight=5, note="first ms: time to the first token, the median"),
    Column("ms/step", weight=6, note="ms/step: the median"),
    Column("p95 ms", weight=8, note="p95 ms: no longer in 95 of 100 steps"),
    Column("width", weight=7, note="width: tokens fed per step behind the first"),
    Column("memory", weight=9, note="memory: the most of any run"),
)
_READ = "first ms: reading the text, which is measured once, for all of them"


def overall(summary: Summary) -> Table:
    """Every contender on all prompts."""
    result, notes = summary.result, []
    reference = summary.label(result.reference)
    columns = list(_OVERALL)
    if result.reference is not None:
        note = f"speed-up: tokens per second behind the first step, over those of {reference}"
        columns[1] = replace(columns[1], note=note)
    if summary.of_contexts:
        columns = [replace(c, note=_READ) if c.title == "first ms" else c for c in columns]
    if (why := _why_none(summary, summary.overall)) is not None:
        notes.append(why)
    if any(summary.contender(each.contender).foreign for each in summary.overall):
        notes.append(
            "steps include making text of tokens, those of transformers do not: that favours them"
        )
    rows = tuple(_overall_row(summary, each) for each in summary.overall)
    return Table("How fast", tuple(columns), rows, tuple(notes)).without_empty()


def _why_none(summary: Summary, found: Iterable[Figures]) -> str | None:
    """Why somebody has no speed-up; None where all have one."""
    reference = summary.result.reference
    if reference is None or all(e.speedup for e in found if e.contender != reference):
        return None
    return (
        f"{NONE} no speed-up: that takes {FEWEST} {summary.noun}s which both answered in more than"
        " one step"
    )


def _overall_row(summary: Summary, each: Figures) -> tuple[str, ...]:
    return (
        summary.label(each.contender),
        speedup_cell(summary, each),
        interval(each.speedup),
        equality_cell(each),
        decimal(each.tokens_per_second or None),
        f"{each.tokens_per_step:.2f}",
        milliseconds(each.first_seconds),
        milliseconds(each.step_median),
        milliseconds(each.step_p95),
        f"{each.width:.1f}" if each.width else NONE,
        memory(each.peak_memory),
    )


def speedup_cell(summary: Summary, each: Figures) -> str:
    """A speed-up, which the reference has over nobody."""
    if each.contender == summary.result.reference:
        return "1"
    return times(each.speedup.value if each.speedup else None)


def equality_cell(each: Figures) -> str:
    """How many answers are equal, of how many."""
    return f"{each.equal}/{each.compared}" if each.compared else NONE


def categories(summary: Summary) -> Iterator[Table]:
    """Speed-up and tokens per step by category; over contexts, time and memory too."""
    if not summary.by_category:
        return
    what = "context" if summary.of_contexts else "category"
    contenders = summary.drawn
    all_figures = [each for found in summary.by_category.values() for each in found]
    if any(each.speedup for each in all_figures):
        why = _why_none(summary, all_figures)
        reference = summary.result.reference
        others = [each for each in contenders if each.contender != reference]
        every = [each for each in summary.overall if each.contender != reference]
        few = f"the {len(others)} fastest of {len(every)}; " if len(others) < len(every) else ""
        rows = len({run.row for run in summary.result.runs})
        yield _across(
            summary, f"Speed-up by {what}", _marked, others,
            f"{few}{counted(rows, summary.noun)} in all",
            "~ no clear difference: 1 is in the 95 % interval",
            *([why] if why else []),
        )  # fmt: skip
    yield _across(
        summary, f"Tokens per step by {what}", lambda e: f"{e.tokens_per_step:.2f}", contenders
    )
    if summary.of_contexts:
        title = f"Milliseconds per step by {what}"
        yield _across(summary, title, lambda e: milliseconds(e.step_median), contenders)
        if any(each.peak_memory is not None for each in all_figures):
            title = f"Peak memory by {what}"
            yield _across(summary, title, lambda e: memory(e.peak_memory), contenders)


def _across(
    summary: Summary,
    title: str,
    cell: Callable[[Figures], str],
    contenders: Sequence[Figures],
    *notes: str,
) -> Table:
    """One figure of some contenders, a column for each category."""
    names = tuple(summary.by_category)
    found = {
        (name, each.contender): cell(each)
        for name, all_ in summary.by_category.items()
        for each in all_
    }
    rows = tuple(
        (summary.label(one.contender), *(found.get((name, one.contender), NONE) for name in names))
        for one in contenders
    )
    columns = (Column(clean(name), weight=number) for number, name in enumerate(names))
    return Table(title, (Column("", number=False), *columns), rows, notes)


def by_category(summary: Summary) -> Iterator[Table]:
    """All figures of each category, a table for each."""
    for name, found in summary.by_category.items():
        rows = tuple(_overall_row(summary, each) for each in found)
        ids = {run.row for run in summary.result.runs if run.category == name}
        title = f"{clean(name)}: {counted(len(ids), summary.noun)}"
        # What they hold is told once, below the first table of all.
        columns = tuple(replace(column, note="") for column in _OVERALL)
        yield Table(title, columns, rows).without_empty()


def _marked(each: Figures) -> str:
    found = each.speedup
    if found is None:
        return NONE
    return f"{'~' if found.low <= 1.0 <= found.high else ''}{times(found.value)}"


def sources(summary: Summary) -> Table | None:
    """From where accepted tokens came; None where nothing was accepted."""
    names = sorted({name for each in summary.overall for name in each.accepted})
    if not names:
        return None
    rows = []
    for each in summary.overall:
        if each.accepted:
            total = sum(each.accepted.values())
            tokens = sum(run.tokens for run in summary.result.runs_of(each.contender))
            parts = (share(each.accepted.get(name, 0) / total) for name in names)
            of_all = share(total / tokens) if tokens else NONE
            rows.append((summary.label(each.contender), of_all, *parts))
    each_source = (Column(clean(name), weight=1) for name in names)
    columns = (Column("", number=False), Column("accepted"), *each_source)
    note = "accepted: tokens of the answers that drafts brought; then of these by source"
    return Table("Where accepted tokens come from", columns, tuple(rows), (note,))
