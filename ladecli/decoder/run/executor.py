"""An executor runs the steps of a text: what the loop asks of it, and how one process answers.

The loop does not know how steps are run.  `Local` runs them in this process, captured or not, by
what its runner does; `chained` does so with a cache that cannot hold rival continuations; `ranks`
has those that share a step with other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from .. import layout
from ..errors import NoMemoryError
from ..events import FinishReason, PromptRead
from ..faults import Backoff, attempt, check_device
from ..kv_cache import KVCache
from ..layout import StepLayout
from ..model.families import ModelFacts
from ..sampling import Sampler, StepOutput
from ..strategy import Draft, Room, State, StepResult
from .prefill import Prefiller
from .runner import Runner


class Stopped(Exception):
    """The text ends here without a word, because its reader elsewhere wants no more of it."""


class Fed(NamedTuple):
    """What a step is of."""

    draft: Draft  # as far as there was room for it
    width: int  # tokens that this process feeds


class NoRoom(NamedTuple):
    """A step came to nothing: memory did not suffice for it.  It is to be proposed again."""

    width: int | None = None
    """Tokens that steps may have from now on; None for as many as before."""
    reason: FinishReason | None = None
    """Why the text ends here; None where something smaller is left to try."""


class Executor(Protocol):
    """Runs the steps of one text at a time.

    Methods raise `Stopped` where the text ends elsewhere, and `RankError` where other processes
    take part in it and one is gone, has failed, or does something else.
    """

    cache: KVCache
    """Of this process: it holds the committed tokens, as far as they were computed here."""

    @property
    def overlaps(self) -> bool:
        """Whether a step runs on after `start`, so that the host may do something else."""

    def begin(self, state: State, fingerprint: Sequence[object]) -> None:
        """Begin with a text, whose start may be in the cache.

        Args:
            state: the prompt.
            fingerprint: equal in all processes that decode the text.
        """

    def prefill(self, state: State) -> Iterable[PromptRead]:
        """Feed what the cache lacks of the text, but for what the next step can take along."""

    def room(self, state: State) -> Room:
        """How deep and how wide the next step may be, and what is missing in the cache."""

    def start(self, state: State, draft: Draft, sampler: Sampler) -> Fed:
        """Start a step, and what the sampler reads out of it."""

    def verify(self) -> StepResult | NoRoom:
        """Wait for the step, and walk down its tree as far as the model agrees."""

    def commit(self, nodes: Sequence[int]) -> None:
        """Keep the keys of accepted nodes, in the order of the text, beside the pending tokens'."""

    def end(self) -> None:
        """The text is complete."""

    def leave(self, why: BaseException) -> None:
        """The text is given up; raises `DeviceLostError` where that is because of a fault."""


class OutOfMemory(NamedTuple):
    """Memory ran out in a step of `pending` committed tokens; `width` is its other ones and one."""

    pending: int
    width: int


@dataclass(frozen=True, slots=True)
class Started:
    """A step on its way."""

    draft: Draft
    layout: StepLayout
    output: Callable[[], StepOutput] | None  # None where memory did not suffice to start it


def _go_on() -> None:
    """What happens before a chunk of the prompt, where no other process takes part."""


class Local:
    """Runs steps in this process.

    Args:
        runner: runs forwards.
        facts: about the model.
        max_context: the most tokens of prompt and text together.
        chunk: prompt tokens per forward.
    """

    def __init__(self, runner: Runner, facts: ModelFacts, max_context: int, chunk: int) -> None:
        self.runner, self.cache = runner, runner.cache
        self.facts = facts
        self._last_position = max_context - 1
        self._chunk = chunk
        self._prefiller = Prefiller(runner, facts.rope_boundary, chunk)
        self._backoff = Backoff(chunk)
        self._has_read = True
        self._step: Started | None = None

    @property
    def overlaps(self) -> bool:
        """See `Executor`."""
        return self.runner.captures

    def begin(self, state: State, fingerprint: Sequence[object], *, retries: bool = True) -> None:
        """See `Executor`; here no other process takes part.

        With `retries`, a forward that memory does not suffice for is tried again smaller.
        """
        self._backoff = Backoff(self._chunk, retries=retries)
        self._prefiller.invalidate_on_rope_change(len(state.tokens))

    def prefill(self, state: State, before: Callable[[], None] = _go_on) -> Generator[PromptRead]:
        """See `Executor`; `before` is called before every chunk, of the same text everywhere."""
        self._has_read = True
        if len(state.tokens) - self.cache.length > 1 or self.facts.rope_boundary:
            self._has_read = yield from self._prefiller.read(state, self._backoff, before)

    def room(self, state: State) -> Room:
        """See `Executor`."""
        length, last = len(state.tokens), self._last_position
        boundary = self.facts.rope_boundary
        if boundary is not None and length <= boundary:
            # A draft must not reach to where positions change their meaning.
            last = min(last, boundary - 1)
        reach, width = last - (length - 1), self._backoff.width
        # A path of more tokens than a step may have would be wider, too.
        return Room(min(reach, state.end - length - 1, width - 1), reach, width)

    def start(self, state: State, draft: Draft, sampler: Sampler) -> Fed:
        """See `Executor`."""
        if not self._has_read:
            # Nothing is fed: `verify` says so, where all ranks hear of it.
            step, output = layout.NOTHING, None
        else:
            start = self.cache.length
            step = layout.build(state.tokens[start:], start, draft)
            read = partial(
                sampler.read, layout=step, nodes=len(draft.tree), successors=draft.successors
            )
            output = attempt(self.runner.start, step, read)
        self._step = Started(draft, step, output)
        return Fed(draft, len(step.tokens))

    def verify(self) -> StepResult | NoRoom:
        """See `Executor`."""
        found = self.walk()
        return self.narrow(found) if isinstance(found, OutOfMemory) else found

    def walk(self) -> StepResult | OutOfMemory:
        """What is found in the step, or that memory did not suffice for it."""
        assert self._step is not None
        step, found = self._step.layout, None
        if self._step.output is not None:
            found = attempt(self._walk, self._step.output, self._step.draft)
        if found is None and not self._backoff.retries:
            raise NoMemoryError
        return found or OutOfMemory(step.pending, len(step.tokens) - step.pending + 1)

    def _walk(self, wait: Callable[[], StepOutput], draft: Draft) -> StepResult:
        output = wait()
        nodes, tokens = draft.tree.walk(output.choose)
        if output.add_logprobs is not None:
            tokens = output.add_logprobs(tokens, nodes)
        return StepResult(nodes, tokens, output.best, output.successors)

    def narrow(self, short: OutOfMemory) -> NoRoom:
        """Let the next step be smaller than one that memory did not suffice for."""
        before = self._backoff.width
        if not self._backoff.shrink(short.pending, short.width):
            return NoRoom(reason="memory")
        after = self._backoff.width
        return NoRoom(after if after < before else None)

    def commit(self, nodes: Sequence[int]) -> None:
        """See `Executor`.  What was not computed here is fed again, as pending tokens."""
        assert self._step is not None
        pending = self._step.layout.pending
        kept = [*range(pending), *[pending + node for node in nodes]]
        if attempt(self.cache.keep, kept) is None:
            # To gather accepted tokens takes a copy.  Pending ones stand where they belong.
            self.cache.keep(range(pending))

    def end(self) -> None:
        """See `Executor`."""

    def leave(self, why: BaseException) -> None:
        """See `Executor`."""
        check_device(self.runner.device, why)
