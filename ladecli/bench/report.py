"""A result as one document, which the terminal, HTML and Markdown all show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from .. import files
from ..errors import UsageError
from ..metrics import ratio
from ..screen import NONE, Column, Table
from ..visualize import counted
from . import render
from .render import Document, Section
from .result import PLAIN, STOCK, STOCK_COMPILED, Method, Model, Result, to_json
from .statistics import FEWEST, Figures, Interval, drift, figures_of, speedup
from .wording import (
    clean,
    decimal,
    interval,
    label,
    listed_some,
    memory,
    milliseconds,
    settings,
    share,
    times,
)

if TYPE_CHECKING:
    from rich.console import Console

OPTION = "--report"
SUFFIXES = (".html", ".md", ".json")
PARTS = ("draft", "forward", "verify", "learn", "text")
UNSTEADY = 0.05
"""Between the first and the last repeat, a machine's speed should change by less than this."""
MANY = 8
"""Prompts of which a bootstrap interval can be trusted."""
NAMED = 6
"""Names listed in a sentence; the others are counted."""


class Summary:
    """A result with its figures, computed once.

    Attributes:
        result: as it was measured.
        overall: figures of every method on all prompts.
    """

    def __init__(self, result: Result) -> None:
        self.result = result
        self.overall = figures_of(result)
        self._methods = {method.name: method for method in result.contenders}

    def method(self, name: str) -> Method:
        """The method of a name."""
        return self._methods.get(name, Method(name, name))

    def label(self, name: str | None) -> str:
        """What a method is called in tables and sentences."""
        return label(self.method(name or ""))

    @cached_property
    def by_category(self) -> Mapping[str, Sequence[Figures]]:
        """Figures by category; empty with only one."""
        found = self.result.categories
        return {each: figures_of(self.result, each) for each in found} if len(found) > 1 else {}

    @cached_property
    def headline(self) -> Figures | None:
        """The method that the report is about: lookahead, its best cell, or the fastest of ours."""

        def rank(each: Figures) -> tuple[bool, bool, float]:
            method = self.method(each.method)
            is_lookahead = method.strategy == "lookahead"
            return each.method == "lookahead", is_lookahead, each.tokens_per_second

        ours = [
            each
            for each in self.overall
            if each.method not in (self.result.reference, PLAIN)
            and not self.method(each.method).foreign
        ]
        return max(ours, key=rank, default=None)

    @cached_property
    def stock(self) -> Figures | None:
        """The faster of transformers' plain and compiled `generate`."""
        found = [each for each in self.overall if each.method in (STOCK, STOCK_COMPILED)]
        return max(found, key=lambda each: each.tokens_per_second, default=None)

    @property
    def over_contexts(self) -> bool:
        """Whether categories are lengths of the context."""
        return "context" in self.result.conditions.sweep


def document(summary: Summary) -> Document:
    """What every format shows of a result."""
    result = summary.result
    return Document(
        f"{clean(result.model.name)} on {clean(result.machine.device)}",
        tuple(_headline(summary)),
        tuple(_caveats(summary)),
        tuple(section for section in _sections(summary) if section.tables),
    )


def check(path: Path) -> None:
    """Refuse a report that could not be written, before a model is loaded.

    Raises:
        UsageError: the name has an unknown suffix, or nothing can be written there.
    """
    if path.suffix.lower() not in SUFFIXES:
        known = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise UsageError(f"{OPTION} {path}: the name of a report ends in {known}")
    files.check(path, OPTION)


def write(result: Result, path: Path) -> None:
    """Write a result in the format of the file's suffix.

    Raises:
        LadeError: the file cannot be written.
    """
    suffix, summary = path.suffix.lower(), Summary(result)
    if suffix == ".json":
        content = to_json(result) + "\n"
    elif suffix == ".md":
        content = render.markdown(document(summary))
    else:
        version = result.machine.versions.get("lade", "")
        footer = f"Measured by lade bench {version}, {result.created}."
        content = render.html(document(summary), _charts(summary), footer)
    files.write(path, content, OPTION)


def show(result: Result, console: Console) -> None:
    """Print a result."""
    render.terminal(document(Summary(result)), console)


def _headline(summary: Summary) -> Iterator[str]:
    """Is it faster, and is the text the same?"""
    result, found, stock = summary.result, summary.headline, summary.stock
    found = found or (summary.overall[0] if summary.overall else None)
    if found is None:
        return
    name, baseline = summary.label(found.method), summary.label(result.reference)
    sentence = f"{name}: {decimal(found.tokens_per_second or None)} tokens per second"
    if found.speedup is not None:
        sentence += f", {_factor(found.speedup)} those of {baseline}"
    if stock is not None and stock.method != result.reference:
        over = speedup(result.runs_of(found.method), result.runs_of(stock.method))
        if over is not None:
            sentence += f", {_factor(over)} those of {summary.label(stock.method)}"
    yield f"{sentence}; {found.tokens_per_step:.2f} tokens per step."
    compared = sum(each.compared for each in summary.overall)
    differing = [
        f"{each.compared - each.equal:,} of {each.compared:,} of {summary.label(each.method)}"
        for each in summary.overall
        if each.equal < each.compared
    ]
    if differing:
        yield (
            f"Answers differ from those of {baseline}: {listed_some(differing, NAMED)};"
            " lade verify shows where."
        )
    elif compared:
        yield f"{compared:,} of {compared:,} answers are equal to those of {baseline}."


def _factor(found: Interval) -> str:
    unclear = "" if found.clear else ", no clear difference"
    return f"{times(found.value)} ({interval(found)}{unclear})"


def _caveats(summary: Summary) -> Iterator[str]:
    """What a reader must know about the figures."""
    result = summary.result
    rows = len({run.row for run in result.runs})
    if result.interrupted:
        done = len({(run.contender, run.row, run.repeat) for run in result.runs})
        asked = result.conditions
        wanted = asked.rows * asked.repeat * len(result.contenders)
        yield f"Interrupted: the figures are of {done:,} of {wanted:,} runs."
    if result.failures:
        failed = Counter(summary.label(each.contender) for each in result.failures)
        names = [f"{name} ({number})" for name, number in failed.items()]
        yield f"Failed: {listed_some(names, NAMED)}; the reasons are below."
    if len({each.rows for each in summary.overall}) > 1:
        yield "Not every method answered the same prompts; speed-ups are over those in common."
    if result.skipped:
        yield f"Left out: {counted(len(result.skipped), 'row or turn')}; the reasons are below."
    if result.reference is None:
        yield f"There is no baseline, so there are no speed-ups; add {PLAIN}."
    elif 0 < rows < FEWEST:
        yield f"{counted(rows, 'prompt')}: too few for a speed-up, which needs {FEWEST}."
    elif 0 < rows < MANY:
        yield f"{rows} prompts are few: the intervals are likely too narrow."
    if result.conditions.repeat < 2:
        yield "Each prompt was measured once: the noise of this machine is unknown."
    change = drift(result)
    if change is not None and abs(change) > UNSTEADY:
        more = "more" if change > 0 else "less"
        yield (
            f"The machine was not steady: the last repeat took {share(abs(change))} {more} time"
            " than the first.  Methods took turns, so it affects all alike."
        )
    if result.conditions.sampled and any(each.foreign for each in result.contenders):
        yield "transformers draws other random numbers: its answers were not compared."
    if any(run.prompt_tokens + run.tokens > result.model.made_for > 0 for run in result.runs):
        yield (
            f"The model was made for {result.model.made_for:,} tokens: after them its text is"
            " meaningless, and so are tokens per step."
        )


def _sections(summary: Summary) -> Iterator[Section]:
    result = summary.result
    yield Section("How fast", tables=(_overall(summary),) if summary.overall else ())
    if grids := tuple(_grids(summary)):
        yield Section("The sweep", tables=grids)
    what = "context" if summary.over_contexts else "category"
    yield Section(f"By {what}", tables=tuple(_by_category(summary, what)))
    yield Section("Where the time goes", tables=tuple(_time(summary)))
    yield Section("Accepted draft tokens", tables=tuple(_sources(summary)))
    problems = []
    if result.skipped:
        rows = tuple((clean(each.row), clean(each.reason)) for each in result.skipped)
        problems.append(Table("Left out", _texts("row", "reason"), rows))
    if result.failures:
        failed = tuple(
            (summary.label(each.contender), clean(each.row), clean(each.error))
            for each in result.failures
        )
        problems.append(Table("Failed", _texts("method", "row", "error"), failed))
    yield Section("Problems", tables=tuple(problems))
    yield Section("Conditions", tables=tuple(_conditions(summary)))


def _texts(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, number=False) for title in titles)


def _overall(summary: Summary) -> Table:
    """Every method on all prompts."""
    baseline = summary.label(summary.result.reference)
    # The greatest weight is left out first on a narrow screen.
    columns = (
        Column("", number=False),
        Column("speed-up", note=f"speed-up: tokens per second over those of {baseline}"),
        Column("95 %", weight=1, note="95 %: its bootstrap confidence interval"),
        Column("equal", weight=2, note="equal: answers equal to the baseline's"),
        Column("tok/s", weight=3, note="tok/s, ms/step, p95, width: after the first step"),
        Column("tok/step", weight=4),
        Column("first ms", weight=5, note="first ms: median time to the first token"),
        Column("ms/step", weight=6),
        Column("p95 ms", weight=8),
        Column("width", weight=7),
        Column("memory", weight=9, note="memory: peak"),
    )
    rows = tuple(
        (
            summary.label(each.method),
            "1" if each.method == summary.result.reference else _speedup(each),
            interval(each.speedup),
            f"{each.equal}/{each.compared}" if each.compared else NONE,
            decimal(each.tokens_per_second or None),
            f"{each.tokens_per_step:.2f}",
            milliseconds(each.first_seconds),
            milliseconds(each.step_median),
            milliseconds(each.step_p95),
            f"{each.width:.1f}" if each.width else NONE,
            memory(each.peak_memory),
        )
        for each in summary.overall
    )
    return Table("How fast", columns, rows).without_empty()


def _speedup(each: Figures) -> str:
    """A speed-up, marked where it may be chance."""
    found = each.speedup
    return NONE if found is None else f"{'' if found.clear else '~'}{times(found.value)}"


def _grids(summary: Summary) -> Iterator[Table]:
    """Speed-ups over the first two swept axes, a table for each combination of the others."""
    cells = {
        tuple(sorted(summary.method(each.method).cell.items())): _speedup(each)
        for each in summary.overall
        if summary.method(each.method).cell
    }
    sweep = summary.result.conditions.sweep
    axes = [axis for axis in sweep if axis != "context"]
    wide = [axis for axis in axes if len(sweep[axis]) > 1]
    if len(wide) < 2:
        return
    down, across, *others = wide
    narrow = [axis for axis in axes if axis not in (down, across)]
    for values in product(*(sweep[axis] for axis in narrow)):
        fixed = dict(zip(narrow, values, strict=True))
        rows = []
        for y in sweep[down]:
            row = [{**fixed, down: y, across: x} for x in sweep[across]]
            rows.append((y, *(cells.get(tuple(sorted(cell.items())), NONE) for cell in row)))
        title = f"Speed-up by {down} and {across}"
        if others:
            title += f" at {', '.join(f'{axis}={fixed[axis]}' for axis in others)}"
        columns = (Column(f"{down} \\ {across}", number=False), *map(Column, sweep[across]))
        yield Table(title, columns, tuple(rows))


def _by_category(summary: Summary, what: str) -> Iterator[Table]:
    figures: list[tuple[str, Callable[[Figures], str]]] = [
        (f"Speed-up by {what}", _speedup),
        (f"Tokens per step by {what}", lambda each: f"{each.tokens_per_step:.2f}"),
    ]
    if summary.over_contexts:
        figures += [
            (f"Milliseconds per step by {what}", lambda each: milliseconds(each.step_median)),
            (f"Peak memory by {what}", lambda each: memory(each.peak_memory)),
        ]
    for title, cell in figures if summary.by_category else ():
        found = {
            (name, each.method): cell(each)
            for name, all_ in summary.by_category.items()
            for each in all_
        }
        rows = tuple(
            (
                summary.label(one.method),
                *(found.get((name, one.method), NONE) for name in summary.by_category),
            )
            for one in summary.overall
        )
        if any(value != NONE for _, *values in rows for value in values):
            columns = (Column(clean(name), weight=n) for n, name in enumerate(summary.by_category))
            marked = "~" in "".join(value for row in rows for value in row[1:])
            notes = ("~ no clear difference: 1 is in the 95 % interval",) if marked else ()
            yield Table(title, (Column("", number=False), *columns), rows, notes)


def _time(summary: Summary) -> Iterator[Table]:
    """Shares of a step's time, and the share of the machine's bandwidth."""
    spent, ceiling = summary.result.time_spent, summary.result.ceiling
    if not spent:
        return
    parts = [part for part in PARTS if any(each.seconds.get(part) for each in spent)]
    rows = []
    for each in spent:
        total, forward = sum(each.seconds.values()), each.seconds.get("forward", 0.0)
        shares = (share(ratio(each.seconds.get(part, 0.0), total)) for part in parts)
        bandwidth, arithmetic = ratio(each.read_bytes, forward), ratio(each.operations, forward)
        rates = [f"{decimal(bandwidth / 1e9)} GB/s", f"{decimal(arithmetic / 1e9)} GFLOP/s"]
        if ceiling is not None:
            rates[0] += f" ({share(ratio(bandwidth, ceiling.bandwidth))})"
            rates[1] += f" ({share(ratio(arithmetic, ceiling.arithmetic))})"
        rows.append((summary.label(each.contender), milliseconds(total), *shares, *rates))
    columns = (
        Column("", number=False),
        Column("ms/step"),
        *(Column(part, weight=n) for n, part in enumerate(parts)),
        Column("read per second", weight=len(parts)),
        Column("operations per second", weight=len(parts) + 1),
    )
    notes = ["rates are those of the forward pass: weights, keys and values are read once a step"]
    if ceiling is not None:
        notes.append(
            f"100 % is what this machine reached: a copy {decimal(ceiling.bandwidth / 1e9)} GB/s,"
            f" a product of matrices {decimal(ceiling.arithmetic / 1e9)} GFLOP/s"
        )
    yield Table("Share of a step's time", columns, tuple(rows), tuple(notes))


def _sources(summary: Summary) -> Iterator[Table]:
    """Accepted draft tokens per step, by source."""
    names = sorted({name for each in summary.overall for name in each.accepted})
    rows = []
    for each in summary.overall:
        if each.accepted:
            steps = sum(run.steps for run in summary.result.runs_of(each.method))
            counts = (each.accepted.get(name, 0) for name in names)
            rows.append(
                (summary.label(each.method), *(f"{ratio(count, steps):.2f}" for count in counts))
            )
    if rows:
        columns = (Column(clean(name), weight=number) for number, name in enumerate(names))
        title = "Accepted draft tokens per step, by source"
        yield Table(title, (Column("", number=False), *columns), tuple(rows))


def _conditions(summary: Summary) -> Iterator[Table]:
    facts = tuple((name, clean(value)) for name, value in _facts(summary.result) if value)
    yield Table("Conditions", _texts("", ""), facts)
    given = tuple(
        (label(each), settings(each.settings))
        for each in summary.result.contenders
        if each.settings
    )
    if given:
        yield Table("Settings", _texts("", "settings"), given)


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    machine, model, asked = result.machine, result.model, result.conditions
    yield "command", asked.command
    yield "when", f"{result.created}, in {result.seconds:,.0f} s"
    parts = [machine.device, counted(machine.threads, "thread") if machine.threads else ""]
    parts += [memory(machine.memory) if machine.memory else "", machine.system]
    parts += [f"driver {machine.driver}" if machine.driver else ""]
    yield "machine", ", ".join(filter(None, parts))
    yield "ranks", f"{asked.ranks}, {asked.parallel_mode}" if asked.ranks > 1 else ""
    yield "versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    yield "model", f"{model.name}: {_size(model)}, {model.context:,} tokens of context"
    yield "arithmetic", f"weights {model.weights}, computed in {model.compute}"
    yield "attention", ": ".join(filter(None, (model.attention, result.attention_why)))
    graphs = "CUDA graphs of compiled steps" if model.compiled else "CUDA graphs"
    yield "steps", graphs if model.captured else ""
    repeats = "once" if asked.repeat == 1 else f"{asked.repeat} times"
    yield "prompts", f"{asked.prompts}: {counted(asked.rows, 'row')}, each {repeats}"
    ends = ", after end tokens too" if asked.ignore_eos else ""
    template = "with" if asked.template else "without"
    yield (
        "answers",
        f"at most {counted(asked.max_new_tokens, 'token')}{ends}; {template} the chat template",
    )
    drawn = ", ".join(f"{name} {value:.12g}" for name, value in asked.sampling.items())
    yield "sampling", drawn or "greedy"
    yield "profile", asked.profile
    yield "sweep", "; ".join(f"{axis} {', '.join(found)}" for axis, found in asked.sweep.items())
    yield "baseline", result.reference or "none"
    yield "overhead", f"{share(result.overhead)} of the time, outside of all methods"
    compiling = f"{result.compile_seconds:,.0f} s for transformers' steps, in no figure"
    yield "compiling", compiling if result.compile_seconds else ""


def _size(model: Model) -> str:
    active = f", {decimal(model.active / 1e6)} M active" if model.active < model.parameters else ""
    return f"{decimal(model.parameters / 1e6)} M parameters{active}"


def _charts(summary: Summary) -> list[tuple[str, str]]:
    """Title and SVG of each chart of a page."""
    speedups = [(summary.label(e.method), e.speedup) for e in summary.overall if e.speedup]
    spent = [(summary.label(each.contender), each.seconds) for each in summary.result.time_spent]
    charts = []
    if speedups:
        title = f"Speed-up over {summary.label(summary.result.reference)}, with 95 % intervals"
        charts.append((title, render.speedup_chart(speedups)))
    if spent:
        charts.append(("Milliseconds of a step", render.time_chart(spent, PARTS)))
    return charts
