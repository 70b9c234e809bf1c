"""Keeps drafts from costing more than they bring."""

from __future__ import annotations

ALLOWANCE = 0.015
"""What drafts may lose, in plain steps per token of text."""
CREDIT = 1.5
"""What they may invest before they gained anything, in plain steps."""
DEBT = 2.0
"""How far below nothing the balance may fall before drafts pause, in plain steps."""


class Ledger:
    """Keeps drafts from costing more than they bring.

    A step that costs c and yields t tokens stands for t plain steps and gains t - c of them.
    While the balance is positive, drafts may also be tried for what they teach; below that, each
    must be expected to pay for itself; a window, which pays later if at all, may use up half of
    `DEBT`, and leaves the rest to candidates; and whatever the estimates say, drafts pause when
    `DEBT` is used up.  So all texts of a session take at most `CREDIT`, `DEBT`, one step and their
    `ALLOWANCE` more than plain decoding, as far as the cost curve is right.

    Attributes:
        balance: in plain steps.
    """

    def __init__(self) -> None:
        self.balance = CREDIT

    @property
    def solvent(self) -> bool:
        """Whether the next step may draft."""
        return self.balance >= -DEBT

    @property
    def affords_window(self) -> bool:
        """Whether the next step may have a window.

        Where a window could use up all of `DEBT`, and so stop all drafts, the demo made 1.14
        tokens per step with all sources on a CPU instead of 1.34 to 1.41 (benchmarks/README.md,
        "Budget and sources").
        """
        return self.balance >= -DEBT / 2.0

    @property
    def thriving(self) -> bool:
        """Whether drafts may be tried for what they teach."""
        return self.balance >= 0.0

    def book(self, tokens: int, cost: float) -> None:
        """Enter one step."""
        self.balance += tokens * (1.0 + ALLOWANCE) - cost
