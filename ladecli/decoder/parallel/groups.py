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

from numpy.typing import NDArray

from ..errors import DecoderError, RankError
from ..events import Token
from ..layout import Draft
from ..observation import Successors
from ..tree import ROOT
from ..verify import Verdict
from .messages import NO_TOKEN, Kind, message_type, new_message
from .partition import Partition, partition, undivided

if TYPE_CHECKING:
    from .transport import DistributedTransport


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
        shares: number of shares of a draft.
        share: the one that this rank computes.
        forwards_alone: whether a forward needs no other rank, so that a smaller one may be tried.
    """

    size = 1
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
        self, partition: Partition, found: StepResult | OutOfMemory
    ) -> StepResult | OutOfMemory:
        """What all ranks together found in the whole draft, or that memory ran out on one.

        Args:
            partition: of the step.
            found: in this rank's share.
        """
        return found

    def end(self) -> None:
        """The generation has ended on all ranks alike: none waits for a message."""

    def leave(self, why: BaseException) -> None:
        """Tell ranks that wait for a message that this one gives the generation up."""


ALONE = Group()


class _ManyRanks(Group):
    """What groups of several ranks have in common.

    From `begin` to `end` all messages have one size, so that a rank that gives up can send that in
    place of whatever message the others wait for.

    Attributes:
        begun: generations begun so far.
    """

    def __init__(self, transport: DistributedTransport) -> None:
        self.begun = 0
        self.size = transport.size
        self._transport = transport
        self._dtype = message_type(1, 0)
        self._awaited = False

    def begin(
        self, cached: int, max_outputs: int, max_successors: int, request: Sequence[object]
    ) -> int:
        """See `Group.begin`."""
        self._dtype = message_type(max_outputs, max_successors)
        self._awaited = True
        self.begun += 1
        mine = new_message(self._dtype, Kind.BEGIN)
        mine["checksum"] = _checksum([max_outputs, max_successors, *request])
        mine["numbers"] = cached, 0
        messages = self._exchange(mine, "was given another prompt or other settings than rank 0")
        return int(messages["numbers"][:, 0].min())

    def sync(self) -> None:
        """See `Group.sync`."""
        self._exchange(new_message(self._dtype, Kind.READY), "is not where rank 0 is")

    def agree(
        self, partition: Partition, found: StepResult | OutOfMemory
    ) -> StepResult | OutOfMemory:
        """See `Group.agree`."""
        if isinstance(found, OutOfMemory):
            mine = new_message(self._dtype, Kind.OUT_OF_MEMORY)
            mine["numbers"] = found.pending, found.width
        else:
            mine = new_message(self._dtype, Kind.RESULT)
            tokens = [token.id for token in found.verdict.tokens]
            mine["tokens"][: len(tokens)] = tokens
            mine["best"][: len(found.best)] = found.best
            for output, row in enumerate(found.successors):
                mine["successors"][output, : len(row)] = [*row]
                mine["probabilities"][output, : len(row)] = [*row.values()]
        mine["checksum"] = _draft_checksum(partition.draft)
        messages = self._exchange(mine, "drafted other tokens than rank 0")
        for message in messages:
            if message["kind"] == Kind.OUT_OF_MEMORY:
                return OutOfMemory(*message["numbers"].tolist())
        return _merged(partition, messages)

    def end(self) -> None:
        """See `Group.end`."""
        self._awaited = False

    def leave(self, why: BaseException) -> None:
        """See `Group.leave`."""
        if not self._awaited:
            return
        self._awaited = False
        stopped = isinstance(why, GeneratorExit | KeyboardInterrupt)
        mine = new_message(self._dtype, Kind.STOPPED if stopped else Kind.FAILED)
        if Kind.FAILED in self._transport.gather(mine)["kind"]:
            known = isinstance(why, DecoderError)
            self._transport.gather_objects(str(why) if known else f"{type(why).__name__}: {why}")

    def _exchange(self, mine: NDArray[Any], problem: str) -> NDArray[Any]:
        """Every rank's message, while all of them go on.

        Raises:
            RankError: a rank is gone or has failed, or its checksum is not rank 0's: `problem`
                is what that means.
        """
        try:
            messages = self._transport.gather(mine)
            failed = messages["kind"] == Kind.FAILED
            if failed.any():
                rank = int(failed.argmax())
                reason = self._transport.gather_objects("")[rank]
                raise RankError(f"rank {rank} failed: {reason}")
            if Kind.STOPPED in messages["kind"]:
                raise GenerationStopped
            differ = messages["checksum"] != messages["checksum"][0]
            if differ.any():  # all ranks have the same messages, so all of them end here
                raise RankError(f"rank {differ.argmax()} {problem}")
        except (RankError, GenerationStopped):
            self._awaited = False
            raise
        return messages


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


class TensorParallel(_ManyRanks):
    """Tensor parallelism: each rank holds a part of the model, and all feed the same tokens.

    Within a forward the ranks wait for one another, so every forward begins with a message.  A
    draft has one share, whose result is rank 0's: others may differ in the last bits of a sum, and
    so in a token.
    """

    forwards_alone = False

    def __init__(self, transport: DistributedTransport) -> None:
        super().__init__(transport)
        self._in_forward = False

    def sync(self) -> None:
        """See `Group.sync`."""
        super().sync()
        self._in_forward = True

    def partition(self, draft: Draft, missing: Sequence[int]) -> Partition:
        """One share, which all ranks compute together."""
        self.sync()
        return undivided(draft)

    def leave(self, why: BaseException) -> None:
        """See `Group.leave`; ranks that wait within a forward cannot be reached."""
        if self._in_forward and not isinstance(why, GeneratorExit):
            self._awaited = False
            self._transport.lose("a step of all ranks was broken off; start the ranks again")
        super().leave(why)

    def _exchange(self, mine: NDArray[Any], problem: str) -> NDArray[Any]:
        self._in_forward = False
        return super()._exchange(mine, problem)


def _merged(partition: Partition, messages: NDArray[Any]) -> StepResult:
    """The result of the whole draft, from the results of its shares."""
    draft, columns = partition.draft, 1 + len(partition.draft.tree)
    ranks = list(zip(messages, partition.shares, strict=False))  # one share: that of rank 0
    # A path ends early on a rank without its branch; the one that has it goes furthest.
    paths = [message["tokens"] for message, _ in ranks]
    path = max((tokens[tokens != NO_TOKEN].tolist() for tokens in paths), key=len)
    best = [0] * draft.outputs
    successors: list[dict[int, float]] = [{} for _ in best] if draft.successors else []
    for message, share in reversed(ranks):  # what several have is the first one's
        outputs = [0, *[1 + node for node in share.nodes]]
        outputs += [columns + column for column in share.columns]
        for output, token in zip(outputs, message["best"].tolist(), strict=False):
            best[output] = token
        if successors:
            ids, probabilities = message["successors"].tolist(), message["probabilities"].tolist()
            for output, *row in zip(outputs, ids, probabilities, strict=False):
                pairs = zip(*row, strict=True)
                successors[output] = {token: p for token, p in pairs if token != NO_TOKEN}
    return StepResult(_verdict(draft, path), best, successors)


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


def _draft_checksum(draft: Draft) -> int:
    tree, window = draft.tree, draft.window.tokens if draft.window else []
    return _checksum([draft.successors, len(tree), *tree.tokens, *tree.parents, *window])


def _checksum(parts: Sequence[object]) -> int:
    """CRC-32 of what `repr` makes of them."""
    return zlib.crc32(repr(parts).encode())
