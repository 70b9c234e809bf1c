"""Executors by which several ranks decode one text together.

The ranks run the same loop over the same text.  Each divides the same draft in the same way and
computes its share; after one exchange of messages all know the result of the whole step.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import ConfigError, DecoderError, RankError
from ..executor import Executor, FailedStep, Read, StartedStep, Stopped, T
from ..layout import StepLayout
from ..sampling import Sampler
from ..strategy import Draft, Room, State, StepResult
from .partition import Share, partition

if TYPE_CHECKING:
    from .transport import DistributedTransport


@dataclass(frozen=True, slots=True)
class LeaveMessage:
    """The message of a rank that leaves a generation."""

    reason: str | None
    """The error; None if its caller closed the generation, or its program is ending."""


class Ranks(Executor):
    """The base of executors that share steps with other ranks.

    From `begin` to `end` all ranks exchange messages at the same points, so that a rank that gives
    up can send a `LeaveMessage` instead of the message that the others wait for.

    Args:
        local: the executor of this process, whose cache is used.
        transport: exchanges messages.

    Attributes:
        size: the number of ranks.
        begun: the number of generations begun so far.

    Raises:
        ConfigError: the model verifies one continuation at a time.
    """

    retries_chunks = False

    def __init__(self, local: Executor, transport: DistributedTransport) -> None:
        super().__init__(local.model, local.cache, local.facts, local.max_context, local.chunk)
        self.overlaps, self.notices = local.overlaps, local.notices
        if local.model.drafts != "trees":
            raise ConfigError(
                f"models of the family {local.facts.family!r} verify one continuation at a time,"
                " which ranks cannot share; leave --parallel out"
            )
        self.size = transport.size
        self.begun = 0
        self._local, self._transport = local, transport
        self._awaited = False
        self._draft = Draft()

    def begin(self, state: State, fingerprint: Sequence[object]) -> None:
        """See `Executor`; the text and the fingerprint must be equal on all ranks."""
        super().begin(state, fingerprint)
        self._awaited = True
        self.begun += 1
        problem = "has another prompt or other settings than rank 0"
        lengths = self._exchange(self.cache.length, fingerprint, problem)
        while min(lengths) < max(lengths):  # recurrent layers may forget more than they have to
            self.cache.truncate(min(lengths))
            lengths = self._exchange(self.cache.length, fingerprint, problem)

    def launch(self, layout: StepLayout, read: Read[T]) -> Callable[[], T]:
        """See `Executor`: a captured step, if the local executor captures."""
        return self._local.launch(layout, read)

    def run(self, layout: StepLayout) -> Tensor:
        """See `Executor`."""
        return self._local.run(layout)

    def verify(self) -> StepResult | FailedStep:
        """See `Executor`: the result of all ranks; a `FailedStep` if memory ran out on one."""
        mine = super().verify()
        draft = self._draft
        tree, window = draft.tree, draft.window.tokens if draft.window else []
        tried = [draft.successors, tree.tokens, tree.parents, window]
        results = self._exchange(mine, tried, "drafted other tokens than rank 0")
        for result in results:
            if isinstance(result, FailedStep):
                return result
        return self._merged(results)

    def end(self) -> None:
        """See `Executor`: from here on no rank waits for a message."""
        self._awaited = False

    def leave(self, error: BaseException) -> None:
        """See `Executor`: tell the ranks that wait for a message."""
        if self._awaited:
            self._awaited = False
            reason = None  # GeneratorExit, Ctrl-C or another signal
            if isinstance(error, Exception):
                kind = "" if isinstance(error, DecoderError) else f"{type(error).__name__}: "
                reason = f"{kind}{error}"
            with contextlib.suppress(RankError):  # another may have ended by the same signal
                self._transport.gather((0, LeaveMessage(reason)))
        super().leave(error)

    def _sync(self) -> None:
        """Wait for all ranks."""
        self._exchange(None, "sync", "is at another token than rank 0")

    def _merged(self, results: Sequence[StepResult]) -> StepResult:
        """Return the result of the whole draft, from the results of its shares."""
        raise NotImplementedError

    def _exchange(self, mine: Any, alike: object, problem: str) -> list[Any]:
        """Return what every rank sent.

        Args:
            mine: the value that this rank sends.
            alike: a value that must be equal on all ranks; its checksum is sent.
            problem: a description of a rank whose value differs, for the message of `RankError`.

        Raises:
            RankError: a rank is gone, has failed, or differs from rank 0.
            Stopped: the caller of a rank has closed the generation.
        """
        checksum = zlib.crc32(repr(alike).encode())
        try:
            messages = self._transport.gather((checksum, mine))
            left = {rank: m for rank, (_, m) in enumerate(messages) if isinstance(m, LeaveMessage)}
            for rank, message in left.items():
                if message.reason is not None:
                    raise RankError(f"rank {rank} failed: {message.reason}")
            if left:
                raise Stopped
            for rank, (other, _) in enumerate(messages):
                if other != messages[0][0]:  # all have the same messages, so all of them end here
                    raise RankError(f"rank {rank} {problem}")
        except (RankError, Stopped):
            self._awaited = False
            raise
        return [message for _, message in messages]


class LookaheadParallel(Ranks):
    """Lookahead parallelism: every rank holds the whole model and computes a share of each draft.

    Source: Fu et al., 2024, section 3.5.  Keys are never sent: a rank that lacks those of accepted
    tokens feeds the tokens again at the head of its next step.
    """

    def __init__(self, local: Executor, transport: DistributedTransport) -> None:
        super().__init__(local, transport)
        self._rank = transport.rank
        self._shares: list[Share] = []
        self._loads = (1,) * self.size

    def begin(self, state: State, fingerprint: Sequence[object]) -> None:
        """See `Executor`."""
        self._loads = (1,) * self.size
        super().begin(state, fingerprint)

    def room(self, state: State) -> Room:
        """See `Executor`."""
        return replace(super().room(state), loads=self._loads)

    def start(self, state: State, draft: Draft, sampler: Sampler) -> StartedStep:
        """See `Executor`: start this rank's share of the draft, or of what ranks have room for."""
        self._draft, self._shares = partition(draft, self._loads)
        fed = super().start(state, self._shares[self._rank].draft, sampler)
        return StartedStep(self._draft, fed.width)

    def commit(self, nodes: Sequence[int]) -> None:
        """See `Executor`: keep the nodes up to the first one that is not in this rank's share."""
        held = [share.held(nodes) for share in self._shares]
        self._loads = tuple([1 + len(nodes) - len(kept) for kept in held])
        super().commit(held[self._rank])

    def _merged(self, results: Sequence[StepResult]) -> StepResult:
        tree, window = self._draft.tree, self._draft.window
        columns = 1 + len(tree)
        outputs = range(columns + (len(window.last_row) if window else 0))
        best = [0 for _ in outputs]
        successors: list[dict[int, float]] = [{} for _ in outputs if self._draft.successors]
        ranks = list(zip(results, self._shares, strict=True))
        for result, share in reversed(ranks):  # if several have an output, the first one's counts
            places = [0, *[1 + node for node in share.nodes]]
            places += [columns + column for column in share.columns]
            for place, token in zip(places, result.best, strict=True):
                best[place] = token
            for place, row in zip(places, result.successors, strict=False):
                successors[place] = row
        # The path ends early on ranks that lack its branch; a rank that has it goes furthest.
        furthest, share = max(ranks, key=lambda rank: len(rank[0].tokens))
        nodes = [share.nodes[node] for node in furthest.nodes]
        return StepResult(nodes, furthest.tokens, best, successors)


class TensorParallel(Ranks):
    """Tensor parallelism: each rank holds a part of the model, and all feed the same tokens.

    Within a forward the ranks wait for one another, so every forward begins with a message, and no
    rank can retry a smaller one alone.  The result of a step is that of rank 0: the others' sums
    may differ in their last bits, and so in a token.

    Raises:
        ConfigError: steps are captured.
    """

    retries_steps = False

    def __init__(self, local: Executor, transport: DistributedTransport) -> None:
        if local.overlaps:
            raise ConfigError("tensor parallelism needs a decoder without CUDA graphs")
        super().__init__(local, transport)
        self._in_forward = False

    def start(self, state: State, draft: Draft, sampler: Sampler) -> StartedStep:
        """See `Executor`: the whole draft, which all ranks compute together."""
        self._sync()
        self._draft = draft
        return super().start(state, draft, sampler)

    def leave(self, error: BaseException) -> None:
        """See `Executor`; ranks that wait within a forward cannot be reached."""
        if self._in_forward and not isinstance(error, GeneratorExit):
            self._awaited = False
            self._transport.lose("a step of all ranks was interrupted; start the ranks again")
        super().leave(error)

    def _sync(self) -> None:
        super()._sync()
        # Until the next message, which shows that the forward has ended everywhere.
        self._in_forward = True

    def _merged(self, results: Sequence[StepResult]) -> StepResult:
        return results[0]

    def _exchange(self, mine: Any, alike: object, problem: str) -> list[Any]:
        self._in_forward = False
        return super()._exchange(mine, alike, problem)
