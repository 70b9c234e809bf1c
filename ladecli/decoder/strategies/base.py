"""What a strategy is; the base class is plain decoding."""

from __future__ import annotations

from ..layout import Draft
from ..observation import Observation, State


class Strategy:
    """Proposes a draft for each step and observes what the model made of it.

    This one proposes nothing: one token per step, the oracle of all other strategies.

    Attributes:
        name: as on the command line.
        max_outputs: the most outputs of a step, the current token's included; of one rank, if
            there are several.
        max_successors: the most successors of an output that a draft asks for.
    """

    name = "autoregressive"
    max_outputs = 1
    max_successors = 0

    def begin(self, state: State) -> None:
        """A generation starts; `state` holds the prompt."""

    def propose(self, state: State) -> Draft:
        """What to try after the current token; nothing deeper or wider than `state` allows.

        If memory does not suffice for it, this is called again with a smaller `widest`, and the
        first draft is never observed.
        """
        return Draft()

    def observe(self, state: State, observation: Observation) -> None:
        """A step is over; `state` holds the tokens that it committed."""
