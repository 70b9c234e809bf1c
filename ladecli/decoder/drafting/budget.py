"""Bounds on speculation: what drafts may lose in all, and how wide a window is worth its place."""

from __future__ import annotations

from ..step_cost import CostCurve

# In plain steps: what drafts may lose per token of text, what before they gained anything, and how
# far the balance may fall below zero before they pause.
LOSS_PER_TOKEN = 0.015
INITIAL_BALANCE = 1.5
MAX_DEFICIT = 2.0

GAIN_DECAY = 0.9  # what averages over steps keep at each step
INITIAL_GAIN = 0.2  # assumed accepted tokens per step that a window finds when it starts
TRIAL_STEPS = 8  # for which a window keeps one width at least
PAUSES = (32, 256)  # steps before a dropped window is tried again: the first time, and at most
INDIRECT_GAIN = 2.5
"""What a window brings for each accepted token that it is credited with: its n-grams also sharpen
what other sources propose.  Measured by leaving it out."""


class SpeculationBudget:
    """Keeps drafts from costing more than they bring.

    A step that costs c plain steps and yields t tokens gains t - c.  All texts of a session take
    at most `INITIAL_BALANCE`, `MAX_DEFICIT`, one step and `LOSS_PER_TOKEN` for each token more
    than plain decoding, as far as the cost curve is right.

    Attributes:
        balance: in plain steps.
    """

    def __init__(self) -> None:
        self.balance = INITIAL_BALANCE

    @property
    def may_draft(self) -> bool:
        """Whether the next step may have candidates."""
        return self.balance >= -MAX_DEFICIT

    @property
    def may_open_window(self) -> bool:
        """Whether the next step may have a window.

        A window pays later if at all, so it may use up half of the deficit only.  Where it could
        use up all of it, and so stop all drafts, the demo made 1.14 tokens per step with all
        sources on a CPU instead of 1.34 to 1.41.
        """
        return self.balance >= -MAX_DEFICIT / 2.0

    @property
    def may_explore(self) -> bool:
        """Whether candidates may be tried for what they teach, and not only for what they yield."""
        return self.balance >= 0.0

    def update(self, tokens: int, cost: float) -> None:
        """Account for a step that yielded `tokens` for `cost` plain steps."""
        self.balance += tokens * (1.0 + LOSS_PER_TOKEN) - cost


class AdaptiveWindow:
    """How many columns the window gets: all, half, or none for a while.

    A cell costs what a tree node in its place would have brought, or what a token of the step
    costs, whichever is more.  A window that does not bring as much is halved, then dropped: where
    a text repeats itself, say, long candidates need its room.  It returns as soon as there is
    room again, or after a pause.
    """

    def __init__(self, columns: int) -> None:
        self._widths = (0, max(columns // 2, 1), columns)
        self._level = 2
        self._gain = INITIAL_GAIN
        self._price = 0.0
        self._steps = 0
        self._pause = PAUSES[0]

    @property
    def columns(self) -> int:
        """Columns in the next step."""
        return self._widths[self._level]

    def update(self, found: int, cells: int, price: float, full: int) -> None:
        """Account for one step.

        Args:
            found: accepted tokens that the window is credited with.
            cells: that it had in the step.
            price: see `cell_price`.
            full: cells of the whole window.
        """
        self._steps += 1
        self._price = self._price * GAIN_DECAY + price * (1.0 - GAIN_DECAY)
        # The whole window is opened only where it is worth twice its price.
        full_price = 2.0 * full * self._price
        if not cells:
            if full_price < INDIRECT_GAIN * INITIAL_GAIN and self._steps >= TRIAL_STEPS:
                self._pause = PAUSES[0]
                self._move(2)
            elif self._steps >= self._pause:
                self._pause = min(2 * self._pause, PAUSES[1])
                self._move(1)
            return
        self._gain = self._gain * GAIN_DECAY + found * (1.0 - GAIN_DECAY)
        gain = INDIRECT_GAIN * self._gain
        if self._steps < TRIAL_STEPS:
            return
        if gain < cells * self._price:
            self._move(self._level - 1)
        elif self._level == 1 and gain > full_price:
            self._pause = PAUSES[0]
            self._move(2)

    def _move(self, level: int) -> None:
        self._level, self._steps, self._gain = level, 0, max(self._gain, INITIAL_GAIN)


def cell_price(margin: float, curve: CostCurve, nodes: int, tokens: float) -> float:
    """What the place of one more token in a step is worth, in tokens.

    Args:
        margin: probability of the last node of a tree that had no room for more, else 0.
        curve: costs of the step by number of nodes.
        nodes: that it had.
        tokens: that the step yielded for the cost of a plain step.
    """
    # Further nodes would be less and less probable: on average about half as much.
    return max(margin / 2.0, curve.slope[min(nodes, len(curve.slope) - 2)] * tokens)
