"""`lade bench compare`: what changed between two results of `lade bench`, beyond noise.

Tokens, steps and texts are compared exactly.  Times are noisy, so three things are kept out:

- Drift of the machine: a time is divided by that of a baseline, transformers' `generate`, for the
  same prompt in the same round.  The baseline is not our code: where it changed, the machine did.
- Disturbed answers: answers are compared one by one, by medians and Wilcoxon's signed-rank test.
- Luck of the process, such as where code and data lie in memory, which no repeat within a process
  shows: a change is called slower or faster only where it exceeds `MARGIN`.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import UsageError, printable
from ..metrics import ratio
from ..options.commands import CompareRequest
from ..specs.memory import format_bytes
from ..view.screen import NONE, Column, Table
from ..view.terminal import Terminal
from . import render
from .render import Document
from .result import PLAIN, STOCK, STOCK_COMPILED, STOCK_LOOKUP, Result, Run, read
from .statistics import EQUAL, FASTER, SLOWER, UNCLEAR, judge, tokens_per_step

SCHEMA = "lade-compare/1"
UNRELATED, MIXED = "unrelated", "mixed"
"""A and B did other work; overall, some methods are slower and some faster."""

MARGIN = 0.04
"""Relative change of a time that two processes of the same program can show: five times its
standard deviation on a quiet machine."""
MACHINE_MARGIN = 0.15
"""The same without a baseline: clock rates, temperature and other load add to it."""
SHORTEST = 1e-12
"""Seconds per token; no machine takes less, and a ratio of such times may not be a number."""
WORK = ("max_new_tokens", "ignore_eos", "template", "sampling")
"""Conditions that change the answers."""
BASELINES = (STOCK, STOCK_COMPILED, STOCK_LOOKUP)
"""transformers' own code, the steadiest first."""

Pairs: TypeAlias = Sequence[tuple[Run, Run]]
"""Answers of A and of B with the same method, row, turn and repeat."""


def run(request: CompareRequest) -> int:
    """Compare the results in two files; print tables, or with --json an object.

    Returns:
        The exit code: 0, or 1 with --fail-on-slower where a method became slower, failed or is
        missing.
    """
    files = {"a": request.a, "b": request.b}
    results = {side: read(Path(file)) for side, file in files.items()}
    found, terminal = compare(**results), Terminal(request.color)
    if request.json:
        named = {s: {"file": files[s], "created": results[s].created} for s in files}
        # ASCII only: names in the files must not reach a terminal as control sequences.
        print(json.dumps({"schema": SCHEMA, **named, **found}, allow_nan=False))
    else:
        sides = [
            f"{side.upper()}: {files[side]}, {each.model.name} on {each.machine.device},"
            f" {each.created}"
            for side, each in results.items()
        ]
        document = _document(found, printable("\n".join(sides)))
        render.terminal(document, terminal.console(sys.stdout))
    if request.fail_on_slower and found["other_work"]:
        what = ", ".join(found["other_work"])
        raise UsageError(
            f"--fail-on-slower cannot tell: A and B did other work ({what}); measure both alike"
        )
    failed = [
        f"{each['contender']} became slower"
        for each in found["contenders"]
        if each["verdict"] == SLOWER
    ]
    failed += [f"{name} is missing in B" for name in found["missing"]]
    failed += [f"{name} failed in B" for name in found["failed"]]
    if not (request.fail_on_slower and failed):
        return 0
    terminal.say(f"--fail-on-slower: {', '.join(failed)}")
    return 1


def compare(a: Result, b: Result) -> dict[str, Any]:
    """Compare what is in both: schema `lade-compare/1`, without the files.

    The keys are an interface.  "yardstick" is the name of the baseline; "raw_ratio" is the change
    by the clock, "change" the one over the baseline; "exact" counts answers with other texts or
    steps.  "failed" are those that did in B, on prompts that A answers.

    Raises:
        UsageError: nothing is in both.
    """
    asked = a.conditions, b.conditions
    other_work = [key for key in WORK if getattr(asked[0], key) != getattr(asked[1], key)]
    if (a.model.name, a.model.parameters) != (b.model.name, b.model.parameters):
        other_work.insert(0, "model")
    # With another model or template every prompt has other ids.
    pairs, other_prompts = _pair_answers(a, b, not {"model", "template"} & {*other_work})
    if not any(pairs.values()):
        raise UsageError(
            "nothing to compare: no method answered the same prompt in A and in B; measure both"
            " with the same --strategies and --prompts"
        )
    both = [method.name for method in a.methods if pairs.get(method.name)]
    candidates = (*BASELINES, PLAIN) if len(both) > 1 else ()
    baseline = next((name for name in candidates if name in both), None)
    methods = [_compare_method(name, pairs, baseline) for name in both]
    for each in methods if other_work else ():
        each["exact"] = None
        if each["change"]:
            each["verdict"] = each["change"]["verdict"] = UNRELATED
    verdicts = {each["verdict"] for each in methods}
    order = (UNRELATED, SLOWER, FASTER, UNCLEAR, EQUAL)
    overall = next((each for each in order if each in verdicts), UNCLEAR)
    found: dict[str, Any] = {
        "verdict": MIXED if {SLOWER, FASTER} <= verdicts else overall,
        "yardstick": baseline,
        "same_run": a.runs == b.runs,
        "not_the_same": list(_differences(a, b, both)),
        "other_work": [each.replace("_", " ") for each in other_work],
        "other_prompts": sorted(other_prompts),
        "missing": [name for name, found_pairs in pairs.items() if not found_pairs],
        "failed": _newly_failed(a, b),
        "contenders": methods,
    }
    return {**found, "notes": list(_notes(found))}


def _pair_answers(
    a: Result, b: Result, same_prompts: bool
) -> tuple[dict[str, list[tuple[Run, Run]]], set[str]]:
    """Answers of A with those of B, by method of A, and rows with answers to other prompts in B.

    With `same_prompts` the latter are left out.  In a conversation that are the prompts after the
    first answer that differs, too.
    """
    theirs = {(run.method, *run.key): run for run in b.runs}
    pairs: dict[str, list[tuple[Run, Run]]] = defaultdict(list)
    others: set[str] = set()
    for run in a.runs:
        other = theirs.get((run.method, *run.key))
        if other and same_prompts and run.prompt_digest != other.prompt_digest:
            others.add(run.row)
        else:
            pairs[run.method] += [(run, other)] if other else []
    return pairs, others


def _newly_failed(a: Result, b: Result) -> list[str]:
    """Methods that failed in B on a prompt that they answered in A."""
    answered = {(run.method, run.row) for run in a.runs}
    answered -= {(each.method, each.row) for each in a.failures}
    return sorted({each.method for each in b.failures if (each.method, each.row) in answered})


def _compare_method(
    name: str, by_method: Mapping[str, Pairs], baseline: str | None
) -> dict[str, Any]:
    """One method in A and in B."""
    pairs, change = by_method[name], None
    logs = _logs(pairs)
    if name != baseline:
        drift = _logs(by_method[baseline]) if baseline else dict.fromkeys(logs, 0.0)
        sample = [log - drift[key] for key, log in logs.items() if key in drift]
        change = judge(sample, MARGIN if baseline else MACHINE_MARGIN) if sample else None
    sides = list(zip(*pairs, strict=True))
    peaks = [max(run.peak_memory or 0 for run in side) for side in sides]
    return {
        "contender": name,
        "verdict": change and change.verdict,
        "seconds_per_token": _ab(_seconds_per_token, sides),
        "first_seconds": _ab(lambda side: statistics.median(r.first_seconds for r in side), sides),
        "peak_memory": _ab(int, peaks) if all(peaks) else None,
        "raw_ratio": math.exp(statistics.median(logs.values())) if logs else None,
        "change": change and asdict(change),
        "exact": {
            "tokens_per_step": _ab(tokens_per_step, sides),
            "answers": len(pairs),
            "other_texts": sum(a.digest != b.digest for a, b in pairs),
            "other_steps": sum(a.steps != b.steps for a, b in pairs),
        },
    }


def _logs(pairs: Pairs) -> dict[tuple[str, int, int], float]:
    """log(seconds per token of B / of A) of each answer with more than one step."""
    seconds = {a.key: (_seconds_per_token([a]), _seconds_per_token([b])) for a, b in pairs}
    return {key: math.log(b / a) for key, (a, b) in seconds.items() if min(a, b) > SHORTEST}


def _seconds_per_token(runs: Sequence[Run]) -> float:
    """After the first step; 0 where that was the only one."""
    return ratio(sum(run.decode_seconds for run in runs), sum(run.decoded for run in runs))


def _ab(figure: Callable[[Any], float], sides: Sequence[Any]) -> dict[str, float]:
    return {"a": figure(sides[0]), "b": figure(sides[1])}


def _differences(a: Result, b: Result, methods: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the conditions that differ and could explain other figures: "machine: threads"."""
    groups = a.circumstances, b.circumstances
    left_out = {"run", *(each.name for of in (a, b) for each in of.methods)} - {*methods}
    for group in dict.fromkeys([*groups[0], *groups[1]]):
        if group in left_out:
            continue
        one, other = (each.get(group, {}) for each in groups)
        for key in dict.fromkeys([*one, *other]):
            if one.get(key) != other.get(key):
                what = f"{group}: {key}".replace("_", " ")
                yield {"what": what, "a": str(one.get(key)), "b": str(other.get(key))}


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings that a reader of the verdicts needs."""
    name = found["yardstick"]
    if found["same_run"]:
        yield "A and B are the same run: nothing can differ; measure again for B"
    for key, what in (
        ("other_work", "nothing is called slower or faster, since A and B did other work"),
        ("missing", "missing in B"),
        ("failed", "failed in B on prompts that A answers"),
        ("other_prompts", "answers are left out, since their prompts differ, of"),
    ):
        if found[key]:
            yield f"{what}: {', '.join(found[key])}"
    if name not in BASELINES:
        yield (
            f"the baseline is {name or 'missing'}: without transformers' code, a slower program"
            " may be a slower machine; measure both with hf among --strategies"
        )
    raw = next((e["raw_ratio"] for e in found["contenders"] if e["contender"] == name), None)
    if raw and abs(raw - 1.0) > MARGIN:
        yield f"the baseline itself, {name}, changed by {_percent(raw)} in the median answer"


def _document(found: Mapping[str, Any], title: str) -> Document:
    """What is not the same, a row for each method, notes and the verdict."""
    over = f" over {found['yardstick']}'s" if found["yardstick"] else ""
    columns = (
        Column("", number=False),
        Column("ms/token", weight=3),
        Column("change", note=f"change: time per token{over}, median of the answers"),
        Column("95 %", weight=2, note="95 %: its bootstrap interval, for these prompts"),
        Column("verdict", number=False),
        Column("tok/step", weight=4),
        Column("other text", weight=1, note="other text: answers with other tokens"),
        Column("first ms", weight=5),
        Column("memory", weight=6, note="memory: peak of the process, by all methods"),
    )
    rows = tuple(_row(each, found["yardstick"]) for each in found["contenders"])
    tables = [Table("Time per token", columns, rows).without_empty()]
    if different := tuple(tuple(map(printable, each.values())) for each in found["not_the_same"]):
        heads = tuple(Column(head, number=False) for head in ("", "A", "B"))
        tables.append(Table("Not the same", heads, different))
    changed = [
        f"{each['contender']} is {each['verdict']}: {_percent(each['change']['ratio'])} time"
        for each in found["contenders"]
        if each["verdict"] in (SLOWER, FASTER)
    ]
    fix = "; measure more prompts, or with a higher --repeat"
    unclear = fix if found["verdict"] == UNCLEAR and not found["same_run"] else ""
    verdicts = changed or [f"times per token are {found['verdict']}{unclear}"]
    return Document(
        title=title,
        headline=tuple(map(printable, verdicts)),
        caveats=tuple(map(printable, found["notes"])),
        tables=tuple(tables),
    )


def _row(each: Mapping[str, Any], baseline: str | None) -> tuple[str, ...]:
    change, exact = each["change"], each["exact"]
    interval = NONE
    if change and change["low"] is not None:
        interval = f"{_percent(change['low'])} to {_percent(change['high'])}"
    return (
        printable(each["contender"]),
        _both(each["seconds_per_token"], lambda seconds: f"{seconds * 1e3:.3g}"),
        _percent(change["ratio"]) if change else NONE,
        interval,
        each["verdict"] or ("baseline" if each["contender"] == baseline else NONE),
        _both(exact and exact["tokens_per_step"], "{:.3f}".format),
        f"{exact['other_texts']} of {exact['answers']}" if exact else NONE,
        _both(each["first_seconds"], lambda seconds: f"{seconds * 1e3:.3g}"),
        _both(each["peak_memory"], format_bytes),
    )


def _both(pair: Mapping[str, float] | None, tell: Callable[[float], str]) -> str:
    """A figure in A and in B, once where both read alike."""
    if pair is None:
        return NONE
    a, b = tell(pair["a"]), tell(pair["b"])
    return a if a == b else f"{a} → {b}"


def _percent(factor: float) -> str:
    return f"{round(100 * (factor - 1.0), 1) + 0.0:+.1f} %"  # never "-0.0"
