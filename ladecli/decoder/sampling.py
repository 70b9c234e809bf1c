"""Logits to distribution to token, with one uniform number per position of the text.

The number of a position is philox(seed, position) and nothing else, and the token is found
by inverse CDF.  So a text depends on model, prompt, settings and seed alone: every strategy
gives, token for token, what plain autoregressive sampling gives with the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .config import SamplingConfig
from .readout.choosing import choose, weights_of
from .readout.penalty import penalize
from .successors import NOTHING
from .verify import Choose

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""(ids of the text so far [1, length], scores [1, vocabulary]) -> scores, as in transformers."""
AHEAD = 512
"""Positions whose uniform numbers are drawn at a time: a GPU waits while the host draws some."""


class ByRow(Protocol):
    """Logits of one row after the other, [vocabulary] each."""

    def __getitem__(self, row: int, /) -> Tensor: ...


def uniform(seed: int, position: int) -> float:
    """The uniform number in [0, 1) of a position, by the counter-based generator Philox.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    return _draw(np.random.Philox(key=seed), position, 1)[0]


def _draw(philox: np.random.Philox, position: int, count: int) -> list[float]:
    """The numbers of `count` positions in a row."""
    state = philox.state
    state["state"]["counter"][:] = position, 0, 0, 0
    philox.state = state
    # Each position has a block of four numbers, of which the first is taken.
    numbers: list[float] = np.random.Generator(philox).random(4 * count)[::4].tolist()
    return numbers


class Uniforms:
    """The uniform numbers of one seed, which are drawn ahead, many positions at a time.

    Args:
        seed: from 0 to 2**64 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._philox = np.random.Philox(key=seed)
        self._first = 0
        self._numbers: list[float] = []

    def at(self, position: int, count: int) -> list[float]:
        """`uniform(seed, position)` of `count` positions in a row."""
        start = position - self._first
        if not 0 <= start <= len(self._numbers) - count:
            self._numbers = _draw(self._philox, position, max(count, AHEAD))
            self._first, start = position, 0
        return self._numbers[start : start + count]


def distribution(scores: Tensor, config: SamplingConfig) -> Tensor:
    """Probabilities after temperature, top-k, top-p and min-p, in transformers' order.

    Of equally probable tokens at a cut all stay, also at that of top-p, where transformers
    keeps any of them.  Tokens less than 2**-40 times as probable as the best one have none.

    Args:
        scores: [vocabulary].
        config: `temperature` must be above 0; the repetition penalty is not applied.

    Returns:
        float32 [vocabulary], summing to 1; at least one token keeps its probability.
    """
    weights = weights_of(scores, config).double()
    return (weights / weights.sum()).float()


def draw(probabilities: Tensor, u: float) -> int:
    """The token at `u` in [0, 1) of the cumulative distribution, tokens in order of id.

    Args:
        probabilities: [vocabulary], not necessarily normalised.
    """
    cumulative = probabilities.double().cumsum(dim=0)
    target = cumulative[-1] * u
    index = int(torch.searchsorted(cumulative, target, right=True))
    # Rounding can put the target on the total: then the last possible token is meant.
    return min(index, int(torch.searchsorted(cumulative, cumulative[-1])))


class Sampler:
    """Chooses the model's token at any node of a step, given the path that leads there.

    Args:
        config: how to choose.
        processors: functions of text and scores to apply before `config`, each as in
            transformers.  They are called per node of the tree with the path included, so
            any of them that is a pure function keeps its meaning.

    Attributes:
        config: as given.
        plain: whether the choice is the most probable token, and no processor has a say.
        ahead: whether tokens are drawn, and no processor has a say: `choose_ahead` can do it.
        seedless: how it does, the same for all seeds.
        penalty: the repetition penalty where no processor has a say; else 1.
        text: the text so far, a list that grows with it, where a repetition penalty holds or there
            are processors; else it stays empty.
    """

    def __init__(self, config: SamplingConfig, processors: Sequence[LogitsProcessor] = ()) -> None:
        self.config = config
        self._processors = tuple(processors)
        self._uniforms = Uniforms(config.seed)
        self._seen: set[int] = set()
        self.plain = config.greedy and not self._processors
        self.ahead = not config.greedy and not self._processors
        self.seedless = replace(config, seed=0)
        self.penalty = 1.0 if self._processors else config.repetition_penalty
        self.text: list[int] = []
        self._looks_back = config.repetition_penalty != 1.0 or bool(self._processors)

    def uniforms(self, position: int, depths: Sequence[int]) -> list[float]:
        """The uniform numbers with which tokens are drawn behind paths of these lengths.

        Args:
            position: of the token that follows the current one, so behind an empty path.
            depths: tokens of each path.
        """
        numbers = self._uniforms.at(position, max(depths, default=0) + 1)
        return [numbers[depth] for depth in depths]

    def commit(self, tokens: Iterable[int]) -> None:
        """Note tokens that joined the text."""
        if self._looks_back:
            joined = list(tokens)
            self.text += joined
            self._seen.update(joined)

    def chooser(
        self,
        logits: ByRow,
        best: Sequence[int],
        position: int,
        chosen: Sequence[int] | None = None,
    ) -> Choose:
        """A function from output row and accepted path to the token chosen there.

        Args:
            logits: by row, [vocabulary] each: a tensor of rows, or what stands for one.
            best: the most probable token of each row, `penalty` included.
            position: of the token that follows the current one.
            chosen: what `choose_ahead` has drawn for each row, where `ahead` holds; looked at
                only then.  What is `NOTHING` is drawn here.
        """
        if self.plain:
            return lambda row, path: best[row]
        if not self.ahead or chosen is None:
            return lambda row, path: self._choose(logits[row], path, position)

        def choose_row(row: int, path: Sequence[int]) -> int:
            token = chosen[row]
            return token if token != NOTHING else self._choose(logits[row], path, position)

        return choose_row

    def _choose(self, scores: Tensor, path: Sequence[int], position: int) -> int:
        if self._looks_back:
            # A copy: processors may write to it, and logits were made in inference mode.
            scores = scores.to(torch.float32, copy=True)
        if self._processors:
            text = torch.tensor([[*self.text, *path]], device=scores.device)
            batch = scores[None]
            for processor in self._processors:
                batch = processor(text, batch)
            scores = batch[0]
        if self.config.repetition_penalty != 1.0:
            seen = torch.tensor(list(self._seen.union(path)), device=scores.device)
            scores = penalize(scores, seen, self.config.repetition_penalty)
        if self.config.greedy:
            return int(scores.argmax())
        u = self._uniforms.at(position + len(path), 1)[0]
        return choose(scores, u, self.config)
