"""The only loop: propose, lay out, forward, verify, keep, observe, yield."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from . import layout
from .attention import bind
from .config import SamplingConfig
from .errors import ConfigError, DecoderError, PromptError
from .events import Event, Finished, FinishReason, Prefill, Started, Step, Token
from .kv_cache import KVCache
from .observation import Observation
from .probe import probe
from .runner import Runner
from .sampling import LogitsProcessor, Sampler, top
from .strategies import State, Strategy
from .support import ModelFacts, examine
from .verify import Verdict, walk

PREFILL_CHUNK = 512
DEFAULT_CONTEXT = 4096
"""Context of a model whose configuration does not say how long its texts may be."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a generation ends.

    Attributes:
        max_new_tokens: at most so many tokens; None for as many as the context holds.
        stop_ids: ids that end the text; the id itself is committed.
        should_stop: called with every token at commit, in order; true ends the text with
            that token.  Tokens behind it are never seen by anyone.
    """

    max_new_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    should_stop: Callable[[int], bool] | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 0:
            raise ConfigError(f"max-new-tokens must be 0 or more, not {self.max_new_tokens}")


class Decoder:
    """Decodes token ids with any strategy on a stock causal language model of transformers.

    The model is bound to the step attention (see `attention.bind`) and stays so.  The cache
    is kept from one generation to the next: a prompt that starts with tokens that are still
    in it is prefilled from there on only.

    Args:
        model: a causal language model, in evaluation mode.
        attention: name of the attention backend.
        max_context: the most tokens that prompt and text may have together; None for what
            the model was made for.
        prefill_chunk: prompt tokens per forward.

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
    ) -> None:
        self.facts: ModelFacts = examine(model.config)
        known = self.facts.max_positions or DEFAULT_CONTEXT
        self.max_context = min(max_context or known, known)
        self.cache = KVCache(self.facts.layers)
        self._cached: list[int] = []
        self._generation = 0
        self._lock = threading.Lock()
        self._long_keys = False
        self._prefill_chunk = prefill_chunk
        self._model: nn.Module = model
        self._runner = Runner(model, self.cache, attention)
        if not self.facts.tested:
            probe(model, self.facts)
        bind(model)

    def generate(
        self,
        prompt: Sequence[int],
        strategy: Strategy,
        sampling: SamplingConfig | None = None,
        limits: Limits | None = None,
        processors: Sequence[LogitsProcessor] = (),
        *,
        detailed: bool = False,
    ) -> Generator[Event]:
        """Decode a continuation of `prompt`.

        At every yield, and after the generator is closed or broken off, the cache holds
        exactly the committed tokens but the last one.

        Args:
            prompt: token ids, at least one.
            strategy: a fresh one from `make_strategy`.
            sampling: how to choose tokens; greedy if None.
            limits: where to end.
            processors: transformers' logits processors, applied before `sampling`.
            detailed: whether steps say what they tried; see `events.Detail`.

        Yields:
            `Started`, `Prefill` for all chunks of the prompt but the last, a `Step` for every
            forward that yields tokens, and `Finished`.

        Raises:
            PromptError: the prompt is empty, holds an id that the model does not know, or
                leaves no room for a token in the context.
            DecoderError: this generation is resumed after another one has started: there is
                one cache, and it belongs to the newest.
        """
        self.check_prompt(prompt)
        sampler = Sampler(sampling or SamplingConfig(), processors)
        return self._exclusive(self._decode(list(prompt), strategy, sampler, limits, detailed))

    def _exclusive(self, events: Generator[Event]) -> Generator[Event]:
        """Let one thread at a time into the loop: there is one cache."""
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

    def _decode(
        self,
        tokens: list[int],
        strategy: Strategy,
        sampler: Sampler,
        limits: Limits | None,
        detailed: bool,
    ) -> Generator[Event]:
        limits = limits or Limits()
        state = State(tokens, len(tokens))
        end = self._end(state, limits)
        if len(tokens) >= end:
            yield Finished("length")
            return
        self._generation += 1
        mine = self._generation
        self._reuse(tokens)
        sampler.commit(tokens)
        strategy.begin(state)
        try:
            yield Started(self.cache.length, len(tokens))
            self._check_owner(mine)
            reason: FinishReason | None = None
            while reason is None:
                for event in self._prefill(state):
                    yield event
                    self._check_owner(mine)
                began = time.perf_counter()
                self._look_ahead(state, end)
                draft = strategy.propose(state)
                if max(draft.tree.tokens, default=0) >= self.facts.vocabulary:
                    raise ConfigError("the drafts were learned from a model with more token ids")
                pending = tokens[self.cache.length :]
                step = layout.build(pending, self.cache.length, draft)
                logits = self._runner.forward(step)
                best = logits.argmax(dim=-1).tolist()
                verdict = walk(draft.tree, sampler.chooser(logits, best, len(tokens)))
                committed, reason = _cut(verdict.tokens, len(tokens), end, limits)
                # The last committed token is the next current token: its keys come then.
                accepted = verdict.nodes[: len(committed) - 1]
                self.cache.keep([*range(len(pending)), *(len(pending) + n for n in accepted)])
                ids = [token.id for token in committed]
                tokens += ids
                sampler.commit(ids)
                ranked = top(logits, draft.ranks) if draft.ranks else ()
                verdict = Verdict(accepted, committed)
                seen = Observation(draft, tokens, verdict, best, ranked)
                strategy.observe(state, seen)
                seconds = time.perf_counter() - began
                detail = seen.detail() if detailed else None
                yield Step(committed, len(step.tokens), len(draft.tree), seconds, detail)
                self._check_owner(mine)
            if reason == "length" and limits.max_new_tokens != len(tokens) - state.prompt_length:
                reason = "context"
            yield Finished(reason)
        finally:
            # Ctrl-C can land between any two lines: what counts is the committed text.
            # A generation that another one has replaced has nothing in the cache any more.
            if mine == self._generation:
                self.cache.truncate(len(tokens) - 1)
                self._cached = tokens[: self.cache.length]

    def _check_owner(self, generation: int) -> None:
        """Stop a generation whose cache another one has taken over."""
        if generation != self._generation:
            raise DecoderError("another generation has started on this decoder; this one is over")

    def _end(self, state: State, limits: Limits) -> int:
        """The length at which the text ends at the latest."""
        if limits.max_new_tokens is None:
            return self.max_context
        return min(self.max_context, state.prompt_length + limits.max_new_tokens)

    def _reuse(self, tokens: list[int]) -> None:
        """Keep the part of the cache that belongs to this text; at least one token is fed."""
        pairs = zip(tokens[:-1], self._cached, strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.cache.truncate(common)
        # Known again when this generation ends.  If another one takes over before that, it
        # must not take this one's keys for those of an earlier text.
        self._cached = []

    def _prefill(self, state: State) -> Iterator[Prefill]:
        """Feed what is pending in chunks, up to the one that the next step takes along.

        That is the prompt; and the whole text where it grows beyond the boundary at which
        rotary frequencies change, because the cached keys were turned by those of short texts.
        """
        total, boundary = len(state.tokens), self.facts.rope_boundary
        is_long = boundary is not None and total > boundary
        if is_long != self._long_keys:
            self.cache.truncate(0)
            self._long_keys = is_long
        # A token that nobody sees makes the model use long frequencies for short positions.
        anchor = total - 1 if is_long else None
        while total - self.cache.length > self._prefill_chunk:
            began = time.perf_counter()
            start = self.cache.length
            chunk = state.tokens[start : start + self._prefill_chunk]
            self._runner.forward(layout.build_chunk(chunk, start, anchor))
            self.cache.keep(range(len(chunk)))
            yield Prefill(self.cache.length, total, time.perf_counter() - began)

    def _look_ahead(self, state: State, end: int) -> None:
        """Say how far a draft may reach: not to where positions change their meaning."""
        length, boundary = len(state.tokens), self.facts.rope_boundary
        last = self.max_context - 1
        if boundary is not None and length <= boundary:
            last = min(last, boundary - 1)
        state.room = last - (length - 1)
        state.draft_depth = min(state.room, end - length - 1)


def _cut(
    tokens: tuple[Token, ...], length: int, end: int, limits: Limits
) -> tuple[tuple[Token, ...], FinishReason | None]:
    """The tokens up to the one that ends the text, and why it ended, if it did."""
    for count, token in enumerate(tokens, start=1):
        stop = limits.should_stop is not None and limits.should_stop(token.id)
        if token.id in limits.stop_ids:
            return tokens[:count], "eos"
        if stop:
            return tokens[:count], "stop"
        if length + count >= end:
            return tokens[:count], "length"
    return tokens, None
