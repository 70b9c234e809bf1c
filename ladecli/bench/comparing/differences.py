"""What is not the same about two benchmarks: machine, model, prompts, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ...table import NONE
from ..result import Machine, Result
from ..wording import label, listed_some

_NAMES_SHOWN = 5
SAME_MEMORY = 0.01
"""By so much of it may a machine's memory differ from one start to the next."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same: "machine: threads", and how it is in A and in B."""

    what: str
    a: str
    b: str


def differences(a: Result, b: Result) -> tuple[Difference, ...]:
    """Everything that could explain other figures but the program's code, weightiest first."""
    found = [
        *_fields("machine", a.machine, _with_memory_of(a.machine, b.machine)),
        *_fields("model", a.model, b.model),
        *_fields("asked", a.conditions, b.conditions, skip=("command",)),
        *_settings(a, b),
        *_only("contenders", *([label(c) for c in each.contenders] for each in (a, b))),
        *_only("rows", *([run.row for run in each.runs] for each in (a, b))),
    ]
    pairs = {
        "interrupted": (_yes(a.interrupted), _yes(b.interrupted)),
        "speed-ups over": (_named(a, a.reference), _named(b, b.reference)),
        "failed": (_failed(a), _failed(b)),
    }
    found += [Difference(what, *pair) for what, pair in pairs.items() if pair[0] != pair[1]]
    return tuple(found)


def _with_memory_of(machine: Machine, other: Machine) -> Machine:
    """The other machine, with the memory of this one if that differs by what a system takes for
    itself when it starts."""
    ours, theirs = machine.memory, other.memory
    return replace(other, memory=ours) if abs(ours - theirs) <= SAME_MEMORY * ours else other


def _fields(room: str, a: Any, b: Any, skip: Sequence[str] = ()) -> Iterator[Difference]:
    """The fields of two values of the same class that differ; mappings key by key."""
    for field in fields(a):
        if field.name in skip:
            continue
        ours, theirs = getattr(a, field.name), getattr(b, field.name)
        name = field.name.replace("_", " ")
        if isinstance(ours, Mapping):
            yield from _items(f"{room}: {name}", ours, theirs)
        elif ours != theirs:
            yield Difference(f"{room}: {name}", _told(ours), _told(theirs))


def _items(what: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for key in dict.fromkeys([*a, *b]):
        ours, theirs = a.get(key), b.get(key)
        if ours != theirs:
            yield Difference(f"{what} {key}", _told(ours), _told(theirs))


def _settings(a: Result, b: Result) -> Iterator[Difference]:
    """Of contenders that are in both."""
    theirs = {contender.name: contender for contender in b.contenders}
    for ours in a.contenders:
        if ours.name in theirs:
            other = theirs[ours.name]
            if ours.strategy != other.strategy:
                yield Difference(f"{label(ours)}: strategy", ours.strategy, other.strategy)
            yield from _items(f"{label(ours)}:", ours.settings, other.settings)


def _only(what: str, a: Sequence[str], b: Sequence[str]) -> Iterator[Difference]:
    """Names that one of the two has alone."""
    ours, theirs = dict.fromkeys(a), dict.fromkeys(b)
    if ours.keys() != theirs.keys():
        yield Difference(
            f"{what} in one only",
            _listed([name for name in ours if name not in theirs]),
            _listed([name for name in theirs if name not in ours]),
        )


def _listed(names: Sequence[str]) -> str:
    return listed_some(names, _NAMES_SHOWN) or NONE


def _failed(result: Result) -> str:
    failed = (
        f"{_named(result, each.contender)}{f' on {each.row}' if each.row else ''}"
        for each in result.failures
    )
    return _listed(list(dict.fromkeys(failed)))


def _named(result: Result, name: str | None) -> str:
    """What the contender of a name is called."""
    return next((label(each) for each in result.contenders if each.name == name), name or NONE)


def _told(value: object) -> str:
    if isinstance(value, bool):
        return _yes(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.10g}"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return NONE if value is None or value == "" else str(value)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
