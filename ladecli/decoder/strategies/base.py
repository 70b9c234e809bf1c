"""What a strategy sees and what it must do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Protocol

from ..layout import Draft
from ..observation import Observation


@dataclass(slots=True)
class State:
    """The text so far and how far ahead of it a draft may reach.

    Attributes:
        tokens: prompt and committed tokens; the last one is the current token.
        prompt_length: how many of them are the prompt.
        draft_depth: the deepest tree node that could still be committed.
        room: positions beyond the current token that exist and mean what they meant.
        widest: the most tokens that a draft and the current token may have together, padding
            included: memory did not suffice for more.  Where ranks share drafts, this holds for
            what one of them feeds.
        missing: for every share of a draft, how many committed tokens before the current one its
            rank must feed, for it lacks their keys.
    """

    tokens: list[int]
    prompt_length: int
    draft_depth: int = 0
    room: int = 0
    widest: int = sys.maxsize
    missing: tuple[int, ...] = (0,)


class Strategy(Protocol):
    """Proposes a draft for each step and observes what the model made of it."""

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def outputs(self) -> int:
        """The most outputs of a step: the current token's, and those that a draft asks for.

        Where ranks share drafts, this holds for what one of them feeds.
        """

    @property
    def successors(self) -> int:
        """The most successors of an output that a draft asks for."""

    def checksum(self) -> int:
        """A number of 32 bits that differs, in all likelihood, where drafts will differ."""

    def begin(self, state: State) -> None:
        """A generation starts; `state` holds the prompt."""

    def propose(self, state: State) -> Draft:
        """What to try behind the current token; nothing deeper or wider than `state` allows.

        Where memory does not suffice for it, this is asked again with a smaller `widest`, and
        nobody observes what was proposed first.
        """

    def observe(self, state: State, seen: Observation) -> None:
        """A step is over; `state` holds the tokens that it committed."""
