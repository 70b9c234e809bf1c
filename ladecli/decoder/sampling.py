"""From logits to tokens: one batched function for every strategy and device.

A token is drawn by Gumbel-max: the largest of logits / temperature + noise, where the `noise` of a
position depends on the seed and the position only.  So a text depends on model, prompt, settings
and seed alone: every strategy gives, token for token, what plain sampling gives with that seed.
Logits of steps of different widths differ by rounding; that matters only where the two best
candidates are as close.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .config import SamplingConfig
from .errors import NaNLogitsError
from .layout import StepLayout
from .noise import gumbel_noise
from .strategy import Successors
from .tree import Choose

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""(ids of the text so far [1, length], scores [1, vocabulary]) -> scores, as in transformers."""


def choose(logits: Tensor, config: SamplingConfig, noise: Tensor | None) -> Tensor:
    """The token chosen in each row, int64 [rows].

    Args:
        logits: [rows, vocabulary], penalties applied.
        config: temperature, top-k, top-p and min-p.
        noise: Gumbel noise, float32 [rows, vocabulary]; None for greedy.
    """
    scores = logits if noise is None else restricted(logits, config).add_(noise)
    return top_tokens(scores, 1)[1][:, 0]


def top_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Scores and ids of the best `count` tokens of each row, best first.

    The best one is what `argmax` gives, whatever `count` is: in half precision tokens are often
    equally good, and `topk` chooses among them as it likes.
    """
    if scores.device.type != "cpu":
        best = scores.max(dim=-1, keepdim=True)
        if count == 1:
            return best
        values, found = scores.topk(count)
        # Of those as good as the best one, topk may have another in front.
        found = torch.where(found == best.indices, found[:, :1], found)
        found[:, :1] = best.indices
        return values, found
    # NumPy's argmax is vectorised: a few of them take a fraction of torch's time for one.
    scores = scores.float()
    left = scores.numpy() if count == 1 else scores.numpy().copy()
    rows, ids = np.arange(len(left)), np.empty((count, len(left)), dtype=np.int64)
    for place in range(count):
        left.argmax(axis=-1, out=ids[place])
        if place + 1 < count:
            left[rows, ids[place]] = -np.inf
    found = torch.from_numpy(ids.T)
    return scores.gather(1, found), found


def restricted(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Logits over the temperature, minus infinity where top-k, top-p or min-p remove a token.

    Filters apply in transformers' order, and tokens as probable as the last one kept stay.  The
    temperature must be above 0; the largest score of each row is 0.
    """
    scores = logits.float()
    scores = scores - scores.amax(dim=-1, keepdim=True)
    # No temperature is too small to divide by.
    scores /= max(config.temperature, torch.finfo(torch.float32).tiny)
    if 0 < config.top_k < scores.shape[-1]:
        lowest_kept = scores.topk(config.top_k).values[:, -1:]
        scores = scores.masked_fill_(scores < lowest_kept, float("-inf"))
    if config.top_p < 1.0:
        probabilities = scores.softmax(dim=-1)
        cut = _nucleus_cut(probabilities, config.top_p)
        scores = scores.masked_fill_(probabilities < cut, float("-inf"))
    if config.min_p > 0.0:
        # Relative to the best token, whose score is 0.
        scores = scores.masked_fill_(scores.exp() < config.min_p, float("-inf"))
    return scores


def _nucleus_cut(probabilities: Tensor, top_p: float) -> Tensor:
    """The least probability in the smallest set of tokens with top-p together, [rows, 1]."""
    if len(probabilities) == 1 and probabilities.device.type == "cpu":
        # All tokens below this together have less than 1 - top-p, so the set is among the others,
        # which are few: a whole vocabulary takes milliseconds to sort.
        cut = min((1.0 - top_p) / probabilities.shape[-1], float(probabilities.max()))
        probabilities = probabilities[probabilities >= cut][None]
    ordered = probabilities.sort(dim=-1, descending=True).values
    # A token stays while the more probable ones together have less than top-p.
    last = (ordered.cumsum(dim=-1) < top_p).sum(dim=-1, keepdim=True)
    return ordered.gather(-1, last.clamp_(max=ordered.shape[-1] - 1))


def penalize_(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Apply a repetition penalty in place: divide positive and multiply negative logits.

    Source: Keskar et al., "CTRL", 2019.

    Args:
        logits: [rows, vocabulary].
        seen: int64 [rows, n], tokens before each row, repeated ones too.
        penalty: above 1 to make repetitions less probable.
    """
    scores = logits.gather(1, seen)
    return logits.scatter_(1, seen, torch.where(scores < 0, scores * penalty, scores / penalty))


def processed(
    logits: Tensor, ids: Tensor, config: SamplingConfig, processors: Sequence[LogitsProcessor]
) -> Tensor:
    """Scores after logits processors and the repetition penalty, float32 [1, vocabulary].

    Args:
        logits: [1, vocabulary]; they stay as they are.
        ids: of the text before them, int64 [1, length].
        config: of which the penalty is applied.
        processors: in their order.
    """
    rows = logits.to(torch.float32, copy=True)  # processors may write to it
    for processor in processors:
        rows = processor(ids, rows)
    if config.repetition_penalty != 1.0:
        rows = penalize_(rows, ids, config.repetition_penalty)
    return rows


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What is read out of a step's logits."""

    best: list[int]
    """The most probable token after each output; a repetition penalty counts, logits processors
    do not: drafts do without."""
    successors: Successors
    """See `strategy.Successors`."""
    choose: Choose
    """The model's token at a node of the tree, given the path to it."""


class Sampler:
    """Chooses the model's token at any node of a step, given the path that leads there.

    Logits processors are called per node of the tree, with the path as part of the text.
    """

    def __init__(
        self,
        config: SamplingConfig,
        processors: Sequence[LogitsProcessor] = (),
        logprobs: int | None = None,
    ) -> None:
        self.config = config
        self.logprobs = logprobs  # see `Decoder.generate`
        self._greedy = config.greedy
        self._processors = tuple(processors)
        # Gumbel noise by position, kept for the steps that may need it again.
        self._noise: dict[int, Tensor] = {}
        self._text: list[int] = []
        self._seen: dict[int, None] = {}

    def commit(self, tokens: Sequence[int]) -> None:
        """Note tokens that joined the text."""
        self._text += tokens
        self._seen.update(dict.fromkeys(tokens))
        if not self._greedy:
            self._noise = {p: noise for p, noise in self._noise.items() if p >= len(self._text)}

    @torch.inference_mode()
    def read(self, logits: Tensor, layout: StepLayout, nodes: int, successors: int) -> StepOutput:
        """Read out a step.

        Args:
            logits: [outputs, vocabulary]; a repetition penalty changes them.
            layout: of the step.
            nodes: in its tree.
            successors: of each output.

        Raises:
            NaNLogitsError: the logits are NaN or infinite.
        """
        config = self.config
        if config.repetition_penalty != 1.0 and not self._processors:
            logits = self._penalized(logits, layout)
        count = min(max(successors, 1), logits.shape[-1])
        values, ids = top_tokens(logits, count)
        # A NaN anywhere in a row is its maximum.
        usable = all(map(math.isfinite, values[:, 0].tolist()))
        if not (usable or self._processors):  # one of which may remove them
            raise NaNLogitsError
        tokens: list[int] = ids[:, 0].tolist()
        found = _successors(logits, values, ids) if successors and usable else ()
        # On a CPU, to draw for rows that the walk never reaches costs more than the calls.
        sampled_here = not self._greedy and logits.device.type == "cpu"
        if self._processors or sampled_here:
            return StepOutput(tokens, found, lambda row, path: self._choose(logits[row], path))
        chosen = tokens if self._greedy else self._choose_all(logits, layout, nodes)
        return StepOutput(tokens, found, lambda row, _path: chosen[row])

    def _penalized(self, logits: Tensor, layout: StepLayout) -> Tensor:
        text = torch.tensor([*self._seen], device=logits.device)
        paths = torch.from_numpy(layout.paths()).to(logits.device)
        seen = torch.cat((text.expand(len(logits), -1), paths), dim=1)
        return penalize_(logits.float(), seen, self.config.repetition_penalty)

    def _choose(self, scores: Tensor, path: Sequence[int]) -> int:
        """The token after one node, processors included."""
        rows, position = scores[None], len(self._text) + len(path)
        if self._processors:
            ids = torch.tensor([[*self._text, *path]], device=scores.device)
            rows = processed(rows, ids, self.config, self._processors)
            if bool(rows.isnan().any()):
                raise NaNLogitsError
        return int(choose(rows, self.config, self._noise_at([position], scores)))

    def _choose_all(self, logits: Tensor, layout: StepLayout, nodes: int) -> list[int]:
        """The tokens after the current token and every node, in one go: for GPUs."""
        rows = 1 + nodes
        positions = [layout.positions[output] + 1 for output in layout.outputs[:rows]]
        noise = self._noise_at(positions, logits)
        tokens: list[int] = choose(logits[:rows], self.config, noise).tolist()
        return tokens

    def _noise_at(self, positions: Sequence[int], like: Tensor) -> Tensor | None:
        """Noise of positions, float32 [positions, vocabulary]; None for greedy."""
        if self._greedy:
            return None
        rows = []
        for position in positions:
            if position not in self._noise:
                noise = gumbel_noise(self.config.seed, position, like.shape[-1], like.device)
                self._noise[position] = noise
            rows.append(self._noise[position])
        return torch.stack(rows)


def _successors(logits: Tensor, values: Tensor, tokens: Tensor) -> Successors:
    """The best tokens after each output, with their probabilities."""
    probabilities = (values.float() - logits.float().logsumexp(dim=-1, keepdim=True)).exp()
    rows = zip(tokens.tolist(), probabilities.tolist(), strict=True)
    return [dict(zip(*row, strict=True)) for row in rows]
