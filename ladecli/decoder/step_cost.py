"""What a step costs by its width, in plain steps.

A plain step feeds one token.  On a GPU a wider step is nearly free up to the point where its
arithmetic catches up with reading the weights; on a CPU every token counts, and the first one
beyond the plain step counts most.  Attention makes each token dearer the longer the text is.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from .errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GRAIN = 128
"""Texts are this many tokens apart before their curves are told apart."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Measured costs of a step, relative to a plain step behind the same text.

    Between the measured points costs are interpolated, beyond the last two extrapolated.

    Attributes:
        widths: ascending from 1: tokens in a step.
        contexts: ascending: tokens of text before the step.
        costs: for each of `contexts`, the cost at each of `widths`; 1 at width 1, and never
            falling.

    Raises:
        ConfigError: the table is not of this form.
    """

    widths: tuple[int, ...] = (1,)
    contexts: tuple[int, ...] = (0,)
    costs: tuple[tuple[float, ...], ...] = ((1.0,),)

    def __post_init__(self) -> None:
        # From TOML these come as lists; frozen fields are set by hand.
        for name, kind in (("widths", int), ("contexts", int), ("costs", float)):
            object.__setattr__(self, name, _tuples(name, getattr(self, name), kind))
        if not self.widths or self.widths[0] != 1 or not _ascending(self.widths):
            raise ConfigError(f"step_cost: widths must ascend from 1, not {self.widths}")
        if not self.contexts or self.contexts[0] < 0 or not _ascending(self.contexts):
            raise ConfigError(f"step_cost: contexts must ascend from 0 or more: {self.contexts}")
        if not all(isinstance(row, tuple) for row in self.costs):
            raise ConfigError("step_cost: costs must hold a row for each context")
        if len(self.costs) != len(self.contexts):
            raise ConfigError(
                f"step_cost: {len(self.costs)} rows of costs for {len(self.contexts)} contexts"
            )
        for row in self.costs:
            if len(row) != len(self.widths):
                raise ConfigError(f"step_cost: {len(row)} costs for {len(self.widths)} widths")
            if row[0] != 1.0 or any(not a <= b < float("inf") for a, b in pairwise(row)):
                raise ConfigError(f"step_cost: costs must not fall, from 1 at width 1: {row}")

    def at(self, width: int, context: int) -> float:
        """The cost of a step of `width` tokens behind `context` tokens of text."""
        columns = [_line(self.widths, row, width) for row in self.costs]
        # Never below a plain step, however far a line is drawn out.
        return max(_line(self.contexts, columns, context), 1.0)

    def curve(
        self,
        context: int,
        base: int,
        nodes: int,
        buckets: tuple[int, ...],
        shares: int = 1,
        least: int = 1,
    ) -> CostCurve:
        """The cost of a step by the number of nodes in its tree.

        Ranks among which it is dealt out wait for the widest of their shares.

        Args:
            context: tokens of text before the step.
            base: tokens of the step beside the tree.
            nodes: the most nodes.
            buckets: the widths that a step may have, ascending; () for any.
            shares: in how many even shares the tokens are dealt out.
            least: tokens of the widest share without any of the tree.
        """
        grain = (context + GRAIN // 2) // GRAIN
        return _curve(self, grain, base, nodes, buckets, shares, least)


@dataclass(frozen=True)
class CostCurve:
    """Costs by the number of tree nodes.

    Attributes:
        cost: of a step with n nodes, for n from 0 on.
        slope: for n nodes, the least that a further node costs on average, however many
            are added.  A node less probable than that many tokens is not worth adding.
    """

    cost: tuple[float, ...]
    slope: tuple[float, ...]

    @property
    def nodes(self) -> int:
        """The most nodes."""
        return len(self.cost) - 1

    # Curves are kept from step to step, and a step waits for these.
    @cached_property
    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`cost` and `slope`, float64 [nodes + 1] each."""
        # Settings hold curves, and the help of the command line must not wait for numpy.
        import numpy as np

        return np.array(self.cost), np.array(self.slope)


@lru_cache(maxsize=4096)
def _curve(
    table: StepCost,
    grain: int,
    base: int,
    nodes: int,
    buckets: tuple[int, ...],
    shares: int,
    least: int,
) -> CostCurve:
    fed = [max(-(-(base + n) // shares), least) for n in range(max(nodes, 0) + 1)]
    costs = {width: table.at(fitting(width, buckets), grain * GRAIN) for width in {*fed}}
    # A line drawn out beyond the last context may cross another: costs still do not fall.
    cost = list(accumulate((costs[width] for width in fed), max))
    return CostCurve(tuple(cost), tuple(_slopes(cost)))


def _slopes(cost: list[float]) -> list[float]:
    """For every point, the least slope to one of those on its right; 0 for the last."""
    import numpy as np

    costs, counts = np.array(cost), np.arange(1, len(cost))
    rises = (costs[n + 1 :] - costs[n] for n in range(len(counts)))
    return [*(float((rise / counts[: len(rise)]).min()) for rise in rises), 0.0]


def fitting(width: int, buckets: tuple[int, ...]) -> int:
    """The narrowest of `buckets` that holds `width` tokens; `width` itself if none does."""
    index = bisect_left(buckets, width)
    return buckets[index] if index < len(buckets) else width


def _line(xs: tuple[int, ...], ys: tuple[float, ...] | list[float], x: int) -> float:
    """Piecewise linear through the points, drawn out beyond the last two.

    Before the first point it stays level: a curve says nothing of what it never saw.
    """
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    right = min(max(bisect_left(xs, x), 1), len(xs) - 1)
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])


def _ascending(values: tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _tuples(name: str, value: Any, kind: type[float]) -> Any:
    """A list of numbers, or one of such lists, as tuples."""
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"step_cost: {name} must be a list, not {value!r}")
    items = []
    for item in value:
        if kind is float and isinstance(item, (list, tuple)):
            items.append(_tuples(name, item, kind))
        elif isinstance(item, (int, kind)) and not isinstance(item, bool):
            items.append(kind(item))
        else:
            raise ConfigError(f"step_cost: {name} must hold numbers, not {item!r}")
    return tuple(items)
