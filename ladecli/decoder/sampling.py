"""From logits to tokens.

A token is drawn by Gumbel-max: it has the largest sum of logit / temperature and noise, and the
`noise` of a position depends on the seed and the position only.  So a text depends only on model,
prompt, settings and seed: every strategy gives, token for token, what plain sampling gives with
that seed.  Logits of steps of different widths differ by rounding, which matters only if the two
best candidates are that close.

On a GPU, tokens are drawn for all nodes at once; on a CPU, for those that the walk down the tree
reaches.
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
from .grammar import Grammar, TokenSet
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
"""Rows of logits that are ranked at once on a CPU, so that what is computed fits in its caches."""
SHORTLIST = 256
"""A draw looks at this many of the best tokens first, if filters are on: to sort a whole vocabulary
takes as long as the forward of a small model."""


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
    """Return the same as `choose` with the noise of `positions`, but look at the `SHORTLIST` best
    tokens only: int64 [rows], -1 in a row of which filters leave more than these."""
    count = min(SHORTLIST, logits.shape[-1])
    values, ids = logits.topk(count)
    log_total = None
    if config.top_p < 1.0 and not config.top_k:
        log_total = _tempered(logits, config).logsumexp(dim=-1, keepdim=True)
    scores = restricted(values, config, log_total)
    # If filters removed the last one of the list, they removed all tokens below it, too.
    enough = scores[:, -1] == float("-inf") if count < logits.shape[-1] else None
    best = scores.add_(gumbel_noise(config.seed, positions, ids)).argmax(dim=-1, keepdim=True)
    tokens = ids.gather(1, best)[:, 0]
    return tokens if enough is None else torch.where(enough, tokens, -1)


def top_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return scores and ids of the best `count` tokens of each row, best first.

    The first one is what `argmax` gives, whatever `count` is: in half precision, scores are often
    equal, and `topk` may put any of the equal ones first.
    """
    if scores.device.type != "cpu":
        best = scores.max(dim=-1, keepdim=True)
        if count == 1:
            return best
        values, ids = scores.topk(count)
        # Put argmax's choice first, in exchange for topk's.
        ids = torch.where(ids == best.indices, ids[:, :1], ids)
        ids[:, :1] = best.indices
        return values, ids
    # NumPy's argmax is vectorised: a few of them take a fraction of torch's time for one.
    scores = scores.float()
    left = scores.numpy() if count == 1 else scores.numpy().copy()
    rows, places = np.arange(len(left)), np.empty((count, len(left)), dtype=np.int64)
    for place in range(count):
        left.argmax(axis=-1, out=places[place])
        if place + 1 < count:
            left[rows, places[place]] = -np.inf
    ids = torch.from_numpy(places.T)
    return scores.gather(1, ids), ids


def most_probable(logits: Tensor, successors: int) -> tuple[Tensor, Tensor]:
    """Return the most probable tokens of each row, best first: ids, int64 [rows, n], and a number
    for each, all finite if the logits of the row are.

    Args:
        logits: [rows, vocabulary].
        successors: how many tokens; the numbers are their probabilities.  0 for the best one
            alone, whose number has no other meaning.
    """
    if logits.device.type == "cpu" and len(logits) > ROWS:
        parts = [most_probable(rows, successors) for rows in torch.split(logits, ROWS)]
        ids, scores = map(torch.cat, zip(*parts, strict=True))
        return ids, scores
    scores, ids = top_tokens(logits, min(max(successors, 1), logits.shape[-1]))
    if successors:
        # A NaN or an infinity in a row of logits makes the whole row NaN.
        scores = logits.float().softmax(-1).gather(1, ids)
    return ids, scores


def restricted(logits: Tensor, config: SamplingConfig, log_total: Tensor | None = None) -> Tensor:
    """Return logits over the temperature, and minus infinity for each token that top-k, top-p or
    min-p removes.  The largest score of each row is 0.

    Filters apply in transformers' order, and tokens as probable as the last one kept stay.

    Args:
        logits: [rows, n].
        config: temperature, above 0, and filters.
        log_total: the logarithm of the sum over all tokens that probabilities are relative to,
            [rows, 1], if `logits` lacks some of these tokens.
    """
    scores = _tempered(logits, config)
    if 0 < config.top_k < scores.shape[-1]:
        lowest_kept = scores.topk(config.top_k).values[:, -1:]
        scores = scores.masked_fill_(scores < lowest_kept, float("-inf"))
    if config.top_p < 1.0:
        probabilities = scores.softmax(-1) if log_total is None else (scores - log_total).exp()
        cut = _nucleus_cut(probabilities, config.top_p)
        scores = scores.masked_fill_(probabilities < cut, float("-inf"))
    if config.min_p > 0.0:
        # Relative to the best token, whose score is 0.
        scores = scores.masked_fill_(scores.exp() < config.min_p, float("-inf"))
    return scores


def _tempered(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Return logits over the temperature in float32; the largest of each row is 0."""
    scores = logits.float()
    scores = scores - scores.amax(dim=-1, keepdim=True)
    # No temperature is too small to divide by.
    return scores.div_(max(config.temperature, torch.finfo(torch.float32).tiny))


def _nucleus_cut(probabilities: Tensor, top_p: float) -> Tensor:
    """Return the least probability in the smallest set of tokens that together have top-p,
    [rows, 1]."""
    rows, count = probabilities.shape
    if rows == 1 and count > SHORTLIST and probabilities.device.type == "cpu":
        # The tokens below this cut together have less than 1 - top-p, so the set is among the
        # others.  There are few of these, and a whole vocabulary takes milliseconds to sort.
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
        seen: int64 [rows, n], the tokens before each row, in any order and number.
        penalty: above 1 to make repetitions less probable.
    """
    scores = logits.gather(1, seen)
    return logits.scatter_(1, seen, torch.where(scores < 0, scores * penalty, scores / penalty))


def processed(
    logits: Tensor, ids: Tensor, config: SamplingConfig, processors: Sequence[LogitsProcessor]
) -> Tensor:
    """Return scores after logits processors and the repetition penalty, float32 [1, vocabulary].

    Args:
        logits: [1, vocabulary]; they are not changed.
        ids: the text before them, int64 [1, length].
        config: the settings with the penalty.
        processors: the logits processors, applied in this order.
    """
    rows = logits.to(torch.float32, copy=True)  # processors may write to it
    for processor in processors:
        rows = processor(ids, rows)
    if config.repetition_penalty != 1.0:
        rows = penalize_(rows, ids, config.repetition_penalty)
    return rows


def masked(logits: Tensor, sets: Sequence[TokenSet | None]) -> Tensor:
    """Return logits [rows, vocabulary], minus infinity for the tokens that a row's set lacks; None
    is the set of all tokens."""
    count = logits.shape[-1]
    size = -(-count // 8)
    joined = bytearray().join([b"\xff" * size if s is None else s[:size] for s in sets])
    packed = to_device(np.frombuffer(joined, np.uint8).reshape(-1, size, 1), logits.device)
    bits = packed >> torch.arange(8, dtype=torch.uint8, device=logits.device) & 1
    return logits.masked_fill(bits.view(len(sets), -1)[:, :count] == 0, float("-inf"))


def to_host(*parts: Tensor) -> Callable[[], list[Any]]:
    """Start one copy of all tensors; return a function that waits for it and returns lists.

    The copy is in float32, which is exact for token ids, all of them below 2**24.
    """
    device = parts[0].device
    if device.type == "cpu":
        return lambda: [part.tolist() for part in parts]
    packed, arrived = torch.cat([part.flatten().float() for part in parts]), None
    kinds = [float if part.is_floating_point() else int for part in parts]
    shapes = [part.shape for part in parts]
    cuts = [*pairwise(accumulate([part.numel() for part in parts], initial=0))]
    if device.type == "cuda":
        packed = packed.to("cpu", non_blocking=True)  # into pinned memory
        arrived = torch.cuda.current_stream(device).record_event()

    def wait() -> list[Any]:
        if arrived is not None:
            arrived.synchronize()
        # NumPy is faster than torch with a few numbers, and from here on the device is idle.
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
        tokens: the k + 1 tokens that the walk chose.
        nodes: the k accepted nodes.
        logits: [outputs, vocabulary], as the forward returned them.
        count: how many of the most probable tokens to list with each token.
    """
    places = to_device([0, *[1 + node for node in nodes]], logits.device)
    logprobs = logits[places].float().log_softmax(dim=-1)
    ids = to_device([[token.id] for token in tokens], logits.device)
    best = logprobs.topk(min(count, logprobs.shape[-1]))
    arrived = to_host(logprobs.gather(1, ids)[:, 0], best.indices, best.values)()
    rows = zip(tokens, *arrived, strict=True)
    return [
        replace(token, logprobs=Logprobs(own, tuple(zip(others, values, strict=True))))
        for token, own, others, values in rows
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
        grammar: Grammar | None = None,
    ) -> None:
        self.config, self._grammar = config, grammar
        self._most_probable = most_probable
        self._logprobs = logprobs  # see `Decoder.generate`
        self._greedy = config.greedy
        # Whether to try `draw` first: filters mostly leave few tokens, and need little noise then.
        filtered = config.top_k > 0 or config.top_p < 1.0 or config.min_p > 0.0
        self._shortlists = filtered and config.top_k < SHORTLIST and not config.greedy
        self._processors = tuple(processors)
        # Gumbel noise by position; several nodes and steps may need the same.
        self._noise: dict[int, Tensor] = {}
        self._text: list[int] = []

    def commit(self, tokens: Sequence[int]) -> None:
        """Append tokens that joined the text."""
        self._text += tokens
        if not self._greedy:
            self._noise = {p: noise for p, noise in self._noise.items() if p >= len(self._text)}

    @torch.inference_mode()
    def read(self, logits: Tensor, layout: StepLayout, draft: Draft) -> Callable[[], StepResult]:
        """Launch what is computed from a step's logits; return a function that waits for it, and
        walks down the tree.

        Args:
            logits: [outputs, vocabulary]; a repetition penalty is applied to them in place.
            layout: the layout of the step.
            draft: the draft of the step.

        Raises:
            NaNLogitsError: the logits are NaN or infinite; raised by the function.
        """
        original = logits
        if self.config.repetition_penalty != 1.0 and not self._processors:
            original = logits if self._logprobs is None else logits.clone()
            logits = self._penalized(logits, layout)
        parts = [*self._most_probable(logits, draft.successors)]
        # On a CPU, drawing for all rows costs more than calls for those that the walk reaches.
        plain = self._greedy and self._grammar is None
        if not (plain or self._processors or logits.device.type == "cpu"):
            rows = logits[: 1 + len(draft.tree)]
            if self._grammar is not None:
                rows = masked(rows, [*map(self._grammar.allowed, draft.tree.paths())])
            positions = [layout.positions[output] + 1 for output in layout.outputs[: len(rows)]]
            # A -1 in a row says that `_choose` has to look at all tokens.
            parts.append(
                draw(rows, self.config, positions)
                if self._shortlists
                else choose(rows, self.config, self._noise_at(positions, rows))
            )
        wait = to_host(*parts)
        return partial(self._result, draft.tree, original, logits, wait, draft.successors > 0)

    def _result(
        self,
        tree: TokenTree,
        original: Tensor,
        logits: Tensor,
        wait: Callable[[], list[Any]],
        with_successors: bool,
    ) -> StepResult:
        """Wait for what `read` has launched, and walk down the tree.

        Args:
            tree: the tree of the draft.
            original: the logits before a repetition penalty.
            logits: the logits after it.
            wait: waits for what is computed from them.
            with_successors: whether the draft asks for successors.
        """
        ids, scores, *drawn = wait()
        # A NaN anywhere in a row is its maximum.
        finite = all(math.isfinite(row[0]) for row in scores)
        if not (finite or self._processors):  # a processor may remove them
            raise NaNLogitsError
        best: list[int] = [row[0] for row in ids]
        successors: Successors = ()
        if with_successors and finite:
            successors = [*map(dict, map(zip, ids, scores))]  # a quarter faster than a loop
        # By output, the token that is known already, or -1.
        (chosen,) = drawn or [best if self._greedy and not self._processors else [-1] * len(best)]
        shortlists = self._shortlists and not drawn  # `draw` has returned -1 for these rows already

        def choose_at(row: int, path: Sequence[int]) -> int:
            token: int = chosen[row]
            # On a CPU few of the best tokens are forbidden, so masks of all rows would be a waste.
            allowed = None if self._grammar is None else self._grammar.allowed(path)
            fits = token >= 0 and (allowed is None or token in allowed)
            return token if fits else self._choose(logits[row], path, shortlists)

        nodes, tokens = tree.walk(choose_at)
        if self._logprobs is not None:
            tokens = with_logprobs(tokens, nodes, original, self._logprobs)
        return StepResult(nodes, tokens, best, successors)

    def _penalized(self, logits: Tensor, layout: StepLayout) -> Tensor:
        text = to_device([*{*self._text}], logits.device)
        paths = to_device(layout.paths(), logits.device)
        seen = torch.cat((text.expand(len(logits), -1), paths), dim=1)
        return penalize_(logits.float(), seen, self.config.repetition_penalty)

    @torch.inference_mode()
    def _choose(self, scores: Tensor, path: Sequence[int], shortlists: bool) -> int:
        """Return the token that is chosen by one row of logits, after the path to its node."""
        rows, position = scores[None], len(self._text) + len(path)
        if self._processors:
            ids = to_device([[*self._text, *path]], scores.device)
            rows = processed(rows, ids, self.config, self._processors)
            if bool(rows.isnan().any()):
                raise NaNLogitsError
        if self._grammar is not None:
            rows = masked(rows, [self._grammar.allowed(path)])
        if shortlists and (token := int(draw(rows, self.config, [position]))) >= 0:
            return token
        return int(choose(rows, self.config, self._noise_at([position], rows)))

    def _noise_at(self, positions: Sequence[int], like: Tensor) -> Tensor | None:
        """Return the noise of positions, float32 [positions, vocabulary]; None for greedy."""
        if self._greedy:
            return None
        if new := [place for place in dict.fromkeys(positions) if place not in self._noise]:
            tokens = torch.arange(like.shape[-1], device=like.device)
            noise = gumbel_noise(self.config.seed, new, tokens)
            self._noise.update(zip(new, noise, strict=True))
        return torch.stack([self._noise[position] for position in positions])
