"""The only loop: propose, lay out, forward, verify, commit, observe."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
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
from .families import ModelFacts
from .kv_cache import KVCache
from .layout import StepLayout
from .memory import Backoff, attempt
from .observation import Observation, State
from .parallel.groups import ALONE, GenerationStopped, Group, OutOfMemory, StepResult
from .parallel.partition import Partition
from .prefill import Prefiller
from .runner import Pending, Runner, check_device
from .sampling import LogitsProcessor, Sampler
from .strategies import Strategy
from .verify import Verdict, walk

__all__ = ["Decoder", "Limits"]


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
        partition: its draft and the ranks' shares.
        layout: what this rank feeds.
        pending: gives its logits; None where memory did not suffice to start it.
    """

    partition: Partition
    layout: StepLayout
    pending: Pending | None


class Decoder:
    """Decodes token ids with any strategy.

    The cache is kept from one generation to the next: a prompt that starts with tokens that are
    still in it is prefilled from there on only.

    Args:
        runner: runs the steps of a model.
        facts: about the model.
        max_context: the most tokens of prompt and text together; None for what the model was
            made for.
        prefill_chunk: prompt tokens per forward.

    Attributes:
        runner, facts: as given.
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
        the committed tokens but the last one; a rank of a group may lack some more.  Where steps
        are captured, the next one is under way when a step is yielded; if the generator is
        closed then, it was for nothing.

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
            ConfigError: steps are captured, and ranks of the group compute each one together.
            RankError: a rank of the group is gone, has failed, or does something else.
            DeviceLostError: the GPU met a fault; nothing can be computed in this process any more.
            NaNLogitsError: the model's weights are damaged, or too large for their type.
            DecoderError: this generation is resumed after another one has started: there is
                one cache, and it belongs to the newest.
        """
        self.check_prompt(prompt)
        if self.runner.captures and not group.forwards_alone:
            raise ConfigError("tensor parallelism needs a decoder without CUDA graphs")
        limits = limits or Limits()
        sampler, end = Sampler(sampling or SamplingConfig(), processors), self.max_context
        if limits.max_new_tokens is not None:
            end = min(end, len(prompt) + limits.max_new_tokens)
        task = Task(strategy, sampler, limits, detailed, group, end)
        return self._exclusive(self._decode(list(prompt), task))

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

    def _exclusive(self, events: Generator[Event]) -> Generator[Event]:
        """Let one thread at a time into a generation."""
        try:
            while True:
                with self._lock:
                    event = next(events, None)
                if event is None:
                    return
                yield event
        finally:
            with self._lock:
                events.close()

    def _decode(self, tokens: list[int], task: Task) -> Generator[Event]:
        state = State(tokens, len(tokens), missing=(0,) * task.group.shares)
        if len(tokens) >= task.end:
            yield Finished("length")
            return
        # The cache is taken over as far as it is of this text, of which one token at least is fed.
        pairs = zip(tokens[:-1], self._text, strict=False)
        self.cache.truncate(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        self._text = []
        self._owner += 1
        mine = self._owner
        try:
            self._begin(tokens, task)
            task.sampler.commit(tokens)
            task.strategy.begin(state)
            with closing(self._steps(state, task)) as events:
                for event in events:
                    yield event
                    if mine != self._owner:
                        raise DecoderError(
                            "another generation has started on this decoder; this one is over"
                        )
        except GenerationStopped:
            pass
        except BaseException as error:
            task.group.leave(error)
            check_device(self.runner.device, error)
            raise
        finally:
            # Ctrl-C can land between any two lines.  The last token has no keys yet.
            if mine == self._owner:
                self.cache.truncate(len(tokens) - 1)
                self._text = tokens[: self.cache.length]

    def _begin(self, tokens: list[int], task: Task) -> None:
        """Agree with other ranks on the task and on what all of them have cached."""
        self._prefiller.invalidate_on_rope_change(len(tokens))
        strategy, limits = task.strategy, task.limits
        request = (*tokens, task.sampler.config, limits.max_new_tokens, *sorted(limits.stop_ids))
        sizes = strategy.max_outputs, strategy.max_successors
        self.cache.truncate(task.group.begin(self.cache.length, *sizes, request))

    def _steps(self, state: State, task: Task) -> Generator[Event]:
        """The loop.  A captured step is launched before the one before it is yielded."""
        backoff, clock = Backoff(self._prefiller.chunk), time.perf_counter
        held: Step | None = None
        reason: FinishReason | None = None
        yield Started(self.cache.length, len(state.tokens))
        try:
            while reason is None:
                if held is not None and not self.runner.captures:
                    yield held
                    held = None
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
                committed, reason = self._commit(step, found, state, task)
                verified = clock()
                draft, nodes = step.partition.draft, found.verdict.nodes
                verdict = Verdict(nodes[: len(committed) - 1], committed)
                seen = Observation(draft, state.tokens, verdict, found.best, found.successors)
                task.strategy.observe(state, seen)
                done = clock()
                parts = drafted - began, computed - drafted, verified - computed, done - verified
                held = Step(
                    tokens=committed,
                    width=len(step.layout.tokens),
                    proposed=len(draft.tree),
                    seconds=done - began,
                    times=StepTimes(*parts),
                    detail=seen.detail() if task.detailed else None,
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
        """Propose, partition, lay out and start a step.

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
        draft = task.strategy.propose(state)
        if max(draft.tree.tokens, default=0) >= self.facts.vocabulary:
            raise ConfigError("the drafts were learned from a model with more token ids")
        partition = task.group.partition(draft, state.missing)
        if not fits:
            return Launched(partition, layout.NOTHING, None)
        share = partition.shares[task.group.share].draft
        laid_out = layout.build(state.tokens[self.cache.length :], self.cache.length, share)
        return Launched(partition, laid_out, attempt(self.runner.start, laid_out))

    def _verify(self, step: Launched, task: Task) -> StepResult | OutOfMemory:
        """What all ranks found in a step, or that memory ran out on one."""
        group, fed = task.group, step.layout
        found: StepResult | OutOfMemory | None = None
        if step.pending is not None:
            found = attempt(self._walk, step.pending, step, task)
        if found is None:
            if not group.forwards_alone:
                raise NoMemoryError
            found = OutOfMemory(fed.pending, len(fed.tokens) - fed.pending + 1)
        return group.agree(step.partition, found)

    def _walk(self, pending: Pending, step: Launched, task: Task) -> StepResult:
        """Wait for a step, and walk down its tree as far as the model agrees."""
        draft = step.partition.shares[task.group.share].draft
        output = task.sampler.read(pending(), step.layout, len(draft.tree), draft.successors)
        return StepResult(walk(draft.tree, output.choose), output.best, output.successors)

    def _commit(
        self, step: Launched, found: StepResult, state: State, task: Task
    ) -> tuple[tuple[Token, ...], FinishReason | None]:
        """Commit the tokens of a step up to the one that ends the text; why it ended, if so.

        Keys of accepted tokens are kept as far as they were computed here; the others are fed
        again, as pending tokens of the next step.
        """
        nodes, fed = found.verdict.nodes, step.layout.pending
        held = [share.held(nodes) for share in step.partition.shares]
        state.missing = tuple([len(nodes) - len(each) for each in held])
        kept = [*range(fed), *[fed + node for node in held[task.group.share]]]
        if attempt(self.cache.keep, kept) is None:
            # Pending tokens stand where they belong: to keep them takes no memory.
            self.cache.keep(range(fed))
        tokens = state.tokens
        committed, reason = task.limits.cut(found.verdict.tokens, task.end - len(tokens))
        if reason is not None:
            task.group.end()
        # The last committed token is the next current token: its keys come then.
        self.cache.truncate(len(tokens) + len(committed) - 1)
        ids = [token.id for token in committed]
        tokens += ids
        task.sampler.commit(ids)
        return committed, reason
