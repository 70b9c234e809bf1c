"""The cost of a step by its width, relative to a plain step, which feeds one token.

On a GPU a wider step is nearly free until its arithmetic takes longer than reading the weights; on
a CPU every token counts.  The longer the text, the more attention adds for each token.
`backends.measuring` measures the steps of a loaded model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from .errors import ConfigError

GRAIN = 128
"""Text lengths are rounded to multiples of this, so that steps share cost curves."""
FEWEST = 3
"""Fewer measured widths than this are not used."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Measured costs of steps, relative to a plain step after the same text.

    Costs are interpolated between the measured points and extrapolated after the last two.

    Raises:
        ConfigError: the table is not of this form.
    """

    widths: tuple[int, ...] = (1,)
    """Tokens in a step, ascending from 1."""
    contexts: tuple[int, ...] = (0,)
    """Tokens of text before the step, ascending."""
    costs: tuple[tuple[float, ...], ...] = ((1.0,),)
    """For each of `contexts`, the cost at each of `widths`; 1 at width 1, never falling."""

    def __post_init__(self) -> None:
        if not self.widths or self.widths[0] != 1 or not _ascending(self.widths):
            raise ConfigError(f"step_cost: widths must ascend from 1, not {self.widths}")
        if not self.contexts or self.contexts[0] < 0 or not _ascending(self.contexts):
            raise ConfigError(f"step_cost: contexts must ascend from 0 or more: {self.contexts}")
        if len(self.costs) != len(self.contexts):
            raise ConfigError(
                f"step_cost: {len(self.costs)} rows of costs for {len(self.contexts)} contexts"
            )
        for row in self.costs:
            if len(row) != len(self.widths):
                raise ConfigError(f"step_cost: {len(row)} costs for {len(self.widths)} widths")
            if row[0] != 1.0 or any(not a <= b < float("inf") for a, b in pairwise(row)):
                raise ConfigError(f"step_cost: costs must not fall, from 1 at width 1: {row}")

    def measured(self, seconds: Mapping[int, float]) -> StepCost:
        """Return a table with measured costs of steps after a short text.

        What longer texts add is taken from this table; so is everything if fewer than `FEWEST`
        widths were measured.

        Args:
            seconds: the time of a step after a short text, by its width.
        """
        widths = sorted(seconds)
        if len(widths) < FEWEST or widths[0] != 1:
            return self
        # A step takes no longer than a wider one, nor than as many plain steps as it has tokens; if
        # it seems to, another program slowed it down.
        bounded = [min(seconds[width], width * seconds[1]) for width in widths]
        least = [*accumulate(reversed(bounded), min)][::-1]
        rows = [
            [
                took / least[0] + self.at(width, context) - self.at(width, self.contexts[0])
                for width, took in zip(widths, least, strict=True)
            ]
            for context in self.contexts
        ]
        costs = tuple(tuple(accumulate(row, max)) for row in rows)
        return replace(self, widths=tuple(widths), costs=costs)

    def at(self, width: int, context: int) -> float:
        """Return the cost of a step of `width` tokens after `context` tokens of text."""
        columns = [_interpolate(self.widths, row, width) for row in self.costs]
        # An extrapolated line may fall below the cost of a plain step.
        return max(_interpolate(self.contexts, columns, context), 1.0)

    def curve(
        self,
        context: int,
        base: int,
        nodes: int,
        widths: tuple[int, ...],
        ranks: int = 1,
        load: int = 1,
    ) -> CostCurve:
        """Return the cost of a step by the number of its tree nodes.

        Args:
            context: tokens of text before the step.
            base: tokens of the step without the tree.
            nodes: the most nodes.
            widths: the widths that a step may have, ascending; () for any.
            ranks: the number of ranks that the tokens are divided over, evenly; they wait for the
                one with the most tokens.
            load: the tokens that this one feeds in any case.
        """
        fed = [max(-(-(base + n) // ranks), load) for n in range(max(nodes, 0) + 1)]
        costs = {width: self.at(fitting(width, widths), context) for width in {*fed}}
        # Lines extrapolated over contexts may cross, but a wider step costs no less.
        cost = list(accumulate((costs[width] for width in fed), max))
        return CostCurve(tuple(cost), tuple(_slopes(cost)))


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Costs of a step by the number of tree nodes n, from 0 on."""

    cost: tuple[float, ...]
    """The cost of a step with n nodes."""
    slope: tuple[float, ...]
    """For each n, what further nodes cost on average, at the number of them that costs the least.
    A node that is expected to yield fewer tokens than that is not worth adding."""


def fitting(width: int, widths: tuple[int, ...]) -> int:
    """Return the least of `widths` that holds `width` tokens; `width` itself if none does."""
    place = bisect_left(widths, width)
    return widths[place] if place < len(widths) else width


def _slopes(cost: list[float]) -> list[float]:
    """Return for every point the least slope to a point on its right; 0 for the last.

    That point is the next vertex of the lower convex hull of the points on the right, which is
    built from right to left (Andrew's monotone chain).
    """
    slopes = [0.0] * len(cost)
    hull = [len(cost) - 1]
    for n in range(len(cost) - 2, -1, -1):
        while len(hull) > 1 and _slope(cost, n, hull[-1]) >= _slope(cost, n, hull[-2]):
            hull.pop()
        slopes[n] = _slope(cost, n, hull[-1])
        hull.append(n)
    return slopes


def _slope(cost: list[float], left: int, right: int) -> float:
    return (cost[right] - cost[left]) / (right - left)


def _interpolate(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Interpolate linearly between points; extrapolate from the last two, and to the left use the
    first one's value."""
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    right = min(bisect_left(xs, x), len(xs) - 1)
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])


def _ascending(values: tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise(values))
