"""Who does what in a step, and what comes of it: what the loop asks of a group of ranks.

A group's ranks all run the same loop over the same text.  They deal the same draft out in the
same way, each feeds its own share, and one exchange of messages later each knows what all of
them found, and goes on from there.  `Alone` is the group of one rank, which has nobody to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..layout import Draft
from ..successors import NONE, Successors
from ..verify import Verdict
from .deal import Dealt, Share


@dataclass(frozen=True, slots=True)
class Finding:
    """What a forward showed of a draft.

    Attributes:
        verdict: accepted nodes and chosen tokens.
        best: the most probable token after each output.
        ranked: successors after each output; `NONE` where they were not asked for.
    """

    verdict: Verdict
    best: Sequence[int]
    ranked: Successors = NONE


@dataclass(frozen=True, slots=True)
class Shortage:
    """There was no memory for a step.

    Attributes:
        pending: committed tokens that it fed.
        width: its other tokens and one more.
    """

    pending: int
    width: int


class Stopped(Exception):
    """Another rank ended the generation: whoever reads the text has had enough of it."""


class Group(Protocol):
    """Ranks that decode one text together."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def shares(self) -> int:
        """In how many shares a draft is dealt."""

    @property
    def share(self) -> int:
        """Which of them this rank computes."""

    @property
    def forwards_alone(self) -> bool:
        """Whether a forward is this rank's own affair, so that it may try a smaller one."""

    def begin(self, cached: int, outputs: int, successors: int, asked: Sequence[object]) -> int:
        """A generation starts.

        Args:
            cached: tokens of the prompt that this rank need not read again.
            outputs: the most outputs that a step will have on one rank.
            successors: the most of an output that a step will ask for.
            asked: what has to be the same on all ranks for them to decode the same text.

        Returns:
            Tokens of the prompt that no rank need read again.

        Raises:
            Stopped: the generation is over.
            RankError: a rank is gone, or was asked for something else.
        """

    def read(self) -> None:
        """A chunk of the text is about to be read; all ranks read the same chunks.

        Raises:
            Stopped: the generation is over.
            RankError: a rank is gone, or has failed.
        """

    def deal(self, draft: Draft, missing: Sequence[int]) -> Dealt:
        """A step begins: deal its draft out.

        Args:
            draft: the whole, the same on all ranks.
            missing: for every share, the tokens before the current one that its rank must feed.

        Raises:
            Stopped: the generation is over.
            RankError: a rank is gone, or has failed.
        """

    def agree(
        self, dealt: Dealt, found: Finding | Shortage, length: int, learned: Callable[[], int]
    ) -> Finding | Shortage:
        """What all ranks found together.

        Args:
            dealt: the draft and its shares.
            found: what this rank found in its share.
            length: tokens of the text.
            learned: gives a checksum of what drafts are made from.

        Returns:
            What they found in the whole draft; or that memory did not suffice on one of them.

        Raises:
            Stopped: the generation is over.
            RankError: a rank is gone, has failed, or drafted something else.
        """

    def end(self) -> None:
        """The text has ended, on all ranks alike: nobody waits for another word."""

    def leave(self, why: BaseException) -> None:
        """Tell the others, if they wait for it, that this rank gives the generation up.

        Args:
            why: GeneratorExit between two steps, where the reader has had enough.
        """


class Alone:
    """One rank: it computes all of a draft, and what it finds holds."""

    size = 1
    shares = 1
    share = 0
    forwards_alone = True

    def begin(self, cached: int, outputs: int, successors: int, asked: Sequence[object]) -> int:
        """All that is cached here."""
        return cached

    def read(self) -> None:
        """Nobody has to be asked."""

    def deal(self, draft: Draft, missing: Sequence[int]) -> Dealt:
        """One share, which is the draft itself."""
        return Dealt(draft, (whole(draft),))

    def agree(
        self, dealt: Dealt, found: Finding | Shortage, length: int, learned: Callable[[], int]
    ) -> Finding | Shortage:
        """What was found."""
        return found

    def end(self) -> None:
        """Nobody waits."""

    def leave(self, why: BaseException) -> None:
        """Nobody has to be told."""


ALONE = Alone()


def whole(draft: Draft) -> Share:
    """The only share of a draft."""
    columns = len(draft.window.last_row) if draft.window else 0
    return Share(draft, range(len(draft.tree)), range(columns))
