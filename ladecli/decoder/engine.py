"""The only loop: propose, lay out, forward, verify, commit, observe."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from .config import Limits
from .events import Event, Finished, FinishReason, Started, Step, StepNarrowed, StepTimes, Token
from .executor import Executor, FailedStep, StartedStep
from .sampling import Sampler
from .strategy import State, Strategy


@dataclass(slots=True)
class Generation:
    """One text, from its prompt to its end."""

    state: State
    strategy: Strategy
    sampler: Sampler
    limits: Limits
    executor: Executor
    detailed: bool
    reason: FinishReason | None = None  # why the text has ended; None while it has not

    def events(self) -> Generator[Event]:
        """Decode to the end: each step is yielded before the next one begins."""
        state, limits = self.state, self.limits
        # Ranks check that all of them decode the same text with the same settings.
        settings = state.sampling, limits.max_new_tokens, *sorted(limits.stop_ids)
        self.executor.begin(state, (*state.tokens, *settings))
        self.sampler.commit(state.tokens)
        self.strategy.begin(state)
        yield Started(self.executor.cache.length, len(state.tokens))
        if self.executor.overlaps:
            yield from self._overlapped_events()  # to the end of the text
        while self.reason is None:
            yield from self.executor.prefill(state)
            yield from self._finish(*self._start())
        self.executor.end()  # the text may have ended without a token
        assert self.reason is not None
        yield Finished(self.reason)

    def _overlapped_events(self) -> Iterator[Event]:
        """Decode to the end with an executor whose steps run on after `start`, as CUDA graphs do.

        The events of a step are yielded while the next step runs, so that the reader of the text
        does not hold the GPU up.
        """
        finished: list[Event] = []
        try:
            while self.reason is None:
                # If there are chunks to read, the last step has to be yielded before them: they are
                # the prompt, or all of the text past a rotary boundary.
                for chunk in self.executor.prefill(self.state):
                    yield from finished
                    finished = []
                    yield chunk
                started = self._start()
                last, finished = finished, []
                yield from last
                finished = self._finish(*started)
        except Exception:
            # The tokens of the last step are committed, whatever failed since.  Ctrl-C, which is no
            # `Exception`, ends at once.
            yield from finished
            raise
        yield from finished

    def _start(self) -> tuple[StartedStep, float, float]:
        """Start a step; return it with the times when it and its forward began."""
        began = perf_counter()
        # 1) Propose: what may follow the text, as deep and as wide as there is room for.
        draft = self.strategy.propose(self.state, self.executor.room(self.state))
        # 2) Lay out tokens, positions and mask, and 3) start the forward.
        step = self.executor.start(self.state, draft, self.sampler)
        return step, began, perf_counter()

    def _finish(self, step: StartedStep, began: float, started: float) -> list[Event]:
        """Finish a step; return its events."""
        state, (draft, width) = self.state, step
        # 4) Verify: walk down the tree as far as the model agrees.
        result = self.executor.verify()
        chosen = perf_counter()
        if isinstance(result, FailedStep):
            # The strategy proposes again, if anything smaller can be tried.
            widest = self.executor.narrow(result)
            self.reason = None if widest else "memory"
            is_narrower = result.memory and 0 < widest < result.width
            return [StepNarrowed(widest, chosen - began)] if is_narrower else []
        # 5) Commit: tokens join the text up to one that ends it, the cache keeps their keys.  The
        # last one becomes the current token, whose keys the next step computes; so there is one
        # accepted node less than there are tokens.
        count, self.reason = _end_of_text(result.tokens, self.limits, state)
        del result.tokens[count:], result.nodes[count - 1 :]
        if self.reason is not None:
            # Before anything below can fail: other ranks end here, too, and expect no message.
            self.executor.end()
        self.executor.commit(result.nodes)
        current, ids = state.tokens[-1], [token.id for token in result.tokens]
        state.tokens += ids
        self.sampler.commit(ids)
        committed = perf_counter()
        # 6) Observe: the strategy learns from the step.
        self.strategy.observe(state, draft, result)
        done = perf_counter()
        return [
            Step(
                tokens=tuple(result.tokens),
                width=width,
                proposed=len(draft.tree.tokens),
                seconds=done - began,
                times=StepTimes(
                    draft=started - began,
                    forward=chosen - started,
                    commit=committed - chosen,
                    learn=done - committed,
                ),
                detail=result.detail(current, draft) if self.detailed else None,
            )
        ]


def _end_of_text(
    tokens: Sequence[Token], limits: Limits, state: State
) -> tuple[int, FinishReason | None]:
    """Return how many of a step's tokens, at least one, belong to the text, and why it ends, if
    it does."""
    length = len(state.tokens)
    for count, token in enumerate(tokens, start=1):
        # The caller follows the text by this, so it is called with the end token, too.
        stop = limits.should_stop is not None and limits.should_stop(token.id)
        if token.id in limits.stop_ids:
            return count, "eos"
        if stop:
            return count, "stop"
        if length + count - state.prompt_length == limits.max_new_tokens:
            return count, "length"
        if length + count >= state.end:
            return count, "context"
    return len(tokens), None
