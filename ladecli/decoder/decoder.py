"""The decoder: a model and a cache, whose text belongs to one generation at a time."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence

from .config import Limits, SamplingConfig
from .engine import Generation
from .errors import DecoderError, PromptError
from .events import Event, Finished
from .executor import Executor, Stopped
from .sampling import LogitsProcessor, Sampler
from .strategy import State, Strategy
from .tree import common_prefix


class Decoder:
    """Decodes token ids with any strategy.

    The cache is kept from one generation to the next: a prompt that starts with tokens that are
    still in it is prefilled from there on only.

    Args:
        executor: runs steps in this process.
        batch_invariant: whether a token's logits are the same in every step; see
            `backends.invariant`.
        keeps_weights: whether the model's own weights lie as transformers loaded them.

    Attributes:
        executor, batch_invariant, keeps_weights: as above.
        facts, max_context: about the model; the most tokens of prompt and text together.
        lock: held while a step runs; to be held where another thread changes what it reads.
        cache: keys and values of the committed text.
    """

    def __init__(
        self, executor: Executor, *, batch_invariant: bool = False, keeps_weights: bool = True
    ) -> None:
        self.executor, self.cache = executor, executor.cache
        self.facts, self.max_context = executor.facts, executor.max_context
        self.batch_invariant, self.keeps_weights = batch_invariant, keeps_weights
        # One generation at a time owns the cache, whose keys are those of `_text` when it is over.
        # The thread that has it may free another one, which was left: that takes it again.
        self.lock = threading.RLock()
        self._owner = 0
        self._text: list[int] = []

    def forget(self, *, keep_memory: bool = False) -> None:
        """Drop the cached text; a generation under way is over.

        Args:
            keep_memory: whether the cache's memory is kept for the next text, and with it the
                steps that were captured for its addresses.
        """
        with self.lock:
            self._owner += 1
            self._text = []
            self.cache.truncate(0)
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
    ) -> Generator[Event]:
        """Decode a continuation of `prompt`.

        At every yield, and after the generator is closed, the cache holds the committed tokens but
        the last one, or fewer if the executor computed some elsewhere.  If steps overlap, the next
        one is under way when a step is yielded; closing the generator discards it.

        Args:
            prompt: token ids, at least one.
            strategy: a fresh one from `make_strategy`.
            sampling: how to choose tokens; greedy if None.
            limits: where to end.
            processors: transformers' logits processors, applied before `sampling`.
            detailed: whether steps say what they tried; see `events.Detail`.
            executor: runs the steps; None for its own.
            logprobs: how many of the most probable tokens are named beside each, with
                log-probabilities; None for no log-probabilities at all.

        Yields:
            `Started`, `PromptRead` for all chunks of the prompt but the last, `Step`s,
            `StepNarrowed` if one was too wide, `Finished`; that alone if no token is wanted.

        Raises:
            PromptError: the prompt is empty, holds an unknown id, or fills the context.
            DeviceLostError: the device met a fault; nothing can be computed any more.
            NaNLogitsError: the model's weights are damaged, or too large for their type.
            NoMemoryError, RankError: as `executor` has them.
            DecoderError: another generation has started, to which the cache belongs now.
        """
        self.check_prompt(prompt)
        limits, sampling = limits or Limits(), sampling or SamplingConfig()
        end = self.max_context
        if limits.max_new_tokens is not None:
            end = min(end, len(prompt) + limits.max_new_tokens)
        state = State(list(prompt), len(prompt), sampling, end)
        sampler = Sampler(sampling, processors, logprobs, self.executor.ranking)
        running = executor or self.executor
        return self._run(Generation(state, strategy, sampler, limits, running, detailed))

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
        """Let one thread at a time into the loop, as long as the cache is this generation's."""
        tokens, mine = generation.state.tokens, 0
        if len(tokens) >= generation.state.end:
            yield Finished("length")
            return
        events = generation.events()
        try:
            with self.lock:
                # The cache is this generation's, as far as it is of its text; one token at least
                # is fed.
                self._owner += 1
                self.cache.truncate(common_prefix(tokens[:-1], self._text))
                self._text = []
                generation.begin()
                mine = self._owner
            while True:
                with self.lock:
                    if mine != self._owner:
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
            if mine in (0, self._owner):  # else it serves another text by now
                generation.executor.leave(error)
            raise
        finally:
            # Ctrl-C can land between any two lines.  The last token has no keys yet.
            with self.lock:
                events.close()
                if mine == self._owner:
                    self.cache.truncate(len(tokens) - 1)
                    self._text = tokens[: self.cache.length]
