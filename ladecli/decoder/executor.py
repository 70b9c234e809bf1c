"""An executor runs the steps of a text: what the loop asks of it, and how one process answers.

The loop does not know how steps are run.  `Executor` runs them in this process, one operation after
the other; `backends.cuda_graphs` has one that captures them, and `Chained` has a cache that cannot
hold rival continuations; those of `ranks` share each step with other processes.
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
"""Committed tokens that a step with drafts feeds again at most, where its cache is put back if the
drafts are not accepted whole."""


T = TypeVar("T")
Read = Callable[[Tensor], Callable[[], T]]
"""Launches what is to be found out of the logits of a step's outputs, [outputs, vocabulary], which
may be on their way yet; what it returns waits for that."""


def whole(logits: Tensor) -> Callable[[], Tensor]:
    """Return the logits as they are; see `Read`."""
    return lambda: logits


class Stopped(Exception):
    """Another rank cancelled this generation."""


class StartedStep(NamedTuple):
    """A step under way."""

    draft: Draft  # as far as there was room for it
    width: int  # tokens that this process feeds


class FailedStep(NamedTuple):
    """A forward that came to nothing: memory ran out, or a draft brought NaNs."""

    pending: int
    """Its committed tokens, the current one included if it was a step."""
    width: int = 1
    """Its other tokens and one more; 1 for a chunk of the prompt."""
    memory: bool = True
    """Whether it was for want of memory."""


class Executor:
    """Runs the steps of one text at a time, in this process.

    Of several processes that take part in a text, methods raise `Stopped` where it ends elsewhere,
    and `RankError` where one is gone, has failed, or does something else.

    Args:
        model: whose forward runs.
        cache: where its keys and values go.
        facts: about the model.
        max_context: the most tokens of prompt and text together, not more than the model was made
            for; None for as many.
        chunk: prompt tokens per forward, where memory suffices; None for what suits the device.

    Attributes:
        overlaps: whether a step runs on after `start`, so that the host may do something else:
            whether steps are captured.
        graphs_made: steps captured so far.
        notices: lines for the user about what steps do without.
    """

    overlaps = False
    # Whether a step, or a chunk of the prompt, that memory does not suffice for is tried smaller.
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
        # What memory was found to suffice for in this text: pending tokens of a forward, and the
        # other tokens of a step.
        self._most_pending, self._widest = self.chunk, sys.maxsize
        self._has_read = True
        # The step under way; no result where memory did not suffice to start it.
        self._layout = layout.NOTHING
        self._result: Callable[[], StepResult] | None = None

    def begin(self, state: State, fingerprint: Sequence[object]) -> None:
        """Begin with a text, whose start may be in the cache.

        Args:
            state: the prompt.
            fingerprint: equal in all processes that decode the text.
        """
        # Anew for every text: one bad moment would slow a whole session down.
        self._most_pending, self._widest = self.chunk, sys.maxsize
        self._invalidate_on_rope_change(len(state.tokens))
        if self.device.type == "cpu":
            # Slots that nobody writes to take no memory there; those of a longer text still do.
            if not self.cache.length:
                self.cache.release()
            # Where it grows later, the old cache and the new one are there together.
            attempt(self.cache.reserve, min(state.end, 2 * len(state.tokens)))

    def prefill(self, state: State) -> Generator[PromptRead]:
        """Run the tokens that the cache lacks in chunks; the next step takes the last chunk along.

        That is the prompt; and the whole text where it grows beyond the boundary at which rotary
        frequencies change, if the model's class reads it anew then.  Then all ranks lack the same
        tokens, and wait for one another before every chunk, so that any of them can end it; none of
        them may try a smaller one.
        """
        self._has_read = True
        total, cache = len(state.tokens), self.cache
        if total - cache.length == 1 and not self.facts.rereads:
            return  # all but the current token is there, as before most steps
        read_anew = self.facts.rereads and self._invalidate_on_rope_change(total)
        alike = read_anew or total == state.prompt_length
        began = time.perf_counter()
        while (start := cache.length) + (most := self._together(start)) < total:
            if alike:
                self._sync()
            # A token that no other one sees has the model turn all keys by the same frequencies.
            anchor = cache.turned - 1 if start < cache.turned else None
            chunk = layout.build_chunk(state.tokens[start : start + most], start, anchor)
            if attempt(self.run, chunk) is None:
                if not self.retries_chunks:
                    raise NoMemoryError
                if not self.narrow(FailedStep(chunk.pending)):
                    self._has_read = False
                    return
                continue
            cache.keep(range(chunk.pending))
            yield PromptRead(cache.length, total, time.perf_counter() - began)
            began = time.perf_counter()

    def _together(self, start: int) -> int:
        """Return the most committed tokens from a position on that one forward may feed: rotary
        frequencies are those of the last one."""
        most, boundary = self._most_pending, self.facts.rope_boundary
        if start < self.cache.turned:
            return min(most, self.cache.turned - start)
        if boundary is None:
            return most
        if start < boundary:
            return min(most, boundary - start)
        return 1 if self.facts.rope_grows else most

    def _invalidate_on_rope_change(self, total: int) -> bool:
        """Forget keys whose rotary frequencies are not those of a text of `total` tokens that is
        read at once; whether they were forgotten."""
        boundary, before = self.facts.rope_boundary, self.cache.turned
        now = 0 if boundary is None or total <= boundary else total
        changed = before != now if self.facts.rope_grows else bool(before) != bool(now)
        if changed:
            self.cache.truncate(0)
            self.cache.turned = now
        return changed

    def _sync(self) -> None:
        """Wait for the other processes that take part."""

    def room(self, state: State) -> Room:
        """Return how deep and how wide the next step may be."""
        length, last = len(state.tokens), self.max_context - 1
        boundary = self.facts.rope_boundary
        if boundary is not None and length <= boundary:
            # A draft must not reach to where positions change their meaning.
            last = min(last, boundary - 1)
        elif boundary is not None and self.facts.rope_grows:
            last = length - 1
        reach, width = last - (length - 1), self._widest
        # A path of more tokens than a step may have would be wider, too.
        return Room(min(reach, state.end - length - 1, width - 1), reach, width)

    def start(self, state: State, draft: Draft, sampler: Sampler) -> StartedStep:
        """Start a step, and what the sampler reads out of it."""
        if self._has_read:
            start = self.cache.length
            self._layout = step = layout.build(state.tokens[start:], start, draft)
            read = partial(sampler.read, layout=step, draft=draft)
            self._result = attempt(self.launch, step, read)
        else:
            # Nothing is fed: `verify` says so, where all ranks hear of it.
            self._layout, self._result = layout.NOTHING, None
        return StartedStep(draft, len(self._layout.tokens))

    def launch(self, layout: StepLayout, read: Read[T]) -> Callable[[], T]:
        """Launch one step, whose keys and values go after the committed ones, and read it out.

        Here nothing happens before the result is asked for.
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
        )
        try:
            with model.context():
                return model.forward(step, cache)
        except Exception as error:
            if not self._simplify(error):
                raise
        return self.run(layout)

    @property
    def ranking(self) -> MostProbable:
        """The function that ranks the logits of a text's steps; kernels of ours may fail."""
        operations = self.model.operations
        return operations.rank if operations.simpler is None else self.most_probable

    def most_probable(self, logits: Tensor, successors: int) -> tuple[Tensor, Tensor]:
        """See `sampling.most_probable`."""
        try:
            return self.model.operations.rank(logits, successors)
        except Exception as error:
            if not self._simplify(error):
                raise
        return self.most_probable(logits, successors)

    def _simplify(self, error: Exception) -> bool:
        """Go on with simpler operations after a kernel of ours has failed, as one can at a size
        that nothing has tried before; whether there are any, and the device lives."""
        simpler = self.model.operations.simpler
        if simpler is None or is_out_of_memory(error):
            return False
        check_alive(self.device, error)
        self.model.use(simpler)
        self.notices.append(f"steps run without Triton kernels, and slower: {reason_of(error)}")
        return True

    def widths(self, limit: int) -> Sequence[int]:
        """Return the only widths that steps should have, up to a limit, which is one of them if it
        can be captured; () if any width will do."""
        return ()

    def forget(self) -> None:
        """Let go of what is kept for further steps."""

    def verify(self) -> StepResult | FailedStep:
        """Wait for the step, and walk down its tree as far as the model agrees."""
        pending, memory = self._layout.pending, True
        width = len(self._layout.tokens) - pending + 1
        try:
            result = None if self._result is None else attempt(self._result)
        except NaNLogitsError:
            # Of one draft, in 16 bits; attention hands it on even to tokens that do not see it.
            self.cache.wipe(captured_width(len(self._layout.tokens)))
            if width == 1:
                raise
            result, memory = None, False
        if result is not None:
            return result
        if memory and not self.retries_steps:
            raise NoMemoryError
        self.cache.keep(())  # a model's own may hold the step already
        return FailedStep(pending, width, memory)

    def narrow(self, short: FailedStep) -> int:
        """Halve the prefill chunk or the step width, whichever was larger, after memory ran out.

        Returns:
            Tokens that a step may have then, as in `Room`; 0 where nothing smaller is left to try.
        """
        if short.memory and short.pending > short.width:
            self._most_pending = short.pending // 2
        elif short.width > 1:
            self._widest = short.width // 2
        return self._widest if max(short.pending, short.width) > 1 else 0

    def commit(self, nodes: Sequence[int]) -> None:
        """Keep the keys of accepted nodes, in the order of the text, beside the pending tokens'.

        What was not computed here is fed again, as pending tokens.
        """
        pending = self._layout.pending
        kept = [*range(pending), *[pending + node for node in nodes]]
        if attempt(self.cache.keep, kept) is None:
            # To gather accepted tokens takes a copy.  Pending ones stand where they belong.
            self.cache.keep(range(pending))

    def end(self) -> None:
        """End the text with the step under way; may be called again."""

    def leave(self, why: BaseException) -> None:
        """Give the text up; raises `DeviceLostError` if the reason is a fault of the device."""
        check_alive(self.device, why)


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
