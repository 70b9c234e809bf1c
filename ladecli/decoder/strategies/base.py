"""What a strategy sees and what it must do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..layout import Draft
from ..verify import Verdict


@dataclass(slots=True)
class State:
    """The text so far and how far ahead of it a draft may reach.

    Attributes:
        tokens: prompt and committed tokens; the last one is the current token.
        prompt_length: how many of them are the prompt.
        draft_depth: the deepest tree node that could still be committed.
        room: positions beyond the current token that exist and mean what they meant.
    """

    tokens: list[int]
    prompt_length: int
    draft_depth: int = 0
    room: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What a step showed.

    Attributes:
        draft: what was tried.
        current: the current token that it was tried behind.
        best: the model's most probable token after the current token and after each node
            of the tree (n + 1 tokens), then after each cell of the window's last row.
        verdict: the nodes accepted, as far as they were committed.
        ranked: for every output, the most probable tokens after it with their probabilities,
            as many as the strategy's `ranks`.
    """

    draft: Draft
    current: int
    best: Sequence[int]
    verdict: Verdict
    ranked: Sequence[list[tuple[float, int]]] = ()

    @property
    def window_outputs(self) -> Sequence[int]:
        """The most probable token after each cell of the window's last row."""
        return self.best[len(self.draft.tree) + 1 :]


class Strategy(Protocol):
    """Proposes a draft for each step and observes what the model made of it."""

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def ranks(self) -> int:
        """How many successors of every output it wants to see; 0 for none."""

    def begin(self, state: State) -> None:
        """A generation starts; `state` holds the prompt."""

    def propose(self, state: State) -> Draft:
        """What to try behind the current token; nothing deeper than `state` allows."""

    def observe(self, state: State, seen: Observation) -> None:
        """A step is over; `state` holds the tokens that it committed."""
