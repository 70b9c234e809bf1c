"""Two benchmarks side by side: what changed exactly, and which times by more than noise.

What is counted (tokens, steps, answers) is the same in every run of the same thing, so any
difference is real.  Times are noisy in three ways, and each has its remedy:

- The machine is faster on one day than on the next, for all contenders.  So a contender's time is
  taken over that of a yardstick, transformers' own `generate`, for the same prompt in the same
  round, minutes of drift included.  That is not our code: where it changed, the machine did.
- Single answers are disturbed.  So estimates are of the kind that outliers hardly move.
- Each process has its own luck, which none of its repeats shows.  An allowance for it is a part of
  every interval (`change.PROCESS`).

Where A and B did other work (another model, longer answers), a change of the times says nothing
about the program: it is shown, and no verdict is given.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from ...metrics import ratio
from ..result import STOCK_COMPILED, Result, Run
from .change import MACHINE, PROCESS, Change, hodges_lehmann, judge
from .differences import differences
from .pairing import Key, Keyed, Paired, pair_up, per_token
from .values import Compared, Comparison, Counted, Pair

_WORK = ("max_new_tokens", "ignore_eos", "template", "sampling")
"""Conditions that answers depend on."""


def compare(a: Result, b: Result) -> Comparison:
    """Compare what is in both.

    Raises:
        UsageError: nothing is.
    """
    paired = pair_up(a, b)
    other_work = _other_work(a, b)
    greedy = not a.conditions.sampled
    decode = _changes(paired, per_token)
    first = _changes(paired, lambda run: run.first_seconds)
    found = []
    for contender in paired.contenders:
        name = contender.name
        ours, theirs = paired.ours[name], paired.theirs[name]
        found.append(
            Compared(
                contender,
                Pair(_seconds_per_token(ours), _seconds_per_token(theirs)),
                _steps(ours, theirs),
                _raw(paired, name),
                decode.get(name),
                first.get(name),
                None if other_work else _counted(ours, theirs, greedy),
                _memory(ours, theirs),
            )
        )
    return Comparison(
        paired.yardstick,
        differences(a, b),
        other_work,
        a.runs == b.runs,
        tuple(sorted(paired.other_prompts)),
        paired.missing,
        min(a.conditions.repeat, b.conditions.repeat),
        tuple(name for name, each in (("A", a), ("B", b)) if _compiled(each)),
        tuple(found),
    )


def _compiled(result: Result) -> bool:
    """Whether transformers' compiled steps were in memory."""
    return any(each.strategy == STOCK_COMPILED for each in result.contenders)


def _other_work(a: Result, b: Result) -> tuple[str, ...]:
    """Why the answers of both cannot be the same."""
    same_model = (a.model.name, a.model.parameters) == (b.model.name, b.model.parameters)
    asked = (
        each.replace("_", " ")
        for each in _WORK
        if getattr(a.conditions, each) != getattr(b.conditions, each)
    )
    return (*([] if same_model else ["the model"]), *asked)


def _changes(paired: Paired, time: Callable[[Run], float]) -> dict[str, Change]:
    """Changes of a time over the yardstick's, judged together."""
    # Two processes, and in each of them two contenders with luck of their own.
    spread = math.sqrt(2.0) * MACHINE if paired.yardstick is None else 2.0 * PROCESS
    return judge(paired.samples(time), spread)


def _raw(paired: Paired, name: str) -> float | None:
    changes = list(paired.changes(name, per_token).values())
    return math.exp(hodges_lehmann(changes)[0]) if changes else None


def _counted(ours: Keyed, theirs: Keyed, greedy: bool) -> Counted:
    """Exact figures of two sides with the same keys.

    Behind a turn that differs, the conversation is another one, and so are its prompts.
    """
    parted: set[tuple[str, int]] = set()
    first: tuple[str, int] | None = None
    keys: list[Key] = []
    texts = 0
    for key in sorted(ours, key=lambda key: key[1]):  # stable: rows stay in order
        row, turn, repeat = key
        if (row, repeat) in parted:
            continue
        keys.append(key)
        if ours[key].digest != theirs[key].digest:
            parted.add((row, repeat))
            texts += 1
            first = first or (row, turn)
    return Counted(
        Pair(_tokens_per_step(ours, keys), _tokens_per_step(theirs, keys)),
        len(keys),
        sum(ours[key].steps != theirs[key].steps for key in keys),
        sum(dict(ours[key].accepted) != dict(theirs[key].accepted) for key in keys),
        texts,
        first,
        not greedy or (_settled(ours) and _settled(theirs)),
    )


def _settled(runs: Keyed) -> bool:
    """Whether every answer and its number of steps are the same in all repeats."""
    seen: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for (row, turn, _repeat), run in runs.items():
        seen[row, turn].add((run.digest, run.steps))
    return all(len(kinds) == 1 for kinds in seen.values())


def _tokens_per_step(runs: Keyed, keys: list[Key]) -> float:
    return ratio(sum(runs[key].tokens for key in keys), sum(runs[key].steps for key in keys))


def _seconds_per_token(runs: Keyed) -> float:
    return ratio(
        sum(run.decode_seconds for run in runs.values()), sum(run.decoded for run in runs.values())
    )


def _steps(ours: Keyed, theirs: Keyed) -> Pair | None:
    steps = [[s for run in runs.values() for s in run.step_seconds] for runs in (ours, theirs)]
    if not all(steps):
        return None
    return Pair(float(np.median(steps[0])), float(np.median(steps[1])))


def _memory(ours: Keyed, theirs: Keyed) -> Pair | None:
    peaks = [
        max((run.peak_memory for run in runs.values() if run.peak_memory is not None), default=None)
        for runs in (ours, theirs)
    ]
    return Pair(peaks[0], peaks[1]) if peaks[0] is not None and peaks[1] is not None else None
