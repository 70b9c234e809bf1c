"""`lade bench compare`: what changed between two results of `lade bench`, beyond noise.

Tokens, steps and texts are compared exactly.  Times are noisy, so three things are kept out:

- Drift of the machine: a time is divided by that of a baseline, transformers' `generate`, for the
  same prompt in the same round.  The baseline is not our code: where it changed, the machine did.
- Disturbed answers: answers are compared one by one, by medians and Wilcoxon's signed-rank test, at
  Holm's levels over the methods.
- Luck of the process, such as where code and data lie in memory, which no repeat within a process
  shows: a change is called slower or faster only where it exceeds `MARGIN`.
"""

from __future__ import annotations

import json as jsons
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import UsageError
from ..metrics import ratio
from ..options import CompareRequest
from ..screen import NONE, Column, Table, line, print_table
from ..terminal import Terminal
from ..visualize import printable
from .result import PLAIN, STOCK, STOCK_COMPILED, STOCK_LOOKUP, Method, Result, Run, read
from .statistics import (
    EQUAL,
    FASTER,
    SLOWER,
    UNCLEAR,
    Change,
    comparable,
    judge,
    tokens_per_step,
)

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "lade-compare/1"
UNRELATED, MIXED = "unrelated", "mixed"
"""A and B did other work; overall, some methods are slower and some faster."""

MARGIN = 0.04
"""Relative change of a time that two processes of the same program can show: five times its
standard deviation on a quiet machine (`benchmarks/compare_power.py`)."""
MACHINE_MARGIN = 0.15
"""The same without a baseline: clock rates, temperature and other load add to it."""
MEMORY_MARGIN = 0.05
"""Relative change of the peak memory that allocators show from run to run."""
WORK = ("max_new_tokens", "ignore_eos", "template", "sampling")
"""Conditions that change the answers."""
BASELINES = (STOCK, STOCK_COMPILED, STOCK_LOOKUP)
"""transformers' own code, the steadiest first."""

Pairs: TypeAlias = Sequence[tuple[Run, Run]]
"""Answers of A and of B with the same method, row, turn and repeat."""


def run(request: CompareRequest) -> int:
    """Compare the results in two files; print tables, or with --json an object.

    Returns:
        The exit code: 0, or 1 with --fail-on-slower where a method became slower or is missing.

    Raises:
        UsageError: a file is no result, or nothing is in both; or --fail-on-slower cannot be told,
            since A and B did other work (what can be told is printed before).
    """
    a, b = request.a, request.b
    ours, theirs = read(Path(a)), read(Path(b))
    found = compare(ours, theirs)
    if request.json:
        files = {
            "a": {"file": a, "created": ours.created},
            "b": {"file": b, "created": theirs.created},
        }
        # ASCII only: names in the files must not reach a terminal as control sequences.
        print(jsons.dumps({"schema": SCHEMA, **files, **found}, allow_nan=False))
    else:
        console = Terminal(request.color).console(sys.stdout)
        for label, file, result in (("A", a, ours), ("B", b, theirs)):
            measured = f"{result.model.name} on {result.machine.device}"
            line(console, printable(f"{label}: {file}, {measured}, {result.created}"))
        show(found, console)
    if request.fail_on_slower and found["other_work"]:
        what = ", ".join(found["other_work"])
        raise UsageError(
            f"--fail-on-slower cannot tell: A and B did other work ({what}); measure both alike"
        )
    slower = any(each["verdict"] == SLOWER for each in found["contenders"])
    return int(request.fail_on_slower and (slower or bool(found["missing"])))


def compare(a: Result, b: Result) -> dict[str, Any]:
    """Compare what is in both: schema `lade-compare/1`, without the files.

    The keys are an interface.  "yardstick" is the name of the baseline; "raw_ratio" is the change
    by the clock, "change" the one over the baseline; "exact" counts answers with other texts, steps
    or accepted drafts, and is not exact where repeats within A or B differ ("settled").

    Raises:
        UsageError: nothing is in both.
    """
    other_prompts = _other_prompts(a, b)
    ours, theirs = (
        {(run.contender, *run.key): run for run in result.runs if run.row not in other_prompts}
        for result in (a, b)
    )
    pairs: dict[str, list[tuple[Run, Run]]] = {method.name: [] for method in a.contenders}
    for key, run in ours.items():
        if key in theirs:
            pairs.setdefault(run.contender, []).append((run, theirs[key]))
    pairs = {name: each for name, each in pairs.items() if each}
    if not pairs:
        raise UsageError(_nothing_in_both(a, b))
    baseline = _baseline(a, b, pairs)
    other_work = _other_work(a, b)
    times = _changes(pairs, baseline, lambda run: _seconds_per_token([run]))
    first = _changes(pairs, baseline, lambda run: run.first_seconds)
    if other_work:
        times = {name: replace(change, verdict=UNRELATED) for name, change in times.items()}
        first = {name: replace(change, verdict=UNRELATED) for name, change in first.items()}
    found: dict[str, Any] = {
        "verdict": _overall({change.verdict for change in times.values()}),
        "yardstick": baseline and baseline.name,
        "yardstick_is_foreign": baseline is not None and baseline.foreign,
        "same_run": a.runs == b.runs,
        "not_the_same": list(_differences(a, b)),
        "other_work": other_work,
        "other_prompts": sorted(other_prompts),
        "missing": list(dict.fromkeys(name for name, *_ in ours if name not in pairs)),
        "contenders": [
            {
                "contender": name,
                "verdict": times[name].verdict if name in times else None,
                **_figures(each),
                "change": asdict(times[name]) if name in times else None,
                "first_token_change": asdict(first[name]) if name in first else None,
                "exact": None if other_work else _exact(each, a.conditions.sampled),
            }
            for name, each in pairs.items()
        ],
    }
    return {**found, "notes": list(_notes(found)), "findings": list(_findings(found))}


def _nothing_in_both(a: Result, b: Result) -> str:
    names = [[method.name for method in result.contenders] for result in (a, b)]
    if set(names[0]) & set(names[1]):
        what, option = "no method has answers to the same prompt in both", "--prompts"
    else:
        has = [printable(", ".join(each[:5])) or "none" for each in names]
        what, option = f"no method is in both (A has {has[0]}; B has {has[1]})", "--strategies"
    return f"nothing to compare: {what}; measure both with the same {option}"


def _other_prompts(a: Result, b: Result) -> set[str]:
    """Rows with the same id that begin with other prompts."""
    if a.model.name != b.model.name or "template" in _other_work(a, b):
        return set()  # the same text has other tokens
    prompts = [{r.row: r.prompt_digest for r in each.runs if r.turn == 1} for each in (a, b)]
    return {row for row, digest in prompts[0].items() if prompts[1].get(row, digest) != digest}


def _other_work(a: Result, b: Result) -> list[str]:
    """Why times in A and B cannot be compared: "the model", "max new tokens"."""
    same_model = (a.model.name, a.model.parameters) == (b.model.name, b.model.parameters)
    asked = a.conditions, b.conditions
    other = [key for key in WORK if getattr(asked[0], key) != getattr(asked[1], key)]
    return [*([] if same_model else ["the model"]), *(key.replace("_", " ") for key in other)]


def _baseline(a: Result, b: Result, pairs: Mapping[str, Pairs]) -> Method | None:
    """What times are divided by: transformers' code where it took part, which stays as it is."""
    both = {method.name: method for method in a.contenders if method.name in pairs}
    if len(both) < 2:
        return None
    names = (*BASELINES, a.reference, b.reference, PLAIN)
    return next((both[name] for name in names if name in both), None)


def _changes(
    pairs: Mapping[str, Pairs], baseline: Method | None, time: Callable[[Run], float]
) -> dict[str, Change]:
    """Changes of a time, over the baseline's change for the same prompt in the same round."""
    logs = {
        name: {a.key: math.log(time(b) / time(a)) for a, b in each if time(a) > 0 < time(b)}
        for name, each in pairs.items()
    }
    drift = logs.pop(baseline.name) if baseline else None
    samples = {
        name: [log - (drift[key] if drift else 0.0) for key, log in each.items() if key in keys]
        for name, each in logs.items()
        if (keys := each.keys() if drift is None else each.keys() & drift.keys())
    }
    return judge(samples, MARGIN if baseline else MACHINE_MARGIN)


def _overall(verdicts: set[str]) -> str:
    if {SLOWER, FASTER} <= verdicts:
        return MIXED
    order = (UNRELATED, SLOWER, FASTER, UNCLEAR, EQUAL)
    return next((each for each in order if each in verdicts), UNCLEAR)


def _figures(pairs: Pairs) -> dict[str, Any]:
    """Times and memory of a method, as they were measured."""
    sides = list(zip(*pairs, strict=True))
    steps = [[s for run in side for s in run.step_seconds] for side in sides]
    peaks = [max(run.peak_memory or 0 for run in side) for side in sides]
    times = [(_seconds_per_token([a]), _seconds_per_token([b])) for a, b in pairs]
    ratios = [b / a for a, b in times if a > 0 < b]
    return {
        "seconds_per_token": _ab(*map(_seconds_per_token, sides)),
        "step_seconds": _ab(*map(statistics.median, steps)) if all(steps) else None,
        "raw_ratio": statistics.median(ratios) if ratios else None,
        "peak_memory": _ab(*peaks) if all(peaks) else None,
        "memory_changed": all(peaks) and abs(peaks[1] / peaks[0] - 1.0) > MEMORY_MARGIN,
    }


def _seconds_per_token(runs: Sequence[Run]) -> float:
    """After the first step; 0 where that was the only one."""
    return ratio(sum(run.decode_seconds for run in runs), sum(run.decoded for run in runs))


def _exact(pairs: Pairs, sampled: bool) -> dict[str, Any]:
    """Count answers that differ, in each conversation up to the first turn with another text."""
    counted = comparable(pairs)
    other = [a for a, b in counted if a.digest != b.digest]
    sides = list(zip(*counted, strict=True))
    # Repeats of greedy decoding take the same steps to the same text.
    settled = all(
        len({(r.row, r.turn, r.digest, r.steps) for r in side}) == len({r.key[:2] for r in side})
        for side in zip(*pairs, strict=True)
    )
    return {
        "tokens_per_step": _ab(*map(tokens_per_step, sides)),
        "answers": len(counted),
        "other_texts": len(other),
        "other_steps": sum(a.steps != b.steps for a, b in counted),
        "other_accepted": sum(a.accepted != b.accepted for a, b in counted),
        "first_other_text": {"row": other[0].row, "turn": other[0].turn} if other else None,
        "settled": settled or sampled,
    }


def _ab(a: float, b: float) -> dict[str, float]:
    return {"a": a, "b": b}


def _differences(a: Result, b: Result) -> Iterator[dict[str, str]]:
    """Conditions that could explain other figures: {"what": "machine: threads", "a", "b"}."""
    both = {method.name for method in a.contenders} & {method.name for method in b.contenders}
    ours, theirs = (dict(_conditions(each, both)) for each in (a, b))
    for what in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(what), theirs.get(what)
        if what == "machine: memory" and isinstance(one, int) and isinstance(other, int):
            # What a system reports varies a little from one start to the next.
            same = abs(one - other) <= 0.01 * one
        else:
            same = one == other
        if not same:
            yield {"what": what, "a": _told(one), "b": _told(other)}


def _conditions(result: Result, methods: set[str]) -> Iterator[tuple[str, Any]]:
    asked = {key: value for key, value in asdict(result.conditions).items() if key != "command"}
    groups = {"machine": asdict(result.machine), "model": asdict(result.model), "asked": asked}
    for method in result.contenders:
        if method.name in methods:
            groups[method.name] = {"strategy": method.strategy, **method.settings}
    for group, values in groups.items():
        for key, value in values.items():
            name = f"{group}: {key.replace('_', ' ')}"
            if isinstance(value, dict):
                yield from ((f"{name} {inner}", each) for inner, each in value.items())
            else:
                yield name, value
    yield "methods", [method.name for method in result.contenders]
    yield "prompts measured", len({run.row for run in result.runs})
    yield "failed", sorted({failure.contender for failure in result.failures})
    yield "interrupted", result.interrupted


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return NONE if text in (None, "") else str(text)


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    """Caveats: what to know before believing the verdicts."""
    baseline = next((c for c in found["contenders"] if c["contender"] == found["yardstick"]), None)
    if found["same_run"]:
        yield "A and B are the same run: nothing can differ; measure again for B"
    if found["other_prompts"]:
        yield f"left out, since their prompts differ: {', '.join(found['other_prompts'])}"
    for group in ("machine", "model"):
        if any(each["what"].startswith(f"{group}: ") for each in found["not_the_same"]):
            yield f"the {group} is not the same: changes can come from that, too"
    if baseline is None:
        yield (
            "without a baseline, a slower program cannot be told from a slower machine; measure"
            " both with hf among --strategies"
        )
        return
    raw = baseline["raw_ratio"]
    if raw and abs(raw - 1.0) > MARGIN:
        yield f"the baseline itself, {found['yardstick']}, changed by {_percent(raw)}"
    if not found["yardstick_is_foreign"]:
        yield (
            f"the baseline, {found['yardstick']}, is our own code: what changes all methods"
            " alike is not seen; measure both with hf among --strategies"
        )


def _findings(found: Mapping[str, Any]) -> Iterator[str]:
    """What it comes to, one line for each change and for each method that cannot be judged."""
    if found["other_work"]:
        work = ", ".join(found["other_work"])
        yield f"nothing is called slower or faster: A and B did other work ({work})"
    for name in found["missing"]:
        yield f"{name} is missing in B: it has answers in A only"
    for each in found["contenders"]:
        name, change, exact = each["contender"], each["change"], each["exact"]
        if change and change["verdict"] in (SLOWER, FASTER):
            yield f"{name} is {change['verdict']}: {_percent(change['ratio'])} time per token"
        if change and change["verdict"] == UNCLEAR:
            yield f"{name} is unclear; measure more prompts, or with a higher --repeat"
        if exact and not exact["settled"]:
            yield f"{name}: answers or steps differ between repeats of the same run"
        elif exact and exact["first_other_text"]:
            where = "first {row}, turn {turn}".format(**exact["first_other_text"])
            yield f"{name}: {exact['other_texts']} of {exact['answers']} answers differ, {where}"
    if found["verdict"] == EQUAL:
        yield "no time per token changed by more than noise"


def show(found: Mapping[str, Any], console: Console) -> None:
    """Print what is not the same, a row for each method, caveats and findings."""
    tables = []
    if differences := found["not_the_same"]:
        columns = [Column(title, number=False) for title in ("", "A", "B")]
        rows = [tuple(map(printable, each.values())) for each in differences]
        tables.append(Table("Not the same", tuple(columns), tuple(rows)))
    over = f" over {found['yardstick']}'s" if found["yardstick"] else ""
    methods = Table(
        "Time per token",
        (
            Column("", number=False),
            Column("ms/token", weight=3),
            Column("change", note=f"change: time per token{over}, median of the answers"),
            Column("95 %", weight=2),
            Column("verdict", number=False),
            Column("tok/step", weight=4),
            Column("other text", weight=1, note="other text: answers with other tokens"),
            Column("first token", weight=5),
            Column("memory", weight=6, note="memory: the peak"),
        ),
        tuple(_row(each, found["yardstick"]) for each in found["contenders"]),
    )
    left_out: set[str] = set()
    for table in (*tables, methods.without_empty()):
        console.print()
        left_out |= print_table(table, console)
    console.print()
    if left_out:
        names = ", ".join(sorted(left_out))
        line(console, f"without room here: {names}; a wider screen or --json has them", "dim")
    for note in found["notes"]:
        line(console, printable(f"note: {note}"), "yellow")
    for finding in found["findings"]:
        line(console, printable(finding), "bold")


def _row(each: Mapping[str, Any], baseline: str | None) -> tuple[str, ...]:
    from rich.filesize import decimal

    change, first, exact = each["change"], each["first_token_change"], each["exact"]
    without = "baseline" if each["contender"] == baseline else "no time to compare"
    interval = f"{change['pairs']} answers only" if change else NONE
    if change and change["low"] is not None:
        interval = f"{_percent(change['low'])} to {_percent(change['high'])}"
    changed = first and first["verdict"] in (SLOWER, FASTER)
    memory = each["peak_memory"]
    if memory and not each["memory_changed"]:
        memory = _ab(memory["b"], memory["b"])
    return (
        printable(each["contender"]),
        _both(each["seconds_per_token"], lambda seconds: f"{seconds * 1e3:.3g}"),
        _percent(change["ratio"]) if change else NONE,
        interval,
        (each["verdict"] or without).replace(UNRELATED, NONE),
        _both(exact and exact["tokens_per_step"], "{:.3f}".format),
        f"{exact['other_texts']} of {exact['answers']}" if exact else NONE,
        _percent(first["ratio"]) + (f" {first['verdict']}" if changed else "") if first else NONE,
        _both(memory, lambda size: decimal(int(size), precision=0)),
    )


def _both(pair: Mapping[str, float] | None, tell: Callable[[float], str]) -> str:
    """A figure in A and in B, once where both read alike."""
    if pair is None:
        return NONE
    a, b = tell(pair["a"]), tell(pair["b"])
    return a if a == b else f"{a} → {b}"


def _percent(ratio: float) -> str:
    return f"{round(100 * (ratio - 1.0), 1) + 0.0:+.1f} %"  # never "-0.0"
