"""From logits to tokens: of all nodes at once on a GPU, on a CPU of those that the walk reaches.

A token is drawn by Gumbel-max: the largest of logits / temperature + noise, where the `noise` of a
position depends on the seed and the position only.  So a text depends on model, prompt, settings
and seed alone: every strategy gives, token for token, what plain sampling gives with that seed.
Logits of steps of different widths differ by rounding; that matters only where the two best
candidates are as close.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .config import SamplingConfig
from .errors import NaNLogitsError
from .events import Logprobs, Token
from .kv_cache import to_device
from .layout import StepLayout
from .noise import gumbel_noise
from .strategy import Draft, StepResult, Successors
from .tree import TokenTree

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""(ids of the text so far [1, length], scores [1, vocabulary]) -> scores, as in transformers."""

MostProbable = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""See `most_probable`."""

ROWS = 8
"""Of logits, searched at once on a CPU: what it makes of them is small, and stays in its caches."""
SHORTLIST = 256
"""Tokens that a draw looks at first where filters leave few: to sort a whole vocabulary takes as
long as the forward of a small model."""


def choose(logits: Tensor, config: SamplingConfig, noise: Tensor | None) -> Tensor:
    """Return the token chosen in each row, int64 [rows].

    Args:
        logits: [rows, vocabulary], penalties applied.
        config: temperature, top-k, top-p and min-p.
        noise: Gumbel noise, float32 [rows, vocabulary]; None for greedy.
    """
    scores = logits if noise is None else restricted(logits, config).add_(noise)
    return top_tokens(scores, 1)[1][:, 0]


def draw(logits: Tensor, config: SamplingConfig, positions: Sequence[int]) -> Tensor:
    """As `choose`, with the noise of positions, from the best tokens alone: int64 [rows], -1 where
    filters leave more of them than `SHORTLIST`."""
    count = min(SHORTLIST, logits.shape[-1])
    values, ids = logits.topk(count)
    everything = None
    if config.top_p < 1.0 and not config.top_k:
        everything = _tempered(logits, config).logsumexp(dim=-1, keepdim=True)
    scores = restricted(values, config, everything)
    # What ties with the last one of the list was removed with it.
    enough = scores[:, -1] == float("-inf") if count < logits.shape[-1] else None
    best = scores.add_(gumbel_noise(config.seed, positions, ids)).argmax(dim=-1, keepdim=True)
    tokens = ids.gather(1, best)[:, 0]
    return tokens if enough is None else torch.where(enough, tokens, -1)


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


def most_probable(logits: Tensor, successors: int) -> tuple[Tensor, Tensor]:
    """The most probable tokens of each row, best first: ids, int64 [rows, n], and numbers that are
    finite where all logits of the row are.

    Args:
        logits: [rows, vocabulary].
        successors: how many tokens, whose numbers are their probabilities; 0 for the best one
            alone, whose number says nothing more.
    """
    if logits.device.type == "cpu" and len(logits) > ROWS:
        parts = [most_probable(rows, successors) for rows in torch.split(logits, ROWS)]
        ids, scores = map(torch.cat, zip(*parts, strict=True))
        return ids, scores
    scores, ids = top_tokens(logits, min(max(successors, 1), logits.shape[-1]))
    if successors:
        # A NaN or an infinity in a row of logits makes all of it NaN.
        scores = logits.float().softmax(-1).gather(1, ids)
    return ids, scores


def restricted(logits: Tensor, config: SamplingConfig, everything: Tensor | None = None) -> Tensor:
    """Logits over the temperature, minus infinity where top-k, top-p or min-p remove a token.

    Filters apply in transformers' order, and tokens as probable as the last one kept stay.  The
    temperature must be above 0; the largest score of each row is 0.

    Args:
        logits: [rows, n].
        config: temperature and filters.
        everything: the logarithm of the sum that probabilities are relative to, [rows, 1], where
            these are not all tokens that top-k leaves.
    """
    scores = _tempered(logits, config)
    if 0 < config.top_k < scores.shape[-1]:
        lowest_kept = scores.topk(config.top_k).values[:, -1:]
        scores = scores.masked_fill_(scores < lowest_kept, float("-inf"))
    if config.top_p < 1.0:
        probabilities = scores.softmax(-1) if everything is None else (scores - everything).exp()
        cut = _nucleus_cut(probabilities, config.top_p)
        scores = scores.masked_fill_(probabilities < cut, float("-inf"))
    if config.min_p > 0.0:
        # Relative to the best token, whose score is 0.
        scores = scores.masked_fill_(scores.exp() < config.min_p, float("-inf"))
    return scores


def _tempered(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Logits over the temperature, float32; the largest of each row is 0."""
    scores = logits.float()
    scores = scores - scores.amax(dim=-1, keepdim=True)
    # No temperature is too small to divide by.
    return scores.div_(max(config.temperature, torch.finfo(torch.float32).tiny))


def _nucleus_cut(probabilities: Tensor, top_p: float) -> Tensor:
    """Return the least probability in the smallest set of tokens with top-p together, [rows, 1]."""
    rows, count = probabilities.shape
    if rows == 1 and count > SHORTLIST and probabilities.device.type == "cpu":
        # All tokens below this together have less than 1 - top-p, so the set is among the others,
        # which are few: a whole vocabulary takes milliseconds to sort.
        cut = min((1.0 - top_p) / count, float(probabilities.max()))
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


def to_host(*parts: Tensor) -> Callable[[], list[Any]]:
    """Start one copy of all tensors; the function that is returned waits for it and gives lists.

    Numbers travel as float32, where the ids of all vocabularies are exact: below 2**24.
    """
    device = parts[0].device
    if device.type == "cpu":
        return lambda: [part.tolist() for part in parts]
    packed, arrived = torch.cat([part.flatten().float() for part in parts]), None
    kinds = [float if part.is_floating_point() else int for part in parts]
    shapes = [part.shape for part in parts]
    cuts = [*pairwise(accumulate([part.numel() for part in parts], initial=0))]
    if device.type == "cuda":
        packed = packed.to("cpu", non_blocking=True)  # which is pinned memory
        arrived = torch.cuda.current_stream(device).record_event()

    def wait() -> list[Any]:
        if arrived is not None:
            arrived.synchronize()
        # From here on the device has nothing to do: NumPy is the faster one with few numbers.
        numbers = packed.cpu().numpy()
        return [
            numbers[start:end].astype(kind).reshape(shape).tolist()
            for (start, end), kind, shape in zip(cuts, kinds, shapes, strict=True)
        ]

    return wait


@torch.inference_mode()
def with_logprobs(
    tokens: Sequence[Token], nodes: Sequence[int], logits: Tensor, count: int
) -> list[Token]:
    """Return the tokens of a walk with their log-probabilities.

    Args:
        tokens: that the walk chose: k + 1 after k accepted nodes.
        nodes: the accepted ones.
        logits: [outputs, vocabulary], as the forward gave them.
        count: of the most probable tokens at each place that are named, too.
    """
    places = to_device([0, *[1 + node for node in nodes]], logits.device)
    logprobs = logits[places].float().log_softmax(dim=-1)
    ids = to_device([[token.id] for token in tokens], logits.device)
    best = logprobs.topk(min(count, logprobs.shape[-1]))
    arrived = to_host(logprobs.gather(1, ids)[:, 0], best.indices, best.values)()
    rows = zip(tokens, *arrived, strict=True)
    return [
        replace(token, logprobs=Logprobs(mine, tuple(zip(found, values, strict=True))))
        for token, mine, found, values in rows
    ]


class Sampler:
    """Chooses the model's token at any node of a step, given the path that leads there.

    Logits processors are called per node of the tree, with the path as part of the text.
    """

    def __init__(
        self,
        config: SamplingConfig,
        processors: Sequence[LogitsProcessor] = (),
        logprobs: int | None = None,
        most_probable: MostProbable = most_probable,
    ) -> None:
        self.config = config
        self._most_probable = most_probable
        self._logprobs = logprobs  # see `Decoder.generate`
        self._greedy = config.greedy
        # Few tokens remain, mostly, and no noise is needed for the others.
        filtered = config.top_k > 0 or config.top_p < 1.0 or config.min_p > 0.0
        self._shortlists = filtered and config.top_k < SHORTLIST and not config.greedy
        self._processors = tuple(processors)
        # Gumbel noise by position, kept for the steps that may need it again.
        self._noise: dict[int, Tensor] = {}
        self._text: list[int] = []

    def commit(self, tokens: Sequence[int]) -> None:
        """Note tokens that joined the text."""
        self._text += tokens
        if not self._greedy:
            self._noise = {p: noise for p, noise in self._noise.items() if p >= len(self._text)}

    @torch.inference_mode()
    def read(self, logits: Tensor, layout: StepLayout, draft: Draft) -> Callable[[], StepResult]:
        """Read out a step: launch all that there is to compute; what is returned waits for it, and
        walks down the tree.

        Args:
            logits: [outputs, vocabulary]; a repetition penalty changes them.
            layout: of the step.
            draft: that it is of.

        Raises:
            NaNLogitsError: the logits are NaN or infinite; when the result is waited for.
        """
        given = logits
        if self.config.repetition_penalty != 1.0 and not self._processors:
            given = logits if self._logprobs is None else logits.clone()
            logits = self._penalized(logits, layout)
        parts = [*self._most_probable(logits, draft.successors)]
        # On a CPU, to draw for rows that the walk never reaches costs more than the calls.
        if not (self._greedy or self._processors or logits.device.type == "cpu"):
            rows = logits[: 1 + len(draft.tree)]
            positions = [layout.positions[output] + 1 for output in layout.outputs[: len(rows)]]
            # -1 where `_choose` has to look at all tokens.
            parts.append(
                draw(rows, self.config, positions)
                if self._shortlists
                else choose(rows, self.config, self._noise_at(positions, rows))
            )
        wait = to_host(*parts)
        return partial(self._result, draft.tree, given, logits, wait, draft.successors > 0)

    def _result(
        self,
        tree: TokenTree,
        given: Tensor,
        logits: Tensor,
        wait: Callable[[], list[Any]],
        with_successors: bool,
    ) -> StepResult:
        """What has arrived of a step, and the walk down its tree; `given` are the logits before a
        repetition penalty."""
        ids, scores, *drawn = wait()
        # A NaN anywhere in a row is its maximum.
        usable = all(math.isfinite(row[0]) for row in scores)
        if not (usable or self._processors):  # one of which may remove them
            raise NaNLogitsError
        best: list[int] = [row[0] for row in ids]
        found: Successors = ()
        if with_successors and usable:
            found = [*map(dict, map(zip, ids, scores))]  # a quarter faster than a comprehension
        (chosen,) = drawn or [best if self._greedy and not self._processors else [-1] * len(best)]
        shortlists = self._shortlists and not drawn  # `draw` has refused these rows already

        def choose_at(row: int, path: Sequence[int]) -> int:
            token = chosen[row]
            return token if token >= 0 else self._choose(logits[row], path, shortlists)

        nodes, tokens = tree.walk(choose_at)
        if self._logprobs is not None:
            tokens = with_logprobs(tokens, nodes, given, self._logprobs)
        return StepResult(nodes, tokens, best, found)

    def _penalized(self, logits: Tensor, layout: StepLayout) -> Tensor:
        text = to_device([*{*self._text}], logits.device)
        paths = to_device(layout.paths(), logits.device)
        seen = torch.cat((text.expand(len(logits), -1), paths), dim=1)
        return penalize_(logits.float(), seen, self.config.repetition_penalty)

    @torch.inference_mode()
    def _choose(self, scores: Tensor, path: Sequence[int], shortlists: bool) -> int:
        """Return the token after one node, processors included."""
        rows, position = scores[None], len(self._text) + len(path)
        if self._processors:
            ids = to_device([[*self._text, *path]], scores.device)
            rows = processed(rows, ids, self.config, self._processors)
            if bool(rows.isnan().any()):
                raise NaNLogitsError
        if shortlists and (token := int(draw(rows, self.config, [position]))) >= 0:
            return token
        return int(choose(rows, self.config, self._noise_at([position], rows)))

    def _noise_at(self, positions: Sequence[int], like: Tensor) -> Tensor | None:
        """Noise of positions, float32 [positions, vocabulary]; None for greedy."""
        if self._greedy:
            return None
        if new := [
            position for position in dict.fromkeys(positions) if position not in self._noise
        ]:
            tokens = torch.arange(like.shape[-1], device=like.device)
            noise = gumbel_noise(self.config.seed, new, tokens)
            self._noise.update(zip(new, noise, strict=True))
        return torch.stack([self._noise[position] for position in positions])
