"""Tokens per step by the number of ranks and the width of each, from a table of measurements."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise

from .. import toml
from ..errors import UsageError
from .checked import Table

FILE = "growth.toml"
BEYOND = 0.5
"""Beyond the measured ranks, every doubling brings this share of what the one before it brought."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured at one width.

    Attributes:
        model: that said the text.
        budget: tokens in a step of every rank.
        ranks: ascending from 1.
        tokens_per_step: for each of `ranks`.
        origin: how it was measured.
    """

    model: str
    budget: int
    ranks: tuple[int, ...]
    tokens_per_step: tuple[float, ...]
    origin: str

    def at(self, ranks: int) -> float:
        """Tokens per step of so many ranks: between measured ones by the logarithm."""
        values = self.tokens_per_step
        if ranks <= self.ranks[-1]:
            return _line(self.ranks, values, ranks)
        gain = 0.0
        if len(values) > 1:
            gain = (values[-1] - values[-2]) / math.log2(self.ranks[-1] / self.ranks[-2])
        doublings = math.log2(ranks / self.ranks[-1])
        # The sum of a geometric series, for parts of a doubling too.
        return values[-1] + gain * BEYOND * (1 - float(BEYOND**doublings)) / (1 - BEYOND)


@dataclass(frozen=True, slots=True)
class Growth:
    """Tokens per step on one kind of text.

    Attributes:
        text: its name.
        rows: by width, the narrowest first.
    """

    text: str
    rows: tuple[Row, ...]

    def tokens(self, ranks: int, budget: int) -> float:
        """Tokens per step of so many ranks that feed `budget` tokens each.

        A step of one token yields one; between measured widths the logarithm of the width counts,
        and beyond the widest nothing is added.
        """
        widths = (1, *(row.budget for row in self.rows))
        values = (1.0, *(row.at(ranks) for row in self.rows))
        return _line(widths, values, min(budget, widths[-1]))

    @property
    def widest(self) -> int:
        """The widest step that was measured."""
        return self.rows[-1].budget

    @property
    def most_ranks(self) -> int:
        """The most ranks that were measured at every width."""
        return min(row.ranks[-1] for row in self.rows)


def growth_of(text: str | None = None) -> Growth:
    """The table for a kind of text; None for the first one.

    Raises:
        UsageError: nothing was measured on a text of this name.
    """
    tables = shipped()
    if text is None:
        return next(iter(tables.values()))
    if text not in tables:
        names = ", ".join(tables)
        raise UsageError(f"unknown text {text!r}; tokens per step are known for {names}")
    return tables[text]


@cache
def shipped() -> dict[str, Growth]:
    """The tables that come with this program, by text."""
    return parse(resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8"))


def parse(text: str) -> dict[str, Growth]:
    """Tables from the text of a file, by the names of the texts that were measured.

    Raises:
        UsageError: the message names the row and what is wrong with it.
    """
    found: dict[str, list[Row]] = {}
    for table in Table(FILE, toml.loads(text)).tables("measured"):
        table.only("text", "model", "budget", "ranks", "tokens_per_step", "origin")
        row = Row(
            table.text("model"),
            table.whole("budget"),
            table.wholes("ranks"),
            table.numbers("tokens_per_step"),
            table.text("origin"),
        )
        _check(row, table.where)
        found.setdefault(table.text("text"), []).append(row)
    if not found:
        raise UsageError(f"{FILE}: no [[measured]]")
    tables = {}
    for name, rows in found.items():
        rows.sort(key=lambda row: row.budget)
        if len({row.budget for row in rows}) < len(rows):
            raise UsageError(f"{FILE}: two rows of {name!r} have the same budget")
        tables[name] = Growth(name, tuple(rows))
    return tables


def _check(row: Row, where: str) -> None:
    if row.ranks[:1] != (1,) or any(a >= b for a, b in pairwise(row.ranks)):
        raise UsageError(f"{where}: ranks must ascend from 1, not {list(row.ranks)}")
    if len(row.tokens_per_step) != len(row.ranks):
        raise UsageError(
            f"{where}: {len(row.tokens_per_step)} tokens_per_step for {len(row.ranks)} ranks"
        )
    if row.budget < 2:
        raise UsageError(f"{where}: budget must be at least 2, not {row.budget}")


def _line(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    """Piecewise linear over the logarithm of x, level outside."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    right = bisect_left(xs, x)
    part = math.log(x / xs[right - 1]) / math.log(xs[right] / xs[right - 1])
    return ys[right - 1] + (ys[right] - ys[right - 1]) * part
