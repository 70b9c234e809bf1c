"""The only loop: propose, lay out, forward, verify, keep, observe, yield."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import nn

from . import layout
from .attention import bind, release
from .capture import Capture
from .config import GROWTH, PREFILL_CHUNK, SamplingConfig
from .errors import ConfigError, NoNumbersError, PromptError
from .events import Event, Finished, FinishReason, Squeezed, Started, Step
from .graphs import GraphRunner
from .job import Job
from .kv_cache import KVCache
from .ladder import ladder_for
from .layout import Draft, StepLayout
from .lean import make_lean
from .limits import Limits, cut
from .meanwhile import MEANWHILE, told_meanwhile
from .memory import Allowance, attempt, try_forward
from .observation import Observation
from .parallel.deal import Dealt
from .parallel.group import ALONE, Finding, Group, Shortage, Stopped
from .places import is_split
from .probe import probe, try_capture
from .reader import Reader
from .runner import Runner, Running
from .sampling import LogitsProcessor, Sampler
from .stopwatch import BETWEEN, Stopwatch
from .strategies import State, Strategy
from .support import ModelFacts, examine
from .tenancy import Tenancy
from .verify import Verdict

__all__ = ["Decoder", "Limits"]

_TOGETHER = "the ranks of a model that is split wait for one another within every step"


class Decoder:
    """Decodes token ids with any strategy on a stock causal language model of transformers.

    The model is bound to the step attention (see `attention.bind`) and made lean (see `lean`), and
    stays so.  The cache is kept from one generation to the next: a prompt that starts with tokens
    that are still in it is prefilled from there on only.

    Args:
        model: a causal language model, in evaluation mode.
        attention: name of the attention backend.
        max_context: the most tokens that prompt and text may have together; None for what
            the model was made for.
        prefill_chunk: prompt tokens per forward.
        capture: captures steps as CUDA graphs, where that works for the model and ranks do not
            share it; None not to.
        compiled: whether captured steps are compiled by torch first.
        lean: whether parts of the model's forward are replaced by ones of fewer operations.

    Attributes:
        facts: about the model.
        max_context: as above, and not more than the model was made for.
        cache: its keys and values.
        runner: runs its steps, and says how.

    Raises:
        UnsupportedModelError: the model cannot verify drafts in one pass.
    """

    def __init__(
        self,
        model: Any,
        *,
        attention: str = "auto",
        max_context: int | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        capture: Capture | None = None,
        compiled: bool = False,
        lean: bool = True,
    ) -> None:
        self.facts: ModelFacts = examine(model.config)
        self.max_context = min(max_context or self.facts.context, self.facts.context)
        # A step's own tokens lie behind the text.
        self.cache = KVCache(self.facts.layers, self.max_context + GROWTH)
        self._tenancy = Tenancy(self.cache)
        self._model: nn.Module = model
        if not self.facts.tested:
            probe(model, self.facts)
        self._before = bind(model)
        self._lean = make_lean(model, None if lean else ())
        self.runner = (
            Runner(model, self.cache, attention)
            if capture is None
            else self._capturing(attention, capture, compiled)
        )
        self._reader = Reader(self.runner, self.cache, self.facts, prefill_chunk)

    def _capturing(self, attention: str, capture: Capture, compiled: bool) -> Runner:
        """A runner that captures steps, if a trial shows that this works for the model."""
        ladder = ladder_for(self._model, attention)
        # A rank that alone finds a step to capture would leave the others waiting.
        trouble = (
            _TOGETHER
            if is_split(self._model)
            else try_capture(self._model, self.facts, attention, capture, ladder)
        )
        if trouble is not None:
            return Runner(self._model, self.cache, attention, trouble)
        return GraphRunner(
            self._model, self.cache, attention, capture, compiled=compiled, ladder=ladder
        )

    @contextmanager
    def released(self) -> Iterator[None]:
        """Give the model its own forward back for a while; nothing is decoded here then."""
        with self._tenancy.lock:
            release(self._before)
            self._lean.release()
            try:
                yield
            finally:
                bind(self._model)
                self._lean.bind()

    def forget(self, *, keep_memory: bool = False) -> None:
        """Drop the cached text; a generation under way is over.

        Args:
            keep_memory: whether the cache's memory is kept for the next text, and with it the
                steps that were captured for its addresses.
        """
        with self._tenancy.lock:
            self._tenancy.forget()
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
        timed: bool = False,
        group: Group = ALONE,
    ) -> Generator[Event]:
        """Decode a continuation of `prompt`.

        At every yield, and after the generator is closed or broken off, the cache holds
        exactly the committed tokens but the last one; of a group of ranks, a rank may lack
        some more, which it did not compute itself.  Where steps are captured, the next one is
        under way when any but the first is told; if the generator is closed then, it was for
        nothing.

        All ranks of a group call this with the same arguments.  Where one of them closes the
        generator, it ends on the others without `Finished`.

        Args:
            prompt: token ids, at least one.
            strategy: a fresh one from `make_strategy`.
            sampling: how to choose tokens; greedy if None.
            limits: where to end.
            processors: transformers' logits processors, applied before `sampling`.
            detailed: whether steps say what they tried; see `events.Detail`.
            timed: whether steps say where their time went, for which they wait for the device
                more often than they need to.
            group: the ranks that decode this text together.

        Yields:
            `Started`, `Prefill` for all chunks of the prompt but the last, a `Step` for every
            forward that yields tokens, `Squeezed` where memory did not suffice for one, and
            `Finished`.

        Raises:
            PromptError: the prompt is empty, holds an id that the model does not know, or
                leaves no room for a token in the context.
            ConfigError: steps are captured, and ranks of the group compute each of them together.
            RankError: a rank of the group is gone, has failed, or does something else.
            NoNumbersError: the model's weights are damaged, or too large for their type.
            DecoderError: this generation is resumed after another one has started: there is
                one cache, and it belongs to the newest.
        """
        self.check_prompt(prompt)
        if self.runner.captures and not group.forwards_alone:
            raise ConfigError(f"no CUDA graphs here: {_TOGETHER}; make the decoder without capture")
        job = Job(
            strategy,
            Sampler(sampling or SamplingConfig(), processors),
            limits or Limits(),
            detailed,
            Stopwatch(self.runner.device) if timed else None,
            group,
        )
        return self._tenancy.exclusive(self._decode(list(prompt), job))

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

    def _decode(self, tokens: list[int], job: Job) -> Generator[Event]:
        state = State(tokens, len(tokens), missing=(0,) * job.group.shares)
        if len(tokens) >= job.end(len(tokens), self.max_context):
            yield Finished("length")
            return
        mine = self._tenancy.begin(tokens)
        try:
            self._begin(tokens, job)
            job.sampler.commit(tokens)
            job.strategy.begin(state)
            yield Started(self.cache.length, len(tokens))
            self._tenancy.check(mine)
            with closing(told_meanwhile(self._steps(state, job))) as events:
                for event in events:
                    yield event
                    self._tenancy.check(mine)
        except Stopped:
            pass
        except BaseException as error:
            job.group.leave(error)
            raise
        finally:
            # Ctrl-C can land between any two lines.
            self._tenancy.end(mine, tokens)

    def _steps(self, state: State, job: Job) -> Generator[Event | None]:
        """The loop itself; `MEANWHILE` wherever the last step can be handed on."""
        strategy, group, limits = job.strategy, job.group, job.limits
        tokens, end = state.tokens, job.end(state.prompt_length, self.max_context)
        allowance = Allowance(self._reader.chunk)
        reason: FinishReason | None = None
        while reason is None:
            if not self.runner.captures:
                yield MEANWHILE
            fits = yield from self._reader.read(state, allowance, group)
            began = time.perf_counter()
            job.lap(BETWEEN)
            self._look_ahead(state, end, allowance.width)
            draft = strategy.propose(state)
            job.lap("draft")
            if max(draft.tree.tokens, default=0) >= self.facts.vocabulary:
                raise ConfigError("the drafts were learned from a model with more token ids")
            dealt = group.deal(draft, state.missing)
            share = dealt.shares[group.share].draft
            step = layout.NOTHING
            if fits:
                step = layout.build(tokens[self.cache.length :], self.cache.length, share)
            width = len(step.tokens)
            job.lap("layout")
            found: Finding | Shortage | None = None
            if fits:
                found, paused = yield from self._forward(step, share, job, state)
                began += paused
            if found is None:
                found = Shortage(step.pending, width - step.pending + 1)
            shown = group.agree(dealt, found, len(tokens), strategy.checksum)
            job.lap("agree")
            if isinstance(shown, Shortage):
                if not allowance.shrink(shown.pending, shown.width):
                    reason = "memory"
                elif allowance.width < state.widest:
                    yield Squeezed(allowance.width, time.perf_counter() - began)
                continue
            self._keep(step, dealt, shown.verdict.nodes, state, group.share)
            job.lap("cache")
            committed, reason = cut(shown.verdict.tokens, len(tokens), end, limits)
            if reason is not None:
                group.end()
            # The last committed token is the next current token: its keys come then.
            self.cache.truncate(len(tokens) + len(committed) - 1)
            ids = [token.id for token in committed]
            tokens += ids
            job.sampler.commit(ids)
            job.lap("commit")
            verdict = Verdict(shown.verdict.nodes[: len(committed) - 1], committed)
            seen = Observation(dealt.draft, tokens, verdict, shown.best, shown.ranked)
            strategy.observe(state, seen)
            job.lap("learn")
            seconds = time.perf_counter() - began
            detail = seen.detail() if job.detailed else None
            parts = job.watch.take() if job.watch else None
            yield Step(committed, width, len(dealt.draft.tree), seconds, detail, parts)
        group.end()
        if reason == "length" and limits.max_new_tokens != len(tokens) - state.prompt_length:
            reason = "context"
        yield Finished(reason)

    def _forward(
        self, step: StepLayout, draft: Draft, job: Job, state: State
    ) -> Generator[None, None, tuple[Finding | None, float]]:
        """Run a step with a draft behind the text; meanwhile that can be read.

        Returns:
            What it shows, None if memory did not suffice; and seconds in which the device waited
            for the reader.
        """
        alone, paused, length = job.group.forwards_alone, 0.0, len(state.tokens)
        wanted = job.wanted(step, draft, length, chooses=self.runner.chooses)
        if not self.runner.is_ready(step, wanted):
            paused += yield from job.pause("layout")
        running = try_forward(alone, self.runner.start, step, wanted)
        read = yield from job.pause("forward")
        # A watch has waited for the device before.
        paused += read if job.watch else 0.0
        if running is None:
            return None, paused
        return try_forward(alone, self._finish, running, draft, job, state), paused

    def _finish(self, running: Running, draft: Draft, job: Job, state: State) -> Finding:
        """What a step shows that was started."""
        shown, length = running.result(), len(state.tokens)
        job.lap("forward")
        # Once for an answer: a GPU is waited for.
        if length == state.prompt_length and not shown.logits.are_numbers():
            raise self._no_numbers()
        found = job.verify(shown, draft, length)
        job.lap("verify")
        return found

    def _no_numbers(self) -> NoNumbersError:
        weights = next(self._model.parameters()).dtype
        rest = (
            "" if weights == torch.float32 else ", or try --dtype float32, which holds larger ones"
        )
        return NoNumbersError(
            "the model says no numbers: its weights are damaged, or do not fit its config.json;"
            f" download or copy them again{rest}"
        )

    def _keep(
        self, step: StepLayout, dealt: Dealt, nodes: Sequence[int], state: State, mine: int
    ) -> None:
        """Keep the keys of what was accepted, as far as they were computed here.

        The rest is fed again, as the pending tokens of the next step.
        """
        held = [share.held(nodes) for share in dealt.shares]
        state.missing = tuple([len(nodes) - len(own) for own in held])
        pending = range(step.pending)
        kept = [*pending, *[step.pending + node for node in held[mine]]]
        if attempt(self.cache.keep, kept) is None:
            # Pending tokens stand where they belong: to keep them takes no memory.
            self.cache.keep(pending)

    def _begin(self, tokens: list[int], job: Job) -> None:
        """Agree with other ranks on what all of them have cached."""
        self._reader.forget_turned_keys(len(tokens))
        strategy, limits = job.strategy, job.limits
        asked = (*tokens, job.sampler.config, limits.max_new_tokens, *sorted(limits.stop_ids))
        self.cache.truncate(
            job.group.begin(self.cache.length, strategy.outputs, strategy.successors, asked)
        )

    def _look_ahead(self, state: State, end: int, widest: int) -> None:
        """Say how far a draft may reach: not to where positions change their meaning."""
        length, boundary = len(state.tokens), self.facts.rope_boundary
        last = self.max_context - 1
        if boundary is not None and length <= boundary:
            last = min(last, boundary - 1)
        state.room, state.widest = last - (length - 1), widest
        # A path of more tokens than that would be wider, too.
        state.draft_depth = min(state.room, end - length - 1, widest - 1)
