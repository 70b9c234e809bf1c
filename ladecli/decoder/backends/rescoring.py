"""Rescoring: the logits of a committed text, computed by several correct forwards.

If two strategies chose different tokens, this distinguishes rounding from a fault: it compares the
gap between the two tokens with its changes in forwards of other widths.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import Limits, SamplingConfig
from ..decoder import Decoder
from ..model.forward import Forward
from ..model.transformer import Transformer
from ..noise import gumbel_noise
from ..sampling import LogitsProcessor, choose, processed
from ..strategy import Draft, Room, State, Strategy
from .cpu_layouts import CpuLinear
from .trial import TOLERANCE

SAFETY = 4.0
"""The allowed difference of one more forward, as a multiple of the difference between a few: the
position is selected, since its rounding is the largest of thousands."""
FARTHEST = 100.0
"""The largest distance that is searched for, in logits."""


@dataclass(frozen=True, slots=True)
class LogitGap:
    """The distance of two tokens at one position; all in logits."""

    gap: float  # plain decoding's preference for its token, after the repetition penalty
    # The change of logits after which either token is chosen, given the noise of the position and
    # top-k, top-p and min-p; infinite beyond `FARTHEST`.
    distance: float
    noise: float  # the change of that distance between forwards of other widths
    allowed: float  # the largest change by rounding

    @property
    def explained(self) -> bool:
        """True if rounding explains the choice of the other token."""
        return self.distance <= self.allowed


class Rescorer:
    """Feeds texts to a model again; this uses the decoder's cache, which is empty afterwards.

    Args:
        decoder: of the model.
        quantised: True if weights are packed, whose kernels add their own noise.
    """

    def __init__(self, decoder: Decoder, *, quantised: bool = False) -> None:
        self._decoder = decoder
        self._quantised = quantised

    def gap(
        self,
        text: Sequence[int],
        prompt_length: int,
        tokens: tuple[int, int],
        width: int,
        sampling: SamplingConfig,
        processors: Sequence[LogitsProcessor] = (),
    ) -> LogitGap | None:
        """Return the distance of two tokens after a text.

        Args:
            text: prompt and answer, up to the token in question.
            prompt_length: tokens of the prompt.
            tokens: plain decoding's token, and the other one.
            width: of the step that chose the other one.
            sampling, processors: of the answer.

        Returns:
            None if memory is too small to read the text again.
        """
        before, facts = max(len(text) - 1, 1), self._decoder.facts
        if facts.rope_boundary is not None and not facts.rereads:
            before = prompt_length  # rotations of keys depend on the tokens that were read together
        forwards = (prompt_length, 1), (before, width), (before, 2 * width)
        rows: list[Tensor] = []
        for start, step_width in forwards:
            if (row := self._logits(text, start, step_width)) is None:
                return None
            rows.append(row)
        scores = [scored(row, text, sampling, processors) for row in rows]
        gaps = [float(score[tokens[0]] - score[tokens[1]]) for score in scores]
        noise = _noise_between(scores, gaps)
        distances = [_distance(rows[0], text, token, sampling, processors) for token in tokens]
        return LogitGap(
            gap=gaps[0],
            # The larger one, since even plain decoding's own forward may choose differently again.
            distance=max(distances),
            noise=noise,
            # If every step has plain decoding's bits, rounding explains nothing.
            allowed=0.0 if self._decoder.batch_invariant else self._allowed(rows[0], noise),
        )

    def _allowed(self, logits: Tensor, noise: float) -> float:
        """Return the most that rounding may move these logits if forwards differ by `noise`."""
        raw, dtype = logits[logits.isfinite()], rounding_of(self._decoder.executor.model)
        most = TOLERANCE[torch.bfloat16 if self._quantised else dtype] * float(raw.std())
        rounding = torch.finfo(dtype).eps * float(raw.abs().max())
        return min(SAFETY * noise, most) + rounding

    def _logits(self, text: Sequence[int], start: int, width: int = 1) -> Tensor | None:
        """Return the logits after a text, float32 [vocabulary]; None if memory runs out.

        Args:
            text: the tokens that decoding is forced to follow.
            start: the number of tokens that are read as a prompt.
            width: of the steps that decode the rest.
        """
        logits: Tensor | None = None

        def follow(ids: Tensor, scores: Tensor) -> Tensor:
            nonlocal logits
            length = ids.shape[1]
            if length == len(text):
                logits = scores[0].clone()
                return scores
            forced = torch.full_like(scores, -math.inf)
            forced[0, text[length]] = 0.0
            return forced

        limits = Limits(len(text) - start + 1)
        try:
            deque(self._decoder.generate(text[:start], _Padded(width), None, limits, [follow]), 0)
        finally:
            self._decoder.forget()
        return logits


def rounding_of(forward: Forward) -> torch.dtype:
    """Return the coarsest type to which activations of a forward are rounded."""
    types = {forward.dtype}
    if isinstance(forward, Transformer):
        products = [forward.head, *(p for layer in forward.layers for p in layer.products)]
        types |= {product.rounding for product in products if isinstance(product, CpuLinear)}
    return max(types, key=lambda dtype: torch.finfo(dtype).eps)


class _Padded(Strategy):
    """Plain decoding in steps that are padded to a width, if memory allows."""

    def __init__(self, width: int) -> None:
        self._width = width

    def propose(self, state: State, room: Room) -> Draft:
        """Return a draft without candidates."""
        return Draft(width=min(self._width, room.width))


def _noise_between(scores: Sequence[Tensor], gaps: Sequence[float]) -> float:
    """Return the largest change of a gap between forwards; scores are [vocabulary]."""
    # A model may exclude tokens by infinite logits.
    noise = max(gaps) - min(gaps) if all(map(math.isfinite, gaps)) else 0.0
    # The gap may agree by chance, so the changes of the best tokens count, too.
    best = scores[0].topk(min(64, len(scores[0]))).indices
    for score in scores[1:]:
        moved = (score - scores[0])[best]
        moved = moved[moved.isfinite()]
        if len(moved):
            noise = max(noise, 2.0**0.5 * float(moved.std(correction=0)))
    return noise


def _distance(
    logits: Tensor,
    text: Sequence[int],
    token: int,
    sampling: SamplingConfig,
    processors: Sequence[LogitsProcessor],
) -> float:
    """Return the rise of a token's logit with which it is chosen after a text: it must pass the
    best one, and be kept by processors, top-k, top-p and min-p.

    Args:
        logits: [vocabulary], before processors.
        text: the tokens before.
        token: its id.
        sampling, processors: of the answer.
    """
    if sampling.greedy:
        scores = scored(logits, text, sampling, processors)
        return float(scores.max() - scores[token])
    ids = torch.arange(len(logits), device=logits.device)
    noise = gumbel_noise(sampling.seed, [len(text)], ids)

    def chosen(rise: float) -> bool:
        raised = logits.float().clone()
        raised[token] += rise
        scores = scored(raised, text, sampling, processors)
        return int(choose(scores[None], sampling, noise)) == token

    if chosen(0.0):
        return 0.0
    low, high = 0.0, 1e-6
    while not chosen(high):
        low, high = high, 2.0 * high
        if high > FARTHEST:
            return math.inf
    while high - low > 1e-3 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if chosen(middle) else (middle, high)
    return high


def scored(
    logits: Tensor,
    text: Sequence[int],
    sampling: SamplingConfig,
    processors: Sequence[LogitsProcessor] = (),
) -> Tensor:
    """Return logits after processors and the repetition penalty, float32 [vocabulary]."""
    ids = torch.tensor([[*text]], device=logits.device)
    return processed(logits[None], ids, sampling, processors)[0]
