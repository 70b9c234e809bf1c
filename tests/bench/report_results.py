"""Results that reports have to cope with: sweeps of all kinds, hostile names, parts missing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from ladecli.bench.result import Conditions, Contender, Failure, Result, Skipped

from . import makers

HOSTILE = '[red]<b>"x"|`$\\alpha$`\x1b[31m & 本*_\n# no'
"""What a name may hold: markup of Rich, HTML, Markdown and TeX, an escape, and a line's end."""
_SPEED = {"3": 1.05, "5": 1.2, "10": 1.4, "15": 1.3}


def conditions(**changes: object) -> Conditions:
    fields: dict[str, object] = {
        "prompts": "builtin", "rows": 9, "repeat": 3, "max_new_tokens": 32, "ignore_eos": False,
        "template": True, "sampling": {}, "profile": "cpu", "sweep": {}, "command": "lade bench",
    }  # fmt: skip
    return Conditions(**{**fields, **changes})


def grid(axes: Mapping[str, Sequence[str]], rows: int = 3, missing: Sequence[int] = ()) -> Result:
    """A sweep over any axes in which wider windows feed more tokens.

    Args:
        axes: values by axis.
        rows: prompts.
        missing: cells without runs, by number.
    """
    contenders = [Contender("autoregressive", "autoregressive")]
    speeds = {"autoregressive": 1.0}
    for values in itertools.product(*axes.values()):
        cell = dict(zip(axes, values, strict=True))
        name = "lookahead " + " ".join(f"{axis}={value}" for axis, value in cell.items())
        # Without a window there are no n-grams.
        settings = {"ngram": 5} if "W" in axes else {}
        contenders.append(Contender(name, "lookahead", settings, cell))
        speeds[name] = _SPEED.get(cell.get("W", ""), 1.1)
    made = makers.result(
        speeds, rows=rows, repeats=2, contenders=tuple(contenders), time_spent=(),
        conditions=conditions(sweep={k: tuple(v) for k, v in axes.items()}, rows=rows),
    )  # fmt: skip
    gone = {contenders[1 + number].name for number in missing}
    cells = {each.name: each.cell for each in contenders}
    runs = []
    for run in made.runs:
        if run.contender not in gone:
            width = 1 + int(cells[run.contender].get("W", "0")) * 4
            runs.append(dataclasses.replace(run, fed=run.steps * width))
    return dataclasses.replace(made, runs=tuple(runs))


def contexts(made_for: int = 32768, rows: int = 9) -> Result:
    """A sweep over the length of the context, in which memory and steps grow with it.

    Args:
        made_for: tokens that the model was made for.
        rows: texts, in turn of the lengths.
    """
    made = makers.result({"autoregressive": 1.0, "lookahead": 1.4}, rows=rows, repeats=2)
    lengths = dict(zip(makers.CATEGORIES, ("1024", "4096", "16384"), strict=True))
    runs = tuple(
        dataclasses.replace(
            run, category=lengths[run.category], prompt_tokens=int(lengths[run.category]),
            peak_memory=(300 << 20) + 6144 * int(lengths[run.category]),
        )
        for run in made.runs
    )  # fmt: skip
    sweep = {"context": tuple(lengths.values())}
    model = dataclasses.replace(made.model, context=32768, made_for=made_for)
    asked = conditions(sweep=sweep, rows=rows)
    return dataclasses.replace(made, runs=runs, model=model, conditions=asked)


def hostile() -> Result:
    """A result with the same bad name everywhere where a user has a say."""
    made = makers.result({"autoregressive": 1.0, "lookahead": 1.4}, rows=6)
    contenders = (made.contenders[0], Contender(HOSTILE, "lookahead", {"sources": HOSTILE}))
    runs = tuple(
        dataclasses.replace(
            run,
            contender=HOSTILE if run.contender == "lookahead" else run.contender,
            category=HOSTILE if run.category == "chat" else run.category,
            row=f"{HOSTILE}{run.row}",
            accepted={HOSTILE: 3},
        )
        for run in made.runs
    )
    spent = tuple(
        dataclasses.replace(each, contender=name)
        for each, name in zip(made.time_spent, ("autoregressive", HOSTILE), strict=True)
    )
    return dataclasses.replace(
        made, contenders=contenders, runs=runs, time_spent=spent,
        model=dataclasses.replace(made.model, name=HOSTILE),
        machine=dataclasses.replace(made.machine, device=HOSTILE, driver=HOSTILE),
        conditions=conditions(prompts=HOSTILE, command=HOSTILE),
        skipped=tuple(Skipped(f"{HOSTILE}{n}", HOSTILE) for n in range(9)),
        failures=(Failure(HOSTILE, HOSTILE, HOSTILE),),
    )  # fmt: skip


def without_runs() -> Result:
    """A benchmark that was interrupted before anything was measured."""
    return makers.result(rows=0, interrupted=True, time_spent=(), ceiling=None)


def bare() -> Result:
    """No reference, no times of parts, no ceiling, no memory, nothing accepted."""
    made = makers.result({"lookahead": 1.4, "hf": 0.8}, time_spent=(), ceiling=None)
    runs = tuple(
        dataclasses.replace(run, accepted={}, peak_memory=None, fed=None) for run in made.runs
    )
    return dataclasses.replace(made, runs=runs)


def one_step_answers() -> Result:
    """Answers of one token, which have no step behind the first."""
    made = makers.result({"autoregressive": 1.0, "lookahead": 1.4})
    runs = tuple(
        dataclasses.replace(run, tokens=1, steps=1, fed=0, step_seconds=(), accepted={})
        for run in made.runs
    )
    return dataclasses.replace(made, runs=runs)


def differing(count: int) -> Result:
    """A result in which so many answers of lookahead are others."""
    made = makers.result({"autoregressive": 1.0, "lookahead": 1.5, "hf": 0.8})
    runs = list(made.runs)
    ours = [number for number, run in enumerate(runs) if run.contender == "lookahead"]
    for number in ours[:count]:
        runs[number] = dataclasses.replace(runs[number], digest="other")
    return dataclasses.replace(made, runs=tuple(runs))


def failed() -> Result:
    """A contender that failed on two rows of nine, one that never began, one without a clock."""
    made = makers.result({"autoregressive": 1.0, "lookahead": 1.5, "paper": 0.8})
    gone = {("lookahead", "row-1"), ("lookahead", "row-4")}
    runs = tuple(run for run in made.runs if (run.contender, run.row) not in gone)
    return dataclasses.replace(
        made, runs=runs,
        failures=(
            *(Failure(name, row, "out of memory") for name, row in sorted(gone)),
            Failure("lookahead W=9", "", "budget too small"),
            Failure("paper", "", "where its time goes: out of memory"),
        ),
    )  # fmt: skip


ALL = {
    "usual": makers.result,
    "one row": lambda: makers.result(rows=1, repeats=1),
    "interrupted": lambda: makers.result(rows=4, interrupted=True),
    "one contender": lambda: makers.result({"autoregressive": 1.0}),
    "sampled": lambda: makers.result(
        conditions=conditions(sampling={"temperature": 0.8, "seed": 1.0})
    ),
    "without runs": without_runs,
    "bare": bare,
    "one step": one_step_answers,
    "hostile": hostile,
    "sweep": lambda: grid({"W": ("3", "5", "10", "15"), "N": ("3", "5")}, missing=(2,)),
    "three axes": lambda: grid({"N": ("3", "5"), "W": ("3", "5"), "G": ("3", "5")}),
    "one axis": lambda: grid({"W": ("3", "5", "10")}),
    "names": lambda: grid({"dtype": ("float32", "bfloat16"), "attention": ("sdpa", "flash")}),
    "all cells missing": lambda: grid({"W": ("3", "5"), "N": ("3", "5")}, missing=range(4)),
    "contexts": contexts,
    "failed": failed,
}
"""A maker of each, by what is special about it."""
