"""The only loop: propose, lay out, forward, verify, commit, observe."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from . import layout
from .config import PREFILL_CHUNK, Limits, SamplingConfig
from .errors import ConfigError, DecoderError, NoMemoryError, PromptError
from .events import (
    Event,
    Finished,
    FinishReason,
    Started,
    Step,
    StepNarrowed,
    StepTimes,
    Token,
)
from .faults import attempt, check_device
from .kv_cache import KVCache
from .layout import StepLayout
from .model.families import ModelFacts
from .run.prefill import Backoff, Prefiller
from .run.ranks import ALONE, GenerationStopped, Group, OutOfMemory
from .run.runner import Pending, Runner
from .sampling import LogitsProcessor, Sampler
from .strategy import Draft, State, StepResult, Strategy
from .tree import TokenTree

__all__ = ["Decoder", "Limits"]

MOST_FED_AGAIN = 16
"""Committed tokens that a step with drafts feeds again at most, where its cache is put back if the
drafts are not accepted whole."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one generation was asked for."""

    strategy: Strategy
    sampler: Sampler
    limits: Limits
    detailed: bool
    group: Group
    end: int
    """Length of the text at which it ends at the latest."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that was started.

    Attributes:
        draft: what all ranks try.
        share: what this one computes of it.
        layout: what this one feeds.
        pending: gives its logits; None where memory did not suffice to start it.
    """

    draft: Draft
    share: Draft
    layout: StepLayout
    pending: Pending | None


class Decoder:
    """Decodes token ids with any strategy.

    The cache is kept from one generation to the next: a prompt that starts with tokens that are
    still in it is prefilled from there on only.

    Args:
        max_context: the most tokens of prompt and text together; None for what the model was
            made for.
        prefill_chunk: prompt tokens per forward.

    Attributes:
        max_context: as above, and not more than the model was made for.
        cache: keys and values of the committed text.
    """

    def __init__(
        self,
        runner: Runner,
        facts: ModelFacts,
        *,
        max_context: int | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        self.runner = runner
        if runner.model.drafts != "trees":
            # Where frequencies change is the affair of a model that has a cache of its own.
            facts = replace(facts, rope_boundary=None)
        self.facts = facts
        self.max_context = min(max_context or facts.context, facts.context)
        self.cache: KVCache = runner.cache
        # One generation at a time owns the cache, whose keys are those of `_text` when it is over.
        self._lock = threading.Lock()
        self._owner = 0
        self._text: list[int] = []
        self._prefiller = Prefiller(runner, facts, prefill_chunk)

    def forget(self, *, keep_memory: bool = False) -> None:
        """Drop the cached text; a generation under way is over.

        Args:
            keep_memory: whether the cache's memory is kept for the next text, and with it the
                steps that were captured for its addresses.
        """
        with self._lock:
            self._owner += 1
            self._text = []
            self.cache.truncate(0)
            if not keep_memory:
                self.cache.release()
                self.runner.forget()

    def generate(
        self,
        prompt: Sequence[int],
        strategy: Strategy,
        sampling: SamplingConfig | None = None,
        limits: Limits | None = None,
        processors: Sequence[LogitsProcessor] = (),
        *,
        detailed: bool = False,
        group: Group = ALONE,
    ) -> Generator[Event]:
        """Decode a continuation of `prompt`.

        At every yield, and after the generator is closed or broken off, the cache holds exactly
        the committed tokens but the last one; a rank of a group, or a model that verifies no
        trees, may lack some more.  Where steps are captured, the next one is under way when a step
        is yielded; if the generator is closed then, it was for nothing.

        All ranks of a group call this with the same arguments.  Where one of them closes the
        generator, it ends on the others without `Finished`.

        Args:
            prompt: token ids, at least one.
            strategy: a fresh one from `make_strategy`.
            sampling: how to choose tokens; greedy if None.
            limits: where to end.
            processors: transformers' logits processors, applied before `sampling`.
            detailed: whether steps say what they tried; see `events.Detail`.
            group: the ranks that decode this text together.

        Yields:
            `Started`, `Prefill` for all chunks of the prompt but the last, a `Step` for every
            forward that yields tokens, `StepNarrowed` where memory ran out in one, `Finished`.

        Raises:
            PromptError: the prompt is empty, holds an unknown id, or fills the context.
            ConfigError: several ranks, and steps that are captured or hold no drafts.
            RankError: a rank of the group is gone, has failed, or does something else.
            DeviceLostError: the GPU met a fault; nothing can be computed in this process any more.
            NaNLogitsError: the model's weights are damaged, or too large for their type.
            DecoderError: this generation is resumed after another one has started: there is
                one cache, and it belongs to the newest.
        """
        self.check_prompt(prompt)
        if self.runner.captures and not group.forwards_alone:
            raise ConfigError("tensor parallelism needs a decoder without CUDA graphs")
        if group.size > 1 and self.runner.model.drafts != "trees":
            raise ConfigError(
                f"models of the family {self.facts.family!r} verify one continuation at a time,"
                " which ranks cannot share; leave --parallel out"
            )
        limits = limits or Limits()
        sampling = sampling or SamplingConfig()
        sampler, end = Sampler(sampling, processors), self.max_context
        if limits.max_new_tokens is not None:
            end = min(end, len(prompt) + limits.max_new_tokens)
        branches = self.runner.model.drafts == "trees"
        state = State(list(prompt), len(prompt), sampling, branches=branches)
        return self._run(state, Task(strategy, sampler, limits, detailed, group, end))

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Refuse a prompt that `generate` could not decode.

        Raises:
            PromptError: it is empty, too long, or holds an id that the model does not know.
        """
        if not prompt:
            raise PromptError("the prompt is empty")
        if len(prompt) >= self.max_context:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens and the context holds"
                f" {self.max_context}, which leaves no room for an answer; shorten the prompt"
            )
        if not all(0 <= token < self.facts.vocabulary for token in prompt):
            worst = max(prompt, key=lambda token: abs(token - self.facts.vocabulary / 2))
            raise PromptError(
                f"the prompt holds token {worst}, and the model knows the ids 0 to"
                f" {self.facts.vocabulary - 1}; the tokenizer belongs to another model"
            )

    def _run(self, state: State, task: Task) -> Generator[Event]:
        """Let one thread at a time into the loop, as long as the cache is this generation's."""
        tokens, mine = state.tokens, 0
        if len(tokens) >= task.end:
            yield Finished("length")
            return
        events = self._steps(state, task)
        try:
            with self._lock:
                mine = self._begin(state, task)
            while True:
                with self._lock:
                    if mine != self._owner:
                        raise DecoderError(
                            "another generation has started on this decoder; this one is over"
                        )
                    event = next(events, None)
                if event is None:
                    return
                yield event
        except GenerationStopped:
            pass
        except BaseException as error:
            task.group.leave(error)
            check_device(self.runner.device, error)
            raise
        finally:
            # Ctrl-C can land between any two lines.  The last token has no keys yet.
            with self._lock:
                events.close()
                if mine == self._owner:
                    self.cache.truncate(len(tokens) - 1)
                    self._text = tokens[: self.cache.length]

    def _begin(self, state: State, task: Task) -> int:
        """Take the cache over, and agree with other ranks on the task; the owner's number."""
        tokens, limits = state.tokens, task.limits
        # The cache is used as far as it is of this text, of which one token at least is fed.
        pairs = zip(tokens[:-1], self._text, strict=False)
        self.cache.truncate(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        self._text = []
        self._owner += 1
        self._prefiller.invalidate_on_rope_change(len(tokens))
        request = *tokens, task.sampler.config, limits.max_new_tokens, *sorted(limits.stop_ids)
        self.cache.truncate(task.group.begin(self.cache.length, request))
        task.sampler.commit(tokens)
        task.strategy.begin(state)
        return self._owner

    def _steps(self, state: State, task: Task) -> Generator[Event]:
        """The loop.  A captured step is launched before the one before it is yielded."""
        widest = 1 if self.runner.model.drafts == "none" else sys.maxsize
        backoff, clock = Backoff(self._prefiller.chunk, widest), time.perf_counter
        held: Step | None = None
        reason: FinishReason | None = None
        yield Started(self.cache.length, len(state.tokens))
        try:
            while reason is None:
                if held is not None and not self.runner.captures:
                    yield held
                    held = None
                fits = True
                if len(state.tokens) - self.cache.length > 1 or self.facts.rope_boundary:
                    fits = yield from self._prefiller.read(state, backoff, task.group)
                began = clock()
                step = self._launch(state, task, backoff.width, fits)
                drafted = clock()
                if held is not None:
                    yield held
                    held = None
                found = self._verify(step, task)
                computed = clock()
                if isinstance(found, OutOfMemory):
                    if not backoff.shrink(found.pending, found.width):
                        reason = "memory"
                    elif backoff.width < state.widest:
                        yield StepNarrowed(backoff.width, clock() - began)
                    continue
                current = state.tokens[-1]
                reason = self._commit(step, found, state, task)
                verified = clock()
                task.strategy.observe(state, step.draft, found)
                done = clock()
                parts = drafted - began, computed - drafted, verified - computed, done - verified
                held = Step(
                    tokens=tuple(found.tokens),
                    width=len(step.layout.tokens),
                    proposed=len(step.draft.tree),
                    seconds=done - began,
                    times=StepTimes(*parts),
                    detail=found.detail(current, step.draft) if task.detailed else None,
                )
        except Exception:
            # Its tokens are committed, whatever went wrong since.
            if held is not None:
                yield held
            raise
        if held is not None:
            yield held
        task.group.end()
        new = len(state.tokens) - state.prompt_length
        if reason == "length" and task.limits.max_new_tokens != new:
            reason = "context"
        yield Finished(reason)

    def _launch(self, state: State, task: Task, widest: int, fits: bool) -> Launched:
        """Propose, lay out and start a step.

        Args:
            state: the text.
            task: of the generation.
            widest: tokens of a step that memory suffices for.
            fits: whether the text before the step is in the cache.
        """
        length, last = len(state.tokens), self.max_context - 1
        boundary = self.facts.rope_boundary
        if boundary is not None and length <= boundary:
            # A draft must not reach to where positions change their meaning.
            last = min(last, boundary - 1)
        state.room, state.widest = last - (length - 1), widest
        # A path of more tokens than that would be wider, too.
        state.draft_depth = min(state.room, task.end - length - 1, widest - 1)
        state.missing = task.group.missing
        if not state.branches:
            state.missing = (length - 1 - self.cache.length,)
        draft = task.strategy.propose(state)
        if not state.branches:
            # A step without drafts is accepted whole, so that nothing of it is fed again.
            again = state.missing[0] > MOST_FED_AGAIN
            chain = TokenTree() if again else draft.tree.chain()
            draft = replace(draft, tree=chain, window=None, width=1)
        if max(draft.tree.tokens, default=0) >= self.facts.vocabulary:
            raise ConfigError("the drafts were learned from a model with more token ids")
        draft, share = task.group.share(draft)
        if not fits:
            return Launched(draft, share, layout.NOTHING, None)
        laid_out = layout.build(state.tokens[self.cache.length :], self.cache.length, share)
        return Launched(draft, share, laid_out, attempt(self.runner.start, laid_out))

    def _verify(self, step: Launched, task: Task) -> StepResult | OutOfMemory:
        """What all ranks found in a step, or that memory ran out on one."""
        fed = step.layout
        found: StepResult | OutOfMemory | None = None
        if step.pending is not None:
            found = attempt(self._walk, step.pending, step, task.sampler)
        if found is None:
            if not task.group.forwards_alone:
                raise NoMemoryError
            found = OutOfMemory(fed.pending, len(fed.tokens) - fed.pending + 1)
        return task.group.agree(found)

    def _walk(self, pending: Pending, step: Launched, sampler: Sampler) -> StepResult:
        """Wait for a step, and walk down its tree as far as the model agrees."""
        tree = step.share.tree
        output = sampler.read(pending(), step.layout, len(tree), step.share.successors)
        return StepResult(*tree.walk(output.choose), output.best, output.successors)

    def _commit(
        self, step: Launched, found: StepResult, state: State, task: Task
    ) -> FinishReason | None:
        """Commit the tokens of a step up to the one that ends the text; why it ended, if so.

        Keys of accepted tokens are kept as far as they were computed here; the others are fed
        again, as pending tokens of the next step.  Tokens after the end leave `found`.
        """
        tokens, fed = state.tokens, step.layout.pending
        count, reason = _end_of_text(found.tokens, task.limits, task.end - len(tokens))
        if reason is not None:
            task.group.end()
        # The last committed token is the next current token: its keys come then.
        del found.tokens[count:], found.nodes[count - 1 :]
        kept = [*range(fed), *[fed + place for place in task.group.held(found.nodes)]]
        if attempt(self.cache.keep, kept) is None:
            # Pending tokens stand where they belong: to keep them takes no memory.
            self.cache.keep(range(fed))
        ids = [token.id for token in found.tokens]
        tokens += ids
        task.sampler.commit(ids)
        return reason


def _end_of_text(
    tokens: Sequence[Token], limits: Limits, most: int
) -> tuple[int, FinishReason | None]:
    """How many of a step's tokens belong to the text, and why it ends with them, if it does.

    Args:
        tokens: at least one.
        most: tokens until the longest text.
    """
    for count, token in enumerate(tokens, start=1):
        stop = limits.should_stop is not None and limits.should_stop(token.id)
        if token.id in limits.stop_ids:
            return count, "eos"
        if stop:
            return count, "stop"
        if count >= most:
            return count, "length"
    return len(tokens), None
