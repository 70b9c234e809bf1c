"""A decoder that needs no model: steps take the time that a test says, on a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ladecli.decoder.events import Event, Finished, Step, StepTimes, Token
from ladecli.decoder.strategies import Strategy
from ladecli.decoder.strategies.lookahead import Lookahead

Cost = Callable[[int, int], float]
"""(width, length of the text) -> seconds of a step."""


class FakeDecoder:
    """Feeds steps as wide as their budget; each token beyond the first is accepted sometimes.

    Args:
        cost: of a step.
        accepted: (budget) -> tokens per step.
        noise: relative; steps are slower by up to so much.
        max_context: as of a decoder.
        said: (budget) -> the token that it says over and over.

    Attributes:
        now: seconds on its clock.
        prompts: that it was given.
        stop_ids: all that it was told of.
        longest: (prompt) -> the most tokens of its answer.
        most: the widest step that memory suffices for.
    """

    def __init__(
        self,
        cost: Cost,
        accepted: Callable[[int], int] = lambda budget: 1,
        *,
        noise: float = 0.0,
        max_context: int = 2048,
        said: Callable[[int], int] = lambda budget: 7,
    ) -> None:
        self.cost, self.accepted, self.noise = cost, accepted, noise
        self.max_context, self.said = max_context, said
        self.now = 0.0
        self.prompts: list[list[int]] = []
        self.stop_ids: set[frozenset[int]] = set()
        self.longest: Callable[[Sequence[int]], int] = lambda prompt: 10**9
        self.most = 10**9
        self._rng = random.Random(1)
        self._read: list[int] = []

    def generate(
        self, prompt: Sequence[int], strategy: Strategy, sampling: Any = None, limits: Any = None
    ) -> Iterator[Event]:
        self.prompts.append(list(prompt))
        width = strategy._config.step_limit if isinstance(strategy, Lookahead) else 1
        left = limits.max_new_tokens if limits else self.max_context - len(prompt)
        left = min(left, self.longest(prompt))
        length = len(prompt)
        if limits:
            self.stop_ids.add(limits.stop_ids)
        if self._read != list(prompt):
            # As wide steps do; a prompt that is in the cache costs nothing.
            self.now += self.cost(64, 0) * length / 64
            self._read = list(prompt)
        if width > self.most:
            yield Finished("memory")
            return
        while left:
            count = min(self.accepted(width), left)
            seconds = self.cost(width, length) * (1.0 + self.noise * self._rng.random())
            self.now += seconds
            tokens = tuple(Token(self.said(width), "context") for _ in range(count))
            yield Step(tokens, width, width - 1, seconds, StepTimes(0.0, seconds, 0.0, 0.0))
            left -= count
            length += count
        yield Finished("length")

    def perf_counter(self) -> float:
        return self.now
