"""The only loop: propose, lay out, forward, verify, commit, observe."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .config import Limits
from .errors import ConfigError
from .events import Event, Finished, FinishReason, Started, Step, StepNarrowed, StepTimes, Token
from .run.executor import Executor, NoRoom, Tried
from .sampling import Sampler
from .strategy import State, Strategy

_clock: Callable[[], float] = time.perf_counter


class Begun(NamedTuple):
    """A step on its way, and when it began and was started."""

    tried: Tried
    began: float
    started: float


@dataclass(slots=True)
class Generation:
    """One text on its way to its end."""

    state: State
    strategy: Strategy
    sampler: Sampler
    limits: Limits
    run: Executor
    detailed: bool
    vocabulary: int
    reason: FinishReason | None = None
    """Why the text has ended; None while it has not."""

    def begin(self) -> None:
        """Take over what the cache holds of the text."""
        tokens, limits = self.state.tokens, self.limits
        request = *tokens, self.state.sampling, limits.max_new_tokens, *sorted(limits.stop_ids)
        self.run.begin(self.state, request)
        self.sampler.commit(tokens)
        self.strategy.begin(self.state)

    def events(self) -> Generator[Event]:
        """Decode to the end."""
        yield Started(self.run.cache.length, len(self.state.tokens))
        yield from self._overlapped() if self.run.overlaps else self._one_by_one()
        self.run.end()
        new = len(self.state.tokens) - self.state.prompt_length
        if self.reason == "length" and self.limits.max_new_tokens != new:
            self.reason = "context"
        assert self.reason is not None
        yield Finished(self.reason)

    def _one_by_one(self) -> Iterator[Event]:
        """The loop: each step is yielded before the next one begins."""
        while self.reason is None:
            yield from self.run.read(self.state)
            yield from self._finish(self._start())

    def _overlapped(self) -> Iterator[Event]:
        """The loop where steps run on by themselves: each is yielded while the next one runs."""
        done: list[Event] = []
        try:
            while self.reason is None:
                yield from self.run.read(self.state)
                begun = self._start()
                held, done = done, []
                yield from held
                done = self._finish(begun)
        except Exception:
            # Its tokens are committed, whatever went wrong since.
            yield from done
            raise
        yield from done

    def _start(self) -> Begun:
        """The first half of a step, up to its forward."""
        began = _clock()
        # 1) Propose: what may follow the text, as deep and as wide as there is room for.
        draft = self.strategy.propose(self.state, self.run.room(self.state))
        if max(draft.tree.tokens, default=0) >= self.vocabulary:
            raise ConfigError("the drafts were learned from a model with more token ids")
        # 2) Lay out tokens, positions and mask, and 3) start the forward.
        tried = self.run.start(self.state, draft)
        return Begun(tried, began, _clock())

    def _finish(self, step: Begun) -> list[Event]:
        """The second half: what came of it."""
        state, (draft, width) = self.state, step.tried
        # 4) Verify: walk down the tree as far as the model agrees.
        found = self.run.verify(self.sampler)
        computed = _clock()
        if isinstance(found, NoRoom):
            self.reason = found.reason
            if found.width is None:
                return []
            return [StepNarrowed(found.width, computed - step.began)]
        # 5) Commit: tokens join the text up to one that ends it, the cache keeps their keys.
        # The last one is the next current token: its keys come then.
        count, self.reason = _end_of_text(found.tokens, self.limits, state.end - len(state.tokens))
        del found.tokens[count:], found.nodes[count - 1 :]
        if self.reason is not None:
            self.run.end()
        self.run.commit(found.nodes)
        current, ids = state.tokens[-1], [token.id for token in found.tokens]
        state.tokens += ids
        self.sampler.commit(ids)
        verified = _clock()
        # 6) Observe: the strategy learns from the step.
        self.strategy.observe(state, draft, found)
        done = _clock()
        return [
            Step(
                tokens=tuple(found.tokens),
                width=width,
                proposed=len(draft.tree),
                seconds=done - step.began,
                times=StepTimes(
                    draft=step.started - step.began,
                    forward=computed - step.started,
                    verify=verified - computed,
                    learn=done - verified,
                ),
                detail=found.detail(current, draft) if self.detailed else None,
            )
        ]


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
