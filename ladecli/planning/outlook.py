"""All modes on more and more GPUs, against plain decoding; and where more of them stop paying."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .cost import LOOKAHEAD, MODES, PLAIN, TENSOR, Setup, Step, step, uneven
from .request import MOST

PAYS = 0.10
"""Twice as many GPUs pay if they bring so many more tokens per second."""


@dataclass(frozen=True, slots=True)
class Row:
    """A mode on some GPUs.

    Attributes:
        gpus: how many.
        nodes: that these take.
        step: what a step would be; None where it is impossible.
        problem: why the model cannot be split so, in words; None where it can.
        needed: bytes of each GPU; None where the model cannot be split.
    """

    gpus: int
    nodes: int
    step: Step | None
    problem: str | None
    needed: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode on some GPUs that is possible.

    Attributes:
        mode: one of `MODES`.
        gpus: how many.
        step: what a step is.
    """

    mode: str
    gpus: int
    step: Step


@dataclass(frozen=True, slots=True)
class Stop:
    """Where more GPUs stop paying in a mode.

    Attributes:
        gpus: the most that pay.
        beyond: the next number in the table; None where all of them pay.
        gain: what doubling brings there, as a share: 0.06 is 6 %.
    """

    gpus: int
    beyond: int | None = None
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What was estimated.

    Attributes:
        setup: what for.
        asked: the number of GPUs that was asked for, if one was.
        rows: by mode, the fewest GPUs first.
        baseline: plain decoding on the fewest GPUs that hold the model; None where none do.
    """

    setup: Setup
    asked: int | None
    rows: dict[str, tuple[Row, ...]]
    baseline: Choice | None

    def speedup(self, row: Row) -> float | None:
        """Tokens per second over those of the baseline; None where a row is impossible."""
        if row.step is None or self.baseline is None:
            return None
        return row.step.speed / self.baseline.step.speed

    def efficiency(self, mode: str, row: Row) -> float | None:
        """Tokens per second of each GPU, over those of a mode on the fewest GPUs it can have.

        None where the row is impossible.
        """
        first = next(iter(self.possible(mode)), None)
        if row.step is None or first is None or first.step is None:
            return None
        return (row.step.speed / row.gpus) / (first.step.speed / first.gpus)

    def possible(self, mode: str) -> list[Row]:
        """The rows of a mode that are possible, the fewest GPUs first."""
        return [row for row in self.rows[mode] if row.step is not None]

    def stop(self, mode: str) -> Stop | None:
        """Where more GPUs stop paying; None where the mode is impossible for all numbers."""
        rows = self.possible(mode)
        if not rows:
            return None
        # An odd number that was asked for is no doubling of anything, unless it is all there is.
        doubled = [row for row in rows if row.gpus & (row.gpus - 1) == 0]
        rows = doubled if len(doubled) > 1 else rows
        for row, following in pairwise(rows):
            assert row.step is not None
            assert following.step is not None
            doublings = math.log2(following.gpus / row.gpus)
            gain = float((following.step.speed / row.step.speed) ** (1 / doublings)) - 1
            if gain < PAYS:
                return Stop(row.gpus, following.gpus, gain)
        return Stop(rows[-1].gpus)

    def best(self) -> Choice | None:
        """The fastest of at most the number that was asked for, or else of all.

        Of equals, that on the fewest GPUs, and plain decoding before drafts.
        """
        found = [
            Choice(mode, row.gpus, row.step)
            for mode, rows in self.rows.items()
            for row in rows
            if row.step is not None and row.gpus <= (self.asked or MOST)
        ]
        return max(
            found,
            key=lambda choice: (choice.step.speed, -choice.gpus, choice.mode == PLAIN),
            default=None,
        )

    def fewest(self) -> int | None:
        """The fewest GPUs that hold the model in any mode, up to what is planned for."""
        return fewest(self.setup)


def look(setup: Setup, counts: Sequence[int], asked: int | None = None) -> Outlook:
    """Estimate all modes.

    Args:
        setup: what for.
        counts: numbers of GPUs, ascending.
        asked: one of them, if one was asked for.
    """
    rows = {mode: tuple(_row(setup, mode, gpus) for gpus in counts) for mode in MODES}
    least = fewest(setup, PLAIN)
    baseline = None if least is None else Choice(PLAIN, least, step(setup, PLAIN, least))
    return Outlook(setup, asked, rows, baseline)


def fewest(setup: Setup, mode: str = TENSOR) -> int | None:
    """The fewest GPUs that hold the model; None where too many would be needed."""
    for gpus in range(1, MOST + 1):
        if _row(setup, mode, gpus).step is not None:
            return gpus
    return None


def _row(setup: Setup, mode: str, gpus: int) -> Row:
    nodes = setup.fabric.nodes(gpus)
    problem = None if mode == LOOKAHEAD else uneven(setup.shape, gpus)
    if problem is not None:
        return Row(gpus, nodes, None, problem, None)
    found = step(setup, mode, gpus)
    fits = found.needed <= setup.room
    return Row(gpus, nodes, found if fits else None, None, found.needed)
