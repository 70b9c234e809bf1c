"""Groups of ranks: how a step is divided, and what all ranks together found in it.

The ranks of a group run the same loop over the same text.  Each partitions the same draft in the
same way and computes its share; after one exchange of messages all know the result of the whole
step.  The loop does not know how many ranks there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import DecoderError, RankError
from ..strategy import Draft, StepResult
from .partition import Share, partition

if TYPE_CHECKING:
    from .transport import DistributedTransport


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Memory ran out in a step.

    Attributes:
        pending: committed tokens that it fed.
        width: its other tokens and one more.
    """

    pending: int
    width: int


@dataclass(frozen=True, slots=True)
class Left:
    """A rank has given a generation up; `reason` is None where its caller closed it."""

    reason: str | None


class GenerationStopped(Exception):
    """Another rank stopped the generation because its caller closed it."""


class Group:
    """Ranks that decode one text together; this base class is the group of one rank.

    Methods that wait for other ranks raise `GenerationStopped` where one of them stopped the
    generation, and `RankError` where one is gone, has failed, or does something else.

    Attributes:
        size: number of ranks.
        forwards_alone: whether a forward needs no other rank, so that a smaller one may be tried.
        missing: for each share of a draft, see `State.missing`.
    """

    size = 1
    forwards_alone = True
    missing: Sequence[int] = (0,)

    def begin(self, cached: int, request: Sequence[object]) -> int:
        """Begin a generation.

        Args:
            cached: prompt tokens in this rank's cache.
            request: what must be equal on all ranks; compared by `repr`.

        Returns:
            Prompt tokens in the caches of all ranks.
        """
        return cached

    def sync(self) -> None:
        """Wait for all ranks before a chunk of the prompt."""

    def share(self, draft: Draft) -> tuple[Draft, Draft]:
        """A step's draft as far as the ranks have room for it, and what this one computes of it."""
        return draft, draft

    def agree(self, found: StepResult | OutOfMemory) -> StepResult | OutOfMemory:
        """What all ranks together found in the whole draft, or that memory ran out on one.

        Args:
            found: in this rank's share.
        """
        return found

    def held(self, nodes: Sequence[int]) -> Sequence[int]:
        """The places in this rank's share of accepted nodes, up to the first that it lacks."""
        return nodes

    def end(self) -> None:
        """The generation has ended on all ranks alike: none waits for a message."""

    def leave(self, why: BaseException) -> None:
        """Tell ranks that wait for a message that this one gives the generation up."""


ALONE = Group()


class _ManyRanks(Group):
    """What groups of several ranks have in common.

    From `begin` to `end` every rank sends one message wherever the others do, so that a rank that
    gives up can send that in place of whatever they wait for.

    Attributes:
        begun: generations begun so far.
    """

    def __init__(self, transport: DistributedTransport) -> None:
        self.begun = 0
        self.size = transport.size
        self._transport = transport
        self._awaited = False
        self._draft = Draft()

    def begin(self, cached: int, request: Sequence[object]) -> int:
        """See `Group.begin`."""
        self._awaited = True
        self.begun += 1
        problem = "was given another prompt or other settings than rank 0"
        everywhere: list[int] = self._exchange(cached, request, problem)
        return min(everywhere)

    def sync(self) -> None:
        """See `Group.sync`."""
        self._exchange(None, "sync", "is not where rank 0 is")

    def agree(self, found: StepResult | OutOfMemory) -> StepResult | OutOfMemory:
        """See `Group.agree`."""
        draft = self._draft
        tree, window = draft.tree, draft.window.tokens if draft.window else []
        tried = [draft.successors, tree.tokens, tree.parents, window]
        results = self._exchange(found, tried, "drafted other tokens than rank 0")
        for result in results:
            if isinstance(result, OutOfMemory):
                return result
        return self._merged(results)

    def end(self) -> None:
        """See `Group.end`."""
        self._awaited = False

    def leave(self, why: BaseException) -> None:
        """See `Group.leave`."""
        if not self._awaited:
            return
        self._awaited = False
        reason: str | None = str(why)
        if isinstance(why, GeneratorExit | KeyboardInterrupt):
            reason = None
        elif not isinstance(why, DecoderError):
            reason = f"{type(why).__name__}: {why}"
        self._transport.gather((0, Left(reason)))

    def _merged(self, results: Sequence[StepResult]) -> StepResult:
        """The result of the whole draft, from those of its shares."""
        raise NotImplementedError

    def _exchange(self, mine: Any, alike: object, problem: str) -> list[Any]:
        """What every rank sent, while all of them go on.

        Args:
            mine: what this one sends.
            alike: equal on all ranks; its checksum is sent.
            problem: what a rank did that has another one, for `RankError`.

        Raises:
            RankError: a rank is gone, has failed, or is not like rank 0.
        """
        checksum = zlib.crc32(repr(alike).encode())
        try:
            messages = self._transport.gather((checksum, mine))
            left = {rank: m for rank, (_, m) in enumerate(messages) if isinstance(m, Left)}
            for rank, message in left.items():
                if message.reason is not None:
                    raise RankError(f"rank {rank} failed: {message.reason}")
            if left:
                raise GenerationStopped
            for rank, (other, _) in enumerate(messages):
                if other != messages[0][0]:  # all have the same messages, so all of them end here
                    raise RankError(f"rank {rank} {problem}")
        except (RankError, GenerationStopped):
            self._awaited = False
            raise
        return [message for _, message in messages]


class LookaheadParallel(_ManyRanks):
    """Lookahead parallelism: every rank holds the whole model and computes a share of each draft.

    Source: Fu et al., 2024, section 3.5.  Keys are never sent: a rank that lacks those of accepted
    tokens feeds the tokens again at the head of its next step.
    """

    def __init__(self, transport: DistributedTransport) -> None:
        super().__init__(transport)
        self._rank = transport.rank
        self._shares: list[Share] = []

    def begin(self, cached: int, request: Sequence[object]) -> int:
        """See `Group.begin`."""
        self.missing = (0,) * self.size
        return super().begin(cached, request)

    def share(self, draft: Draft) -> tuple[Draft, Draft]:
        """See `Group.share`."""
        self._draft, self._shares = partition(draft, self.missing)
        return self._draft, self._shares[self._rank].draft

    def held(self, nodes: Sequence[int]) -> Sequence[int]:
        """See `Group.held`."""
        held = [share.held(nodes) for share in self._shares]
        self.missing = tuple([len(nodes) - len(each) for each in held])
        return held[self._rank]

    def _merged(self, results: Sequence[StepResult]) -> StepResult:
        columns, outputs = 1 + len(self._draft.tree), range(self._draft.outputs)
        best = [0 for _ in outputs]
        successors: list[dict[int, float]] = [{} for _ in outputs if self._draft.successors]
        ranks = list(zip(results, self._shares, strict=True))
        for result, share in reversed(ranks):  # what several have is the first one's
            places = [0, *[1 + node for node in share.nodes]]
            places += [columns + column for column in share.columns]
            for place, token in zip(places, result.best, strict=True):
                best[place] = token
            for place, row in zip(places, result.successors, strict=False):
                successors[place] = row
        # A path ends early on a rank without its branch; the one that has it goes furthest.
        furthest, share = max(ranks, key=lambda rank: len(rank[0].tokens))
        nodes = [share.nodes[node] for node in furthest.nodes]
        return StepResult(nodes, furthest.tokens, best, successors)


class TensorParallel(_ManyRanks):
    """Tensor parallelism: each rank holds a part of the model, and all feed the same tokens.

    Within a forward the ranks wait for one another, so every forward begins with a message.  The
    result of a step is rank 0's: others may differ in the last bits of a sum, and so in a token.
    """

    forwards_alone = False

    def __init__(self, transport: DistributedTransport) -> None:
        super().__init__(transport)
        self._in_forward = False

    def sync(self) -> None:
        """See `Group.sync`."""
        super().sync()
        self._in_forward = True

    def share(self, draft: Draft) -> tuple[Draft, Draft]:
        """The whole draft, which all ranks compute together."""
        self.sync()
        self._draft = draft
        return draft, draft

    def leave(self, why: BaseException) -> None:
        """See `Group.leave`; ranks that wait within a forward cannot be reached."""
        if self._in_forward and not isinstance(why, GeneratorExit):
            self._awaited = False
            self._transport.lose("a step of all ranks was broken off; start the ranks again")
        super().leave(why)

    def _merged(self, results: Sequence[StepResult]) -> StepResult:
        return results[0]

    def _exchange(self, mine: Any, alike: object, problem: str) -> list[Any]:
        self._in_forward = False
        return super()._exchange(mine, alike, problem)
