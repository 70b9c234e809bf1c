"""The speculation budget: what drafts may lose in all."""

from __future__ import annotations

LOSS_PER_TOKEN = 0.01
"""What drafts may lose per token of text, in plain steps."""
INITIAL_BALANCE = 2.0
"""What drafts may lose for what they teach, before they gained anything, in plain steps."""
MAX_DEFICIT = 4.0
"""How far the balance may fall below zero before drafts pause, in plain steps.  Those of a negative
balance are expected to pay; a text whose drafts pause early has none of what they would bring."""
MAX_WINDOW_DEFICIT = 0.75
"""The same before a window pauses: it pays later, if at all."""


class SpeculationBudget:
    """Keeps drafts from costing more than they bring.

    A step that costs c plain steps and yields t tokens gains t - c.  Beyond `LOSS_PER_TOKEN` for
    each token, the first text of a session takes at most `INITIAL_BALANCE`, `MAX_DEFICIT` and one
    step more than plain decoding, and one that follows losses `MAX_DEFICIT` and one step, as far as
    the cost curve is right.

    Attributes:
        balance: in plain steps.
    """

    def __init__(self) -> None:
        self.balance = INITIAL_BALANCE

    def begin(self) -> None:
        """A text begins: what others lost is no debt of its own.

        When it was, a text after one of random tokens got no draft for 60 tokens, however much of
        it was known.
        """
        self.balance = max(self.balance, 0.0)

    @property
    def may_draft(self) -> bool:
        """Whether the next step may have candidates."""
        return self.balance >= -MAX_DEFICIT

    @property
    def may_run_window(self) -> bool:
        """Whether the next step may have a window.

        When a window could use up all of the deficit, and so stop all drafts, the demo made 1.14
        tokens per step with all sources on a CPU instead of 1.34 to 1.41.
        """
        return self.balance >= -MAX_WINDOW_DEFICIT

    @property
    def may_explore(self) -> bool:
        """Whether candidates may be tried for what they teach, and not only for what they yield."""
        return self.balance > 0.0

    def update(self, tokens: int, cost: float) -> None:
        """Account for a step that yielded `tokens` for `cost` plain steps."""
        self.balance += tokens * (1.0 + LOSS_PER_TOKEN) - cost
