"""Logits to distribution to token, with one uniform number per position of the text.

The number of a position is philox(seed, position) and nothing else, and the token is found
by inverse CDF.  So a text depends on model, prompt, settings and seed alone: every strategy
gives, token for token, what plain autoregressive sampling gives with the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from .config import SamplingConfig
from .verify import Choose

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""(ids of the text so far [1, length], scores [1, vocabulary]) -> scores, as in transformers."""


def uniform(seed: int, position: int) -> float:
    """The uniform number in [0, 1) of a position, by the counter-based generator Philox.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())


def penalize(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Apply a repetition penalty (Keskar et al., 2019) to the tokens in `seen`.

    Args:
        scores: [vocabulary].
        seen: distinct ids, int64 [n].
        penalty: divides positive and multiplies negative scores.
    """
    picked = scores[seen]
    scores = scores.clone()
    scores[seen] = torch.where(picked < 0, picked * penalty, picked / penalty)
    return scores


def distribution(scores: Tensor, config: SamplingConfig) -> Tensor:
    """Probabilities after temperature, top-k, top-p and min-p, in transformers' order.

    Args:
        scores: float32 [vocabulary].
        config: `temperature` must be above 0.

    Returns:
        float32 [vocabulary], summing to 1; at least one token keeps its probability.
    """
    # Relative to the best one, so that no temperature is too small to divide by.
    temperature = max(config.temperature, torch.finfo(torch.float32).tiny)
    scores = (scores - scores.max()) / temperature
    if 0 < config.top_k < len(scores):
        # Ties with the k-th best stay, as they do in transformers.
        scores = scores.masked_fill(
            scores < torch.topk(scores, config.top_k).values[-1], -torch.inf
        )
    if config.top_p < 1.0:
        ascending, order = torch.sort(scores)
        unlikely = torch.softmax(ascending, dim=-1).cumsum(dim=-1) <= 1.0 - config.top_p
        unlikely[-1] = False
        scores = scores.masked_fill(unlikely.scatter(0, order, unlikely), -torch.inf)
    probabilities = torch.softmax(scores, dim=-1)
    if config.min_p > 0.0:
        rare = probabilities < config.min_p * probabilities.max()
        probabilities = torch.softmax(scores.masked_fill(rare, -torch.inf), dim=-1)
    return probabilities


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


def top(logits: Tensor, count: int) -> list[dict[int, float]]:
    """Probabilities of the `count` most probable tokens of each row, the best first.

    Args:
        logits: [rows, vocabulary].
    """
    probabilities, tokens = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(
        min(count, logits.shape[-1]), dim=-1
    )
    rows = zip(tokens.tolist(), probabilities.tolist(), strict=True)
    return [dict(zip(*row, strict=True)) for row in rows]


class Sampler:
    """Chooses the model's token at any node of a step, given the path that leads there.

    Args:
        config: how to choose.
        processors: functions of text and scores to apply before `config`, each as in
            transformers.  They are called per node of the tree with the path included, so
            any of them that is a pure function keeps its meaning.

    Attributes:
        config: as given.
    """

    def __init__(self, config: SamplingConfig, processors: Sequence[LogitsProcessor] = ()) -> None:
        self.config = config
        self._processors = tuple(processors)
        self._text: list[int] = []
        self._seen: set[int] = set()

    @property
    def _plain(self) -> bool:
        """Whether the choice is the most probable token, whatever the path."""
        config = self.config
        return config.greedy and config.repetition_penalty == 1.0 and not self._processors

    def commit(self, tokens: Iterable[int]) -> None:
        """Note tokens that joined the text."""
        if not self._plain:
            joined = list(tokens)
            self._text += joined
            self._seen.update(joined)

    def chooser(self, logits: Tensor, best: Sequence[int], position: int) -> Choose:
        """A function from output row and accepted path to the token chosen there.

        Args:
            logits: [rows, vocabulary].
            best: the most probable token of each row.
            position: of the token that follows the current one.
        """
        if self._plain:
            return lambda row, path: best[row]
        return lambda row, path: self._choose(logits[row], path, position)

    def _choose(self, scores: Tensor, path: Sequence[int], position: int) -> int:
        # A copy: processors may write to it, and logits were made in inference mode.
        scores = scores.to(torch.float32, copy=True)
        if self._processors:
            text = torch.tensor([[*self._text, *path]], device=scores.device)
            batch = scores[None]
            for processor in self._processors:
                batch = processor(text, batch)
            scores = batch[0]
        if self.config.repetition_penalty != 1.0:
            seen = torch.tensor(list(self._seen.union(path)), device=scores.device)
            scores = penalize(scores, seen, self.config.repetition_penalty)
        if self.config.greedy:
            return int(scores.argmax())
        u = uniform(self.config.seed, position + len(path))
        return draw(distribution(scores, self.config), u)
