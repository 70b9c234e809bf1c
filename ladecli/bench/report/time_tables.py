"""Where the time of a step goes, and how near that is to what the machine can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...metrics import ratio
from ...table import NONE, Column, Table
from ..result import TimeSpent
from ..wording import decimal, milliseconds, share
from .summary import Summary, host_seconds

PARTS = ("host", "forward", "verify", "view")
"""Of a step, in the order in which they are shown; the host drafts, lays out and learns."""
TITLES = {"verify": "verification", "view": "rendering"}
"""What a part is called, where it is not by its own name."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What the forward passes of one contender make of the machine.

    Attributes:
        contender: its name.
        bandwidth: bytes that have to be read, per second.
        arithmetic: operations that have to be done, per second.
        intensity: operations for each byte.
    """

    contender: str
    bandwidth: float
    arithmetic: float
    intensity: float


def parts_of(spent: TimeSpent) -> dict[str, float]:
    """Seconds of a step by part of `PARTS`."""
    seconds = {part: spent.seconds.get(part, 0.0) for part in PARTS}
    seconds["host"] += host_seconds(spent)
    return seconds


def reached(spent: TimeSpent) -> Reached | None:
    """Rates of the forward pass; None where it was not timed or nothing had to be read."""
    forward = spent.seconds.get("forward", 0.0)
    if forward <= 0.0 or spent.read_bytes <= 0.0:
        return None
    return Reached(
        spent.contender,
        spent.read_bytes / forward,
        spent.operations / forward,
        spent.operations / spent.read_bytes,
    )


def tables(summary: Summary) -> Iterator[Table]:
    """Time by part, and the rates reached; nothing where it was not measured."""
    if not summary.time_spent:
        return
    yield _parts(summary, shares=True)
    if any(reached(spent) for spent in summary.time_spent):
        yield _rates(summary)


def details(summary: Summary) -> Iterator[Table]:
    """Milliseconds of every part of a step."""
    if summary.time_spent:
        yield _parts(summary, shares=False)


def _parts(summary: Summary, shares: bool) -> Table:
    columns = (
        Column("", number=False),
        Column("ms/step"),
        *(
            Column(TITLES.get(part, part), weight=0 if part == "forward" else number)
            for number, part in enumerate(PARTS, start=1)
        ),
    )
    rows = []
    for spent in summary.time_spent:
        seconds = parts_of(spent)
        total = sum(seconds[part] for part in PARTS)
        cells = (
            share(ratio(seconds[part], total)) if shares else milliseconds(seconds[part])
            for part in PARTS
        )
        rows.append((summary.label(spent.contender), milliseconds(total), *cells))
    title = "Share of a step's time" if shares else "Milliseconds of a step"
    note = (
        "from answers of their own beside the timed ones; host: drafting, laying out and learning"
    )
    return Table(title, columns, tuple(rows), (note,) if shares else ())


def _rates(summary: Summary) -> Table:
    ceiling = summary.result.ceiling
    is_cpu = summary.result.machine.kind == "cpu"
    columns = (
        Column("", number=False),
        Column("width", weight=3),
        Column("read per second"),
        Column("operations per second", weight=1),
        Column("operations per byte", weight=4),
    )
    rows = []
    for spent in summary.time_spent:
        if (found := reached(spent)) is None:
            continue
        rows.append(
            (
                summary.label(spent.contender),
                decimal(spent.width),
                f"{_giga(found.bandwidth)} GB/s"
                + (_of(found.bandwidth, ceiling.bandwidth) if ceiling else ""),
                f"{_giga(found.arithmetic)} GFLOP/s"
                + (_of(found.arithmetic, ceiling.arithmetic) if ceiling else ""),
                decimal(found.intensity),
            )
        )
    notes = ["of the forward pass alone; what it has to read: weights, keys and values, once"]
    if ceiling is not None:
        notes.append(
            f"100 % is what this machine reached in the same run: a copy {_giga(ceiling.bandwidth)}"
            f" GB/s, a product of matrices {_giga(ceiling.arithmetic)} GFLOP/s"
            f"{'; its caches can read faster than a copy' if is_cpu else ''}"
        )
    return Table("How near to what the machine can do", columns, tuple(rows), tuple(notes))


def _giga(rate: float) -> str:
    return decimal(rate / 1e9) if rate > 0 else NONE


def _of(rate: float, most: float) -> str:
    return f" ({share(rate / most)})" if most > 0 else ""
