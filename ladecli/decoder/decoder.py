"""The decoder: a model and a cache, which one generation at a time uses."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import Protocol

from .config import Limits, SamplingConfig
from .engine import Generation
from .errors import DecoderError, PromptError
from .events import Event, Finished
from .executor import Executor, Stopped
from .grammar import Grammar
from .kv_cache import KVCache
from .sampling import LogitsProcessor, Sampler
from .strategy import State, Strategy
from .tree import common_prefix


class KeptTexts(Protocol):
    """Keeps texts that a cache has held; see `backends.prefixes`."""

    def switch(self, cache: KVCache, text: Sequence[int], prompt: Sequence[int]) -> int:
        """Let a cache, which holds `text`, hold as much of a prompt's start as is known, and return
        how many tokens that is."""

    def clear(self) -> None:
        """Drop all texts."""


class Decoder:
    """Decodes token ids with any strategy.

    The cache is kept from one generation to the next: of a prompt that starts as the last text did,
    only the rest is read.

    Args:
        executor: runs steps in this process.
        batch_invariant: True if a token's logits are the same in every step; see
            `backends.invariant`.
        keeps_weights: True if the model's weights have the layout in which transformers loaded
            them.

    Attributes:
        executor, batch_invariant, keeps_weights: as above.
        facts: facts about the model.
        max_context: the most tokens of prompt and answer together.
        lock: held while a step runs; another thread that changes what a step reads must hold it.
        cache: keys and values of the committed text.
        kept_texts: earlier texts that the cache gets back if a prompt begins as they do; None to
            keep none.
    """

    def __init__(
        self, executor: Executor, *, batch_invariant: bool = False, keeps_weights: bool = True
    ) -> None:
        self.executor, self.cache = executor, executor.cache
        self.facts, self.max_context = executor.facts, executor.max_context
        self.batch_invariant, self.keeps_weights = batch_invariant, keeps_weights
        # Reentrant: while a thread holds it, Python may free a generator, whose end needs it.
        self.lock = threading.RLock()
        # The number of the generation that owns the cache, and the text whose keys are in the cache
        # between generations.
        self._latest = 0
        self._text: list[int] = []
        self.kept_texts: KeptTexts | None = None

    def forget(self, *, keep_memory: bool = False) -> None:
        """Drop the cached text; a generation under way is over.

        Args:
            keep_memory: True if the cache's memory stays allocated for the next text; if so, the
                steps that were captured for its addresses stay, too.
        """
        with self.lock:
            self._latest += 1
            self._text = []
            self.cache.truncate(0)
            if self.kept_texts is not None:
                self.kept_texts.clear()
            if not keep_memory:
                self.cache.release()
                self.executor.forget()

    def generate(
        self,
        prompt: Sequence[int],
        strategy: Strategy,
        sampling: SamplingConfig | None = None,
        limits: Limits | None = None,
        processors: Sequence[LogitsProcessor] = (),
        *,
        detailed: bool = False,
        executor: Executor | None = None,
        logprobs: int | None = None,
        grammar: Grammar | None = None,
    ) -> Generator[Event]:
        """Decode a continuation of `prompt`.

        At every yield, and after the generator is closed, the cache holds all committed tokens but
        the last one, or fewer if other ranks computed some.  If steps overlap, the next step is
        under way when a step is yielded; closing the generator discards it.

        Args:
            prompt: token ids, at least one.
            strategy: a fresh one from `make_strategy`.
            sampling: the sampling parameters; greedy if None.
            limits: the ends of the text.
            processors: transformers' logits processors, applied before `sampling`.
            detailed: True if steps have details of their draft; see `events.Detail`.
            executor: runs the steps; None for the decoder's own.
            logprobs: the number of most probable tokens that are listed with each token, all with
                log-probabilities; None for no log-probabilities at all.
            grammar: constrains the answer; `limits.should_stop` has to tell it of every token.

        Yields:
            `Started`, `PromptRead` for all chunks of the prompt but the last, `Step`s,
            `StepNarrowed` if one was too wide, `Finished`; only that if no token is asked for.

        Raises:
            PromptError: the prompt is empty, holds an unknown id, or fills the context.
            DeviceLostError: the device met a fault; nothing can be computed any more.
            NaNLogitsError: the model's weights are damaged, or too large for their type.
            NoMemoryError, RankError: see `executor`.
            DecoderError: another generation has started and owns the cache now.
        """
        self.check_prompt(prompt)
        limits, sampling = limits or Limits(), sampling or SamplingConfig()
        end = self.max_context
        if limits.max_new_tokens is not None:
            end = min(end, len(prompt) + limits.max_new_tokens)
        state = State(list(prompt), len(prompt), sampling, end, grammar)
        sampler = Sampler(sampling, processors, logprobs, self.executor.ranking, grammar)
        executor = executor or self.executor
        return self._run(Generation(state, strategy, sampler, limits, executor, detailed))

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

    def _run(self, generation: Generation) -> Generator[Event]:
        """Yield a generation's events, one thread at a time, while it owns the cache."""
        tokens, number = generation.state.tokens, 0
        if len(tokens) >= generation.state.end:
            yield Finished("length")
            return
        events = generation.events()
        try:
            with self.lock:
                # Take the cache over, as far as its text is this one's; at least one token is fed.
                self._latest += 1
                prompt, text = tokens[:-1], self._text
                self._text = []
                if self.kept_texts is None or self.cache.turned:
                    shared = common_prefix(prompt, text)
                else:
                    shared = self.kept_texts.switch(self.cache, text, prompt)
                self.cache.truncate(shared)
                number = self._latest  # last: until here the cache may hold another text
            while True:
                with self.lock:
                    if number != self._latest:
                        raise DecoderError(
                            "another text was begun, or this one forgotten, which ends it: a model"
                            " makes one at a time; let each end before the next, in all threads"
                        )
                    event = next(events, None)
                if event is None:
                    return
                yield event
        except Stopped:
            pass
        except BaseException as error:
            if number in (0, self._latest):  # else it runs another text by now
                generation.executor.leave(error)
            raise
        finally:
            # Ctrl-C can land between any two lines.  The last token has no keys yet.
            with self.lock:
                events.close()
                if number == self._latest:
                    self.cache.truncate(len(tokens) - 1)
                    self._text = tokens[: self.cache.length]
