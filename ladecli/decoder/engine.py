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
    """One text on its way to its end."""

    state: State
    strategy: Strategy
    sampler: Sampler
    limits: Limits
    executor: Executor
    detailed: bool
    reason: FinishReason | None = None  # why the text has ended; None while it has not

    def begin(self) -> None:
        """Tell executor, sampler and strategy of the prompt."""
        tokens, limits = self.state.tokens, self.limits
        settings = self.state.sampling, limits.max_new_tokens, *sorted(limits.stop_ids)
        self.executor.begin(self.state, (*tokens, *settings))
        self.sampler.commit(tokens)
        self.strategy.begin(self.state)

    def events(self) -> Generator[Event]:
        """Decode to the end: each step is yielded before the next one begins."""
        yield Started(self.executor.cache.length, len(self.state.tokens))
        if self.executor.overlaps:
            yield from self._overlapped()  # leaves nothing for the loop below
        while self.reason is None:
            yield from self.executor.prefill(self.state)
            yield from self._finish(*self._start())
        self.executor.end()  # also where the text ended without a token
        assert self.reason is not None
        yield Finished(self.reason)

    def _overlapped(self) -> Iterator[Event]:
        """The loop where steps run on by themselves: each is yielded while the next one runs."""
        done: list[Event] = []
        try:
            while self.reason is None:
                # Chunks of the prompt; or, past a rotary boundary, of the whole text again: the
                # last step is still to be yielded then.
                for chunk in self.executor.prefill(self.state):
                    yield from done
                    done = []
                    yield chunk
                begun = self._start()
                held, done = done, []
                yield from held
                done = self._finish(*begun)
        except Exception:
            # Its tokens are committed, whatever went wrong since.  Ctrl-C ends at once.
            yield from done
            raise
        yield from done

    def _start(self) -> tuple[StartedStep, float, float]:
        """Start a step; return it with the times when it and its forward began."""
        began = perf_counter()
        # 1) Propose: what may follow the text, as deep and as wide as there is room for.
        draft = self.strategy.propose(self.state, self.executor.room(self.state))
        # 2) Lay out tokens, positions and mask, and 3) start the forward.
        fed = self.executor.start(self.state, draft, self.sampler)
        return fed, began, perf_counter()

    def _finish(self, step: StartedStep, began: float, started: float) -> list[Event]:
        """Finish a step; return its events."""
        state, (draft, width) = self.state, step
        # 4) Verify: walk down the tree as far as the model agrees.
        result = self.executor.verify()
        chosen = perf_counter()
        if isinstance(result, FailedStep):
            # It is proposed again, if anything smaller is left to try.
            left = self.executor.narrow(result)
            self.reason = None if left else "memory"
            told = result.memory and 0 < left < result.width
            return [StepNarrowed(left, chosen - began)] if told else []
        # 5) Commit: tokens join the text up to one that ends it, the cache keeps their keys.
        # The last one is the next current token: its keys come then.
        count, self.reason = _end_of_text(result.tokens, self.limits, state)
        del result.tokens[count:], result.nodes[count - 1 :]
        if self.reason is not None:
            self.executor.end()  # what fails from here on concerns this process alone
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
        # Asked of every token, the end token too: it reads the text.
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
