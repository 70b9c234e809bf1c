"""The executor runs the steps of a text; the loop does not know how.

`Executor` runs them in this process, one operation after the other.  Other executors derive from
it: `Chained` is for models that verify no trees, `backends.cuda_graphs` captures steps, and those
of `ranks` share each step with other processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from . import layout
from .config import captured_width, chunk_on
from .errors import NaNLogitsError, NoMemoryError
from .events import PromptRead
from .faults import attempt, check_alive, is_out_of_memory, reason_of
from .kv_cache import KVCache, to_device
from .layout import StepLayout
from .model.families import ModelFacts
from .model.forward import Forward, StepInputs
from .model.mask import StepMask
from .sampling import MostProbable, Sampler
from .strategy import Draft, Room, State, StepResult
from .tree import TokenTree

MOST_FED_AGAIN = 16
"""See `Chained`: the most committed tokens that a step with a draft feeds again."""


T = TypeVar("T")
Read = Callable[[Tensor], Callable[[], T]]
"""Takes the logits of a step, [outputs, vocabulary], which a GPU may still be computing; launches
what is computed from them, and returns a function that waits for the result."""


def whole(logits: Tensor) -> Callable[[], Tensor]:
    """A `Read` whose result is the logits themselves, for tests and trials."""
    return lambda: logits


class Stopped(Exception):
    """Another rank cancelled this generation."""


class StartedStep(NamedTuple):
    """A step under way."""

    draft: Draft  # the part of the proposed draft that is tried
    width: int  # tokens that this process feeds


class FailedStep(NamedTuple):
    """A forward without a result: memory ran out, or logits were NaN because of a draft."""

    pending: int
    """The number of its committed tokens, the current one included."""
    width: int = 1
    """The number of its other tokens and the current one, as in `Room`; 1 for a prompt chunk."""
    memory: bool = True
    """True if memory ran out."""


class Executor:
    """Runs the steps of one text at a time, in this process.

    The loop calls `begin`; then, for each step, `prefill`, `room`, `start`, `verify` and `commit`
    (`narrow` if the step failed); and `end`.  The methods of executors in `ranks` also raise
    `Stopped` if another rank has ended the text, and `RankError` if one is gone, has failed, or
    decodes something else.

    Args:
        model: the forward.
        cache: the cache for its keys and values.
        facts: facts about the model.
        max_context: the most tokens of prompt and answer together, at most as many as the model
            allows; None for the model's default.
        chunk: prompt tokens per forward, if memory suffices; None for the device's default.

    Attributes:
        overlaps: whether a step runs on by itself after `start`, because it is captured.
        graphs_made: the number of steps captured so far.
        notices: lines for the user about features that were given up.
        retries_steps: whether a step that memory does not suffice for is tried again, smaller.
        retries_chunks: the same for a chunk of the prompt.
    """

    overlaps = False
    retries_steps = retries_chunks = True

    def __init__(
        self,
        model: Forward,
        cache: KVCache,
        facts: ModelFacts,
        max_context: int | None = None,
        chunk: int | None = None,
    ) -> None:
        self.model, self.cache, self.facts = model, cache, facts
        self.device = model.device
        self.max_context = min(max_context or facts.context, facts.most_context)
        self.chunk = chunk or chunk_on(self.device.type)
        self.graphs_made = 0
        self.notices: list[str] = []
        # What memory sufficed for so far in this text: the pending tokens of a forward, and the
        # width of a step.
        self._most_pending, self._widest = self.chunk, sys.maxsize
        self._prefilled = True  # false if memory did not even suffice for a chunk of one token
        # The step under way; no result if memory did not suffice to start it.
        self._layout = layout.NOTHING
        self._result: Callable[[], StepResult] | None = None

    def begin(self, state: State, fingerprint: Sequence[object]) -> None:
        """Begin a text, whose start may be in the cache.

        Args:
            state: the text, which is the prompt so far.
            fingerprint: what ranks compare: it must be equal on all that decode the text.
        """
        # Limits of earlier texts do not count: another program may have held the memory.
        self._most_pending, self._widest = self.chunk, sys.maxsize
        self._invalidate_on_rope_change(len(state.tokens))
        if self.device.type == "cpu":
            # On a CPU, slots take memory once they are written to: give up those of a longer text.
            if not self.cache.length:
                self.cache.release()
            # Reserve early: while a cache grows, the old tensors and the new ones exist together.
            attempt(self.cache.reserve, min(state.end, 2 * len(state.tokens)))

    def prefill(self, state: State) -> Generator[PromptRead]:
        """Run the tokens that the cache lacks in chunks; the next step feeds the last chunk.

        These tokens are the prompt.  If the text grows beyond the boundary at which rotary
        frequencies change, and the model's class reads it anew then, they are the whole text.
        """
        self._prefilled = True
        total, cache = len(state.tokens), self.cache
        if total - cache.length == 1 and not self.facts.rereads:
            return  # all but the current token is there, as before most steps
        read_anew = self.facts.rereads and self._invalidate_on_rope_change(total)
        # Otherwise each rank lacks other tokens, those that it did not compute in the last step.
        all_ranks_lack_them = read_anew or total == state.prompt_length
        began = time.perf_counter()
        while (start := cache.length) + (most := self._together(start)) < total:
            if all_ranks_lack_them:
                self._sync()
            # All chunks must be turned by the frequencies of the whole text, which depend on the
            # largest position in a forward: one more token at that position, which no other sees.
            anchor = cache.turned - 1 if start < cache.turned else None
            chunk = layout.build_chunk(state.tokens[start : start + most], start, anchor)
            if attempt(self.run, chunk) is None:
                if not self.retries_chunks:
                    raise NoMemoryError
                if not self.narrow(FailedStep(chunk.pending)):
                    self._prefilled = False
                    return
                continue
            cache.keep(range(chunk.pending))
            yield PromptRead(cache.length, total, time.perf_counter() - began)
            began = time.perf_counter()

    def _together(self, start: int) -> int:
        """Return the most committed tokens from a position on that one forward may feed: it turns
        all of them by the rotary frequencies of the last one."""
        most, boundary = self._most_pending, self.facts.rope_boundary
        if start < self.cache.turned:
            return min(most, self.cache.turned - start)
        if boundary is None:
            return most
        if start < boundary:
            return min(most, boundary - start)
        return 1 if self.facts.rope_grows else most

    def _invalidate_on_rope_change(self, total: int) -> bool:
        """Forget all keys if their rotary frequencies are not those of a text of `total` tokens
        that is read at once; return whether they were forgotten."""
        boundary, before = self.facts.rope_boundary, self.cache.turned
        now = 0 if boundary is None or total <= boundary else total
        changed = before != now if self.facts.rope_grows else bool(before) != bool(now)
        if changed:
            self.cache.truncate(0)
            self.cache.turned = now
        return changed

    def _sync(self) -> None:
        """Wait for the other ranks, any of which may end the text here."""

    def room(self, state: State) -> Room:
        """Return how deep and how wide the next step may be."""
        length, last = len(state.tokens), self.max_context - 1
        boundary = self.facts.rope_boundary
        if boundary is not None and length <= boundary:
            # A draft must not cross the boundary at which rotary frequencies change.
            last = min(last, boundary - 1)
        elif boundary is not None and self.facts.rope_grows:
            last = length - 1
        reach, width = last - (length - 1), self._widest
        # A path is not deeper than the step is wide.
        return Room(min(reach, state.end - length - 1, width - 1), reach, width)

    def start(self, state: State, draft: Draft, sampler: Sampler) -> StartedStep:
        """Start a step, and what the sampler computes from its logits."""
        if self._prefilled:
            start = self.cache.length
            self._layout = step = layout.build(state.tokens[start:], start, draft)
            read = partial(sampler.read, layout=step, draft=draft)
            self._result = attempt(self.launch, step, read)
        else:
            # Nothing is fed: `verify` reports it, so that all ranks hear of it.
            self._layout, self._result = layout.NOTHING, None
        return StartedStep(draft, len(self._layout.tokens))

    def launch(self, layout: StepLayout, read: Read[T]) -> Callable[[], T]:
        """Launch one step, whose keys and values go after the committed ones, and read its logits.

        Returns:
            A function that waits for the result.  Here it is what runs the step; `cuda_graphs`
            launches the step first.
        """
        return lambda: read(self.run(layout))()

    def run(self, layout: StepLayout) -> Tensor:
        """Run one step; return the logits of its outputs, [outputs, vocabulary]."""
        model, cache, count = self.model, self.cache, len(layout.tokens)
        if cache.length + count > cache.slots:
            cache.reserve(cache.length + count)
        outputs: Tensor | None = None
        if layout.outputs != [*range(count)]:
            outputs = to_device(np.array(layout.outputs, dtype=np.int64), self.device)
        mask = StepMask(layout.rows, layout.positions, cache.length)
        step = StepInputs(
            tokens=to_device(layout.tokens, self.device),
            positions=to_device(layout.positions, self.device),
            mask=mask,
            outputs=outputs,
            length=cache.length,
            last_position=mask.last_position,
            pending=layout.pending,
        )
        try:
            with model.context():
                return model.forward(step, cache)
        except Exception as error:
            if not self._fall_back(error):
                raise
        return self.run(layout)

    @property
    def ranking(self) -> MostProbable:
        """The function that ranks logits, with a fallback if it is a Triton kernel."""
        operations = self.model.operations
        return operations.rank if operations.simpler is None else self._rank_or_fall_back

    def _rank_or_fall_back(self, logits: Tensor, successors: int) -> tuple[Tensor, Tensor]:
        """See `sampling.most_probable`."""
        try:
            return self.model.operations.rank(logits, successors)
        except Exception as error:
            if not self._fall_back(error):
                raise
        return self._rank_or_fall_back(logits, successors)

    def _fall_back(self, error: Exception) -> bool:
        """Use simpler operations from now on if a Triton kernel has failed, as it may at a size
        that it has not met before; return whether the failed call can be repeated."""
        simpler = self.model.operations.simpler
        if simpler is None or is_out_of_memory(error):
            return False
        check_alive(self.device, error)
        self.model.use(simpler)
        self.notices.append(f"steps run without Triton kernels, and slower: {reason_of(error)}")
        return True

    def widths(self, limit: int) -> Sequence[int]:
        """Return the only widths up to a limit that steps should have, because these are captured;
        () for any width."""
        return ()

    def forget(self) -> None:
        """Free what is kept for later steps, such as captured ones."""

    def verify(self) -> StepResult | FailedStep:
        """Wait for the step, and walk down its tree as far as the model agrees."""
        pending, memory = self._layout.pending, True
        width = len(self._layout.tokens) - pending + 1
        try:
            result = None if self._result is None else attempt(self._result)
        except NaNLogitsError:
            # In 16 bits, one draft token may overflow, and a masked NaN spreads in attention to
            # tokens that do not see it.  Try again without the draft.
            self.cache.wipe(captured_width(len(self._layout.tokens)))
            if width == 1:
                raise
            result, memory = None, False
        if result is not None:
            return result
        if memory and not self.retries_steps:
            raise NoMemoryError
        self.cache.keep(())  # the cache of `transformers_cache` may hold the step already
        return FailedStep(pending, width, memory)

    def narrow(self, failed: FailedStep) -> int:
        """Halve the prefill chunk or the step width, whichever was larger, after a forward failed.

        Returns:
            The width that a step may have now, as in `Room`; 0 if nothing smaller can be tried.
        """
        if failed.memory and failed.pending > failed.width:
            self._most_pending = failed.pending // 2
        elif failed.width > 1:
            self._widest = failed.width // 2
        return self._widest if max(failed.pending, failed.width) > 1 else 0

    def commit(self, nodes: Sequence[int]) -> None:
        """Keep the keys of the pending tokens, and of accepted nodes in the order of the text.

        Tokens whose keys are not kept become pending, and the next step feeds them again.
        """
        pending = self._layout.pending
        kept = [*range(pending), *[pending + node for node in nodes]]
        if attempt(self.cache.keep, kept) is None:
            # Memory is short for the copy that gathers accepted tokens; pending ones need none.
            self.cache.keep(range(pending))

    def end(self) -> None:
        """End the text with the step under way; calling this twice does no harm."""

    def leave(self, error: BaseException) -> None:
        """Give the text up after an error; raise `DeviceLostError` if the device met a fault."""
        check_alive(self.device, error)


class Chained(Executor):
    """Runs steps of a model with a cache of its own, which holds one continuation of the text.

    Where a chain of drafts is not accepted whole, the cache is put back to where it was before the
    step, and the accepted tokens are fed again with the next one.
    """

    def begin(self, state: State, fingerprint: Sequence[object]) -> None:
        """See `Executor`."""
        super().begin(state, fingerprint)
        if self.model.drafts == "none":
            self._widest = 1

    def _together(self, start: int) -> int:
        """See `Executor`: what one set of rotary frequencies turns is fed at once."""
        left = self.cache.turned - start
        return left if left > 0 else super()._together(start)

    def room(self, state: State) -> Room:
        """See `Executor`: only a chain can be verified."""
        begins = len(state.tokens) == state.prompt_length
        load = 1 if begins else len(state.tokens) - self.cache.length
        return replace(super().room(state), loads=(load,), branches=False)

    def start(self, state: State, draft: Draft, sampler: Sampler) -> StartedStep:
        """See `Executor`."""
        # A step without drafts is accepted whole, so that nothing of it is fed again.
        again = len(state.tokens) - 1 - self.cache.length > MOST_FED_AGAIN
        tree = TokenTree() if again else draft.tree
        return super().start(state, replace(draft, tree=tree, window=None, width=1), sampler)
