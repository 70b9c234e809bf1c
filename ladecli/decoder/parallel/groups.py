"""Groups of ranks: how a step is divided, and what all ranks together found in it.

The ranks of a group run the same loop over the same text.  Each partitions the same draft in the
same way and computes its share; after one exchange of messages all know the result of the whole
step.  The loop does not know how many ranks there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import RankError
from ..events import Token
from ..layout import Draft
from ..observation import Successors, checksum
from ..tree import ROOT
from ..verify import Verdict
from .messages import Kind, Message, MessageFormat
from .partition import Partition, partition, undivided

if TYPE_CHECKING:
    from .transport import DistributedTransport

CHECK_INTERVAL = 16
"""Steps from one comparison of the ranks' draft memories to the next."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a forward showed of a draft.

    Attributes:
        verdict: accepted nodes and chosen tokens.
        best: the most probable token after each output.
        successors: the most probable tokens after each output; () where the draft asks for none.
    """

    verdict: Verdict
    best: Sequence[int]
    successors: Successors = ()


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Memory ran out in a step.

    Attributes:
        pending: committed tokens that it fed.
        width: its other tokens and one more.
    """

    pending: int
    width: int


class GenerationStopped(Exception):
    """Another rank stopped the generation because its caller closed it."""


class Group:
    """Ranks that decode one text together; this base class is the group of one rank.

    Methods that wait for other ranks raise `GenerationStopped` where one of them stopped the
    generation, and `RankError` where one is gone, has failed, or does something else.

    Attributes:
        size: number of ranks.
        rank: this rank's number, from 0.
        shares: number of shares of a draft.
        share: the one that this rank computes.
        forwards_alone: whether a forward needs no other rank, so that a smaller one may be tried.
    """

    size = 1
    rank = 0
    shares = 1
    share = 0
    forwards_alone = True

    def begin(
        self, cached: int, max_outputs: int, max_successors: int, request: Sequence[object]
    ) -> int:
        """Begin a generation.

        Args:
            cached: prompt tokens in this rank's cache.
            max_outputs: the most outputs of a step.
            max_successors: the most successors of an output.
            request: what must be equal on all ranks; compared by `repr`.

        Returns:
            Prompt tokens in the caches of all ranks.
        """
        return cached

    def sync(self) -> None:
        """Wait for all ranks before a chunk of the prompt."""

    def partition(self, draft: Draft, missing: Sequence[int]) -> Partition:
        """Divide a step's draft; see `partition.partition`."""
        return undivided(draft)

    def agree(
        self,
        partition: Partition,
        found: StepResult | OutOfMemory,
        length: int,
        fingerprint: Callable[[], int],
    ) -> StepResult | OutOfMemory:
        """What all ranks together found in the whole draft, or that memory ran out on one.

        Args:
            partition: of the step.
            found: in this rank's share.
            length: tokens of the text.
            fingerprint: of the draft memory, 32 bits.
        """
        return found

    def end(self) -> None:
        """The generation has ended on all ranks alike: none waits for a message."""

    def leave(self, why: BaseException) -> None:
        """Tell ranks that wait for a message that this one gives the generation up."""


ALONE = Group()


class _ManyRanks(Group):
    """What groups of several ranks have in common.

    From `begin` to `end` all messages have one length, so that a rank that gives up can say so in
    place of whatever message the others wait for.

    Args:
        transport: of which groups need `rank`, `size` and `gather`.

    Attributes:
        begun: generations begun so far.
    """

    def __init__(self, transport: DistributedTransport) -> None:
        self.begun = 0
        self.rank = transport.rank
        self.size = transport.size
        self._transport = transport
        self._format = MessageFormat(1, 0)
        self._steps = 0
        self._awaited = False

    def begin(
        self, cached: int, max_outputs: int, max_successors: int, request: Sequence[object]
    ) -> int:
        """See `Group.begin`."""
        self._format, self._steps = MessageFormat(max_outputs, max_successors), 0
        self._awaited = True
        self.begun += 1
        checks = checksum([max_outputs, max_successors, *request]), 0
        messages = self._exchange(Message(Kind.BEGIN, checks, (cached, 0)))
        self._compare(messages, 0, "was given another prompt or other settings than rank 0")
        return min(message.numbers[0] for message in messages)

    def sync(self) -> None:
        """See `Group.sync`."""
        self._exchange(Message(Kind.READY))

    def agree(
        self,
        partition: Partition,
        found: StepResult | OutOfMemory,
        length: int,
        fingerprint: Callable[[], int],
    ) -> StepResult | OutOfMemory:
        """See `Group.agree`."""
        draft, compares = partition.draft, self._steps % CHECK_INTERVAL == 0
        self._steps += 1
        checks = _draft_checksum(draft, length), fingerprint() if compares else 0
        if isinstance(found, OutOfMemory):
            mine = Message(Kind.OUT_OF_MEMORY, checks, (found.pending, found.width))
        else:
            tokens = [token.id for token in found.verdict.tokens]
            mine = Message(Kind.RESULT, checks, (0, 0), tokens, found.best, found.successors)
        messages = self._exchange(mine)
        self._compare(messages, 0, f"drafted other tokens than rank 0 in step {self._steps}")
        self._compare(messages, 1, f"has another draft memory than rank 0 in step {self._steps}")
        for message in messages:
            if message.kind is Kind.OUT_OF_MEMORY:
                return OutOfMemory(*message.numbers)
        return self._merge(partition, messages)

    def end(self) -> None:
        """See `Group.end`."""
        self._awaited = False

    def leave(self, why: BaseException) -> None:
        """See `Group.leave`."""
        if self._awaited:
            self._awaited = False
            stopped = isinstance(why, GeneratorExit | KeyboardInterrupt)
            message = Message(Kind.STOPPED if stopped else Kind.FAILED)
            self._transport.gather(self._format.pack(message))

    def _merge(self, partition: Partition, messages: Sequence[Message]) -> StepResult:
        """The result of the whole draft, from every rank's result of its share."""
        raise NotImplementedError

    def _exchange(self, mine: Message) -> list[Message]:
        """Every rank's message, while all of them go on."""
        try:
            packed = self._transport.gather(self._format.pack(mine))
        except RankError:
            self._awaited = False
            raise
        messages = [self._format.unpack(each) for each in packed]
        kinds = [message.kind for message in messages]
        if Kind.FAILED in kinds:
            self._fail(f"rank {kinds.index(Kind.FAILED)} failed")
        if Kind.STOPPED in kinds:
            self._awaited = False
            raise GenerationStopped
        results = {Kind.RESULT, Kind.OUT_OF_MEMORY}
        for rank, kind in enumerate(kinds):
            if kind is not kinds[0] and not {kind, kinds[0]} <= results:
                self._fail(f"rank {rank} sent {kind.name}, and rank 0 {kinds[0].name}")
        return messages

    def _compare(self, messages: Sequence[Message], check: int, problem: str) -> None:
        for rank, message in enumerate(messages):
            if message.checks[check] != messages[0].checks[check]:
                self._fail(f"rank {rank} {problem}")

    def _fail(self, problem: str) -> None:
        """End the generation: all ranks have the same messages, so all of them do."""
        self._awaited = False
        raise RankError(problem)


class LookaheadParallel(_ManyRanks):
    """Lookahead parallelism: every rank holds the whole model and computes a share of each draft.

    Source: Fu et al., 2024, section 3.5.  Keys are never sent: a rank that lacks those of accepted
    tokens feeds the tokens again at the head of its next step.
    """

    def __init__(self, transport: DistributedTransport) -> None:
        super().__init__(transport)
        self.shares = transport.size
        self.share = transport.rank

    def partition(self, draft: Draft, missing: Sequence[int]) -> Partition:
        """See `partition.partition`."""
        return partition(draft, missing)

    def _merge(self, partition: Partition, messages: Sequence[Message]) -> StepResult:
        """The longest accepted path; each output from the first rank that has it."""
        draft = partition.draft
        # A path ends early on a rank without its branch; the one that has it goes furthest.
        tokens = max((message.tokens for message in messages), key=len)
        best = [0] * draft.outputs
        successors: list[dict[int, float]] = [{} for _ in best] if draft.successors else []
        for message, share in reversed([*zip(messages, partition.shares, strict=True)]):
            outputs = [0, *[1 + node for node in share.nodes]]
            outputs += [1 + len(draft.tree) + column for column in share.columns]
            for output, token in zip(outputs, message.best, strict=True):
                best[output] = token
            if message.successors:
                for output, row in zip(outputs, message.successors, strict=True):
                    successors[output] = row
        return StepResult(_verdict(draft, tokens), best, successors)


class TensorParallel(_ManyRanks):
    """Tensor parallelism: each rank holds a part of the model, and all feed the same tokens.

    Within a forward the ranks wait for one another, so every forward begins with a message.
    """

    forwards_alone = False

    def __init__(self, transport: DistributedTransport) -> None:
        super().__init__(transport)
        self._in_forward = False
        self._broken = False

    def sync(self) -> None:
        """See `Group.sync`."""
        self._exchange(Message(Kind.READY))
        self._in_forward = True

    def partition(self, draft: Draft, missing: Sequence[int]) -> Partition:
        """One share, which all ranks compute together."""
        self.sync()
        return undivided(draft)

    def leave(self, why: BaseException) -> None:
        """See `Group.leave`; ranks that wait within a forward hear nothing."""
        if self._in_forward and not isinstance(why, GeneratorExit):
            self._broken = True
            self._awaited = False
        super().leave(why)

    def _merge(self, partition: Partition, messages: Sequence[Message]) -> StepResult:
        """Rank 0's result: others may differ in the last bits of a sum, and so in a token."""
        first = messages[0]
        return StepResult(_verdict(partition.draft, first.tokens), first.best, first.successors)

    def _exchange(self, mine: Message) -> list[Message]:
        if self._broken:
            self._fail("the last answer was interrupted within a step; start the ranks again")
        self._in_forward = False
        return super()._exchange(mine)


def _verdict(draft: Draft, tokens: Sequence[int]) -> Verdict:
    """The walk through the whole tree that chose these tokens."""
    nodes: list[int] = []
    for token in tokens[:-1]:
        node = draft.tree.child(nodes[-1] if nodes else ROOT, token)
        if node is None:
            raise RankError(f"a rank accepted token {token}, which is not in the draft")
        nodes.append(node)
    accepted = [Token(draft.tree.tokens[node], draft.tree.sources[node]) for node in nodes]
    return Verdict(tuple(nodes), (*accepted, Token(tokens[-1])))


def _draft_checksum(draft: Draft, length: int) -> int:
    """A checksum of a draft and the length of the text that it continues."""
    tree, window = draft.tree, draft.window.tokens if draft.window else []
    return checksum([length, draft.successors, len(tree), *tree.tokens, *tree.parents, *window])
