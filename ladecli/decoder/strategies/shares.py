"""How much of a step the window may take: by what it costs and what it brings."""

from __future__ import annotations

from ..step_cost import CostCurve

FADING = 0.9
"""What is left, after a step, of what the window brought before."""
FINDS = 0.2
"""Accepted tokens per step that a window is taken to find when it starts."""
INDIRECT = 2.5
"""What a window brings for every accepted token that it is credited with: evidence of its
n-grams also sharpens what other sources propose.  Measured by leaving it out."""
TRIAL = 8
"""Steps that a window of one width runs at least."""
PAUSES = (32, 256)
"""Steps without a window before it is tried again: the first time, and at most."""


class WindowShare:
    """How many columns the window gets: all, half, or none for a while.

    A cell costs what a tree node in its place would have brought, or what a token of the step
    costs, whichever is more.  A window that does not bring as much is halved, then dropped:
    where a text repeats itself, say, long candidates need its room.  It returns as soon as
    there is room again, or after a pause.

    Args:
        columns: W.
    """

    def __init__(self, columns: int) -> None:
        self._widths = (0, max(columns // 2, 1), columns)
        self._level = 2
        self._gain = FINDS
        self._price = 0.0
        self._steps = 0
        self._pause = PAUSES[0]

    @property
    def columns(self) -> int:
        """Columns in the next step."""
        return self._widths[self._level]

    def book(self, found: int, cells: int, price: float, full: int) -> None:
        """Enter one step.

        Args:
            found: accepted tokens that the window is credited with.
            cells: how many it had in the step.
            price: tokens that one cell's place was worth.
            full: cells of the whole window.
        """
        self._steps += 1
        self._price = self._price * FADING + price * (1.0 - FADING)
        if not cells:
            worthwhile = 2.0 * full * self._price < INDIRECT * FINDS
            if worthwhile and self._steps >= TRIAL:
                self._pause = PAUSES[0]
                self._move(2)
            elif self._steps >= self._pause:
                self._pause = min(2 * self._pause, PAUSES[1])
                self._move(1)
            return
        self._gain = self._gain * FADING + found * (1.0 - FADING)
        if self._steps < TRIAL:
            return
        brought, cost = INDIRECT * self._gain, cells * self._price
        if brought < cost:
            self._move(self._level - 1)
        elif self._level == 1 and brought > 2.0 * full * self._price:
            self._pause = PAUSES[0]
            self._move(2)

    def _move(self, level: int) -> None:
        self._level, self._steps, self._gain = level, 0, max(self._gain, FINDS)


def price_of_place(margin: float, curve: CostCurve, nodes: int, tokens: float) -> float:
    """What the place of one more token in a step is worth, in tokens.

    Args:
        margin: probability of the last node of a tree that had no room for more.
        curve: costs of the step by nodes.
        nodes: how many it had.
        tokens: expected of a plain step's time.
    """
    # Further nodes would be less and less probable: on average about half as much.
    return max(margin / 2.0, curve.slope[min(nodes, curve.nodes - 1)] * tokens)
