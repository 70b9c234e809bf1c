"""Groups of several ranks: by branches, each with a whole model, or as copies, which share one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..checksum import checksum
from ..errors import RankError
from ..events import Token
from ..layout import Draft
from ..successors import NONE, NOTHING, Successors
from ..tree import ROOT
from ..verify import Verdict
from .deal import Dealt, Share, deal
from .group import Finding, Shortage, Stopped, whole
from .transport import Transport
from .wire import Checks, Kind, Message, Wire, draft_checksum

CHECKED_EVERY = 16
"""Steps from one look at what drafts were made from to the next."""
UNCHECKED = (0, 0)


class _Together:
    """What groups of several ranks have in common.

    From the beginning of a generation to its end, all exchanges are messages of one length, so
    that a rank that ends it early can say so in the place of whatever the others wait for.

    Args:
        transport: carries their messages.

    Attributes:
        begun: generations that have begun, counted.
    """

    def __init__(self, transport: Transport) -> None:
        self.begun = 0
        self._transport = transport
        self._wire = Wire(1, 0)
        self._steps = 0
        self._awaited = False

    @property
    def rank(self) -> int:
        """This one's number."""
        return self._transport.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._transport.size

    def begin(self, cached: int, outputs: int, successors: int, asked: Sequence[object]) -> int:
        """See `Group.begin`."""
        self._wire, self._steps = Wire(outputs, successors), 0
        self._awaited = True
        self.begun += 1
        checks = checksum([outputs, successors, *asked]), 0
        heard = self._exchange(Message(Kind.BEGIN, (cached, 0)), checks)
        for rank, (_, other) in enumerate(heard):
            if other != heard[0][1]:
                self._lose(
                    f"rank {rank} was asked for another text than rank 0, or to choose its tokens"
                    " in another way"
                )
        return min(message.figures[0] for message, _ in heard)

    def read(self) -> None:
        """See `Group.read`."""
        self._exchange(Message(Kind.GO), UNCHECKED)

    def end(self) -> None:
        """See `Group.end`."""
        self._awaited = False

    def leave(self, why: BaseException) -> None:
        """See `Group.leave`."""
        if self._awaited:
            self._awaited = False
            wanted = isinstance(why, GeneratorExit | KeyboardInterrupt)
            kind = Kind.STOPPED if wanted else Kind.FAILED
            self._transport.gather(self._wire.pack(Message(kind), UNCHECKED))

    def _agree(
        self,
        dealt: Dealt,
        shares: Sequence[Share],
        found: Finding | Shortage,
        length: int,
        learned: Callable[[], int],
    ) -> list[Message] | Shortage:
        """Every rank's message after a step in which all of them succeeded.

        Args:
            dealt, found, length, learned: as `Group.agree` has them.
            shares: what each rank computed.
        """
        looks = self._steps % CHECKED_EVERY == 0
        self._steps += 1
        checks = draft_checksum(dealt.draft, length), learned() if looks else 0
        if isinstance(found, Shortage):
            mine = Message(Kind.SHORT, (found.pending, found.width))
        else:
            tokens = [token.id for token in found.verdict.tokens]
            mine = Message(Kind.FOUND, (0, 0), tokens, found.best, found.ranked)
        heard = self._exchange(mine, checks, shares)
        self._compare([checks for _, checks in heard])
        messages = [message for message, _ in heard]
        for message in messages:
            if message.kind is Kind.SHORT:
                return Shortage(*message.figures)
        return messages

    def _exchange(
        self, mine: Message, checks: Checks, shares: Sequence[Share] | None = None
    ) -> list[tuple[Message, Checks]]:
        """Every rank's message, while all of them go on.

        Args:
            mine: what this rank says.
            checks: what it goes with.
            shares: what each rank computed; None where they say nothing of that.
        """
        try:
            told = self._transport.gather(self._wire.pack(mine, checks))
        except RankError:
            self._awaited = False
            raise
        drafts = [share.draft for share in shares] if shares else [None] * self.size
        heard = [self._wire.unpack(*each) for each in zip(told, drafts, strict=True)]
        for rank, (message, _) in enumerate(heard):
            if message.kind is Kind.FAILED:
                self._lose(f"rank {rank} failed")
        if any(message.kind is Kind.STOPPED for message, _ in heard):
            self._awaited = False
            raise Stopped
        steps = {Kind.FOUND, Kind.SHORT}
        for rank, (message, _) in enumerate(heard):
            if message.kind is not mine.kind and not {message.kind, mine.kind} <= steps:
                self._lose(f"rank {rank} does something else than rank {self.rank}")
        return heard

    def _compare(self, checks: Sequence[Checks]) -> None:
        """Notice ranks that do not do what the others do."""
        for rank, (draft, learned) in enumerate(checks):
            if draft != checks[0][0]:
                self._lose(f"rank {rank} drafted something else than rank 0 in step {self._steps}")
            if learned != checks[0][1]:
                self._lose(
                    f"rank {rank} has learned something else than rank 0 by step {self._steps}"
                )

    def _lose(self, words: str) -> None:
        """All ranks heard the same, so that all of them end here."""
        self._awaited = False
        raise RankError(words)


class Branches(_Together):
    """Lookahead parallelism: every rank has a whole model, and computes a share of each draft.

    Source: Fu et al., 2024, section 3.5.  Keys are never sent: a rank that lacks those of accepted
    tokens feeds the tokens again, at the head of its next step.
    """

    forwards_alone = True

    @property
    def shares(self) -> int:
        """One for each rank."""
        return self.size

    @property
    def share(self) -> int:
        """Its own."""
        return self.rank

    def deal(self, draft: Draft, missing: Sequence[int]) -> Dealt:
        """Branches and columns, so that all ranks have about equally much to do."""
        return deal(draft, missing)

    def agree(
        self, dealt: Dealt, found: Finding | Shortage, length: int, learned: Callable[[], int]
    ) -> Finding | Shortage:
        """The longest walk of all holds; every output is known from the first rank that has it."""
        messages = self._agree(dealt, dealt.shares, found, length, learned)
        if isinstance(messages, Shortage):
            return messages
        # A walk ends early where a rank lacks the branch; the one that has it goes furthest.
        tokens = max((message.tokens for message in messages), key=len)
        nodes = len(dealt.draft.tree)
        columns = len(dealt.draft.window.last_row) if dealt.draft.window else 0
        best = [0] * (1 + nodes + columns)
        ranked = NONE
        if dealt.draft.successors:
            shape = len(best), self._wire.successors
            ranked = Successors(np.full(shape, NOTHING, np.int32), np.zeros(shape, np.float32))
        for message, share in reversed([*zip(messages, dealt.shares, strict=True)]):
            places = [0, *(1 + node for node in share.nodes)]
            places += [1 + nodes + column for column in share.columns]
            for place, token in zip(places, message.best, strict=True):
                best[place] = token
            if message.ranked:
                ranked.tokens[places] = message.ranked.tokens
                ranked.probabilities[places] = message.ranked.probabilities
        return Finding(_verdict(dealt.draft, tokens), best, ranked)


class Copies(_Together):
    """Every rank feeds the same: each has a part of the model, and none could do so alone.

    Within a forward the ranks wait for one another's numbers, so each forward begins with a word
    of all that they take part in it.
    """

    shares = 1
    share = 0
    forwards_alone = False

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._inside = False
        self._torn = False

    def begin(self, cached: int, outputs: int, successors: int, asked: Sequence[object]) -> int:
        """See `Group.begin`."""
        if self._torn:
            raise RankError("the ranks were torn apart in the middle of a step; start them again")
        self._inside = False
        return super().begin(cached, outputs, successors, asked)

    def read(self) -> None:
        """See `Group.read`."""
        self._inside = False
        super().read()
        self._inside = True

    def deal(self, draft: Draft, missing: Sequence[int]) -> Dealt:
        """One share, which is the draft itself, for everyone."""
        self.read()
        return Dealt(draft, (whole(draft),))

    def agree(
        self, dealt: Dealt, found: Finding | Shortage, length: int, learned: Callable[[], int]
    ) -> Finding | Shortage:
        """What rank 0 found: the last bits of others' sums may differ, and with them a choice."""
        self._inside = False
        messages = self._agree(dealt, dealt.shares * self.size, found, length, learned)
        if isinstance(messages, Shortage):
            return messages
        first = messages[0]
        return Finding(_verdict(dealt.draft, first.tokens), first.best, first.ranked)

    def leave(self, why: BaseException) -> None:
        """See `Group.leave`; within a forward, the others hear of nothing but this rank's end."""
        if self._inside and not isinstance(why, GeneratorExit):
            self._torn = True
            self._awaited = False
        super().leave(why)


def _verdict(draft: Draft, tokens: Sequence[int]) -> Verdict:
    """The walk through the whole tree on which these tokens were chosen."""
    nodes: list[int] = []
    node = ROOT
    for token in tokens[:-1]:
        child = draft.tree.child(node, token)
        if child is None:
            raise RankError(f"the ranks accepted token {token}, which none of them was to try")
        nodes.append(child)
        node = child
    accepted = [Token(draft.tree.tokens[node], draft.tree.sources[node]) for node in nodes]
    return Verdict(tuple(nodes), (*accepted, Token(tokens[-1])))
