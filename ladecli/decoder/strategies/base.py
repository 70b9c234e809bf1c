"""What a strategy must do."""

from __future__ import annotations

from typing import Protocol

from ..layout import Draft
from ..observation import Observation, State


class Strategy(Protocol):
    """Proposes a draft for each step and observes what the model made of it."""

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def max_outputs(self) -> int:
        """The most outputs of a step, the current token's included; of one rank, if several."""

    @property
    def max_successors(self) -> int:
        """The most successors of an output that a draft asks for."""

    def fingerprint(self) -> int:
        """A signed 32-bit integer that differs, in all likelihood, where drafts will differ."""

    def begin(self, state: State) -> None:
        """A generation starts; `state` holds the prompt."""

    def propose(self, state: State) -> Draft:
        """What to try after the current token; nothing deeper or wider than `state` allows.

        If memory does not suffice for it, this is called again with a smaller `widest`, and the
        first draft is never observed.
        """

    def observe(self, state: State, observation: Observation) -> None:
        """A step is over; `state` holds the tokens that it committed."""
