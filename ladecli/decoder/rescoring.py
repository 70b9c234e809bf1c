"""Rescoring: the logits of a committed text by forwards that are all correct.

Where two strategies chose different tokens, this tells rounding from a fault: by how much the
one token beats the other, and how far forwards of other widths move that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from . import layout
from .config import PREFILL_CHUNK, SamplingConfig
from .decoder import Decoder
from .faults import attempt
from .model.trial import TOLERANCE
from .noise import gumbel_noise
from .run.runner import Runner
from .sampling import LogitsProcessor, choose, processed, restricted
from .strategy import Draft

SAFETY = 4.0
"""Times the difference seen between a few forwards that one more may differ: it is looked at
because its rounding reached across, as that of one position in thousands does."""
FARTHEST = 100.0
"""Logits beyond which no distance is looked for."""


@dataclass(frozen=True, slots=True)
class LogitGap:
    """How far two tokens are apart at one position; all in logits."""

    gap: float  # by which plain decoding prefers its token, after the repetition penalty
    # How far logits must move for either to be chosen, with the noise of the position and what
    # top-k, top-p and min-p remove; infinite beyond `FARTHEST`.
    distance: float
    noise: float  # how far forwards of other widths move that distance
    allowed: float  # how far rounding may move it

    @property
    def explained(self) -> bool:
        """Whether rounding explains that the other token was chosen."""
        return self.distance <= self.allowed


class Rescorer:
    """Feeds texts to a model again; the decoder's cache is used for it, and is empty then.

    Args:
        decoder: the model at work.
        quantised: whether weights are packed, so that their kernels add noise of their own.
    """

    def __init__(self, decoder: Decoder, *, quantised: bool = False) -> None:
        self._decoder = decoder
        # Steps as they are: a captured one gives nothing but the logits of its outputs.
        self._runner = Runner(decoder.runner.model, decoder.cache)
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
        """How far two tokens are apart after a text.

        Args:
            text: prompt and answer, up to the token in question.
            prompt_length: tokens of the prompt.
            tokens: that of plain decoding, and the other one.
            width: of the step that chose the other one.
            sampling, processors: how tokens were chosen.

        Returns:
            None where memory does not suffice to read the text again.
        """
        plain_row = attempt(self._plain, text, prompt_length)
        wide_rows = [attempt(self._wide, text, each) for each in (width, 2 * width)]
        rows = [row for row in (plain_row, *wide_rows) if row is not None]
        if len(rows) < 3:
            return None
        scores = [scored(row, text, sampling, processors) for row in rows]
        gaps = [float(score[tokens[0]] - score[tokens[1]]) for score in scores]
        noise = _noise_between(scores, gaps)
        drawn, start, last = None, scores[0], _as_they_are
        if not sampling.greedy:
            ids = torch.arange(len(scores[0]), device=scores[0].device)
            drawn = gumbel_noise(sampling.seed, [len(text)], ids)[0]
            if processors:  # a token that they remove can only rise before them
                start = rows[0].float()
                last = partial(scored, text=text, sampling=sampling, processors=processors)
        return LogitGap(
            gap=gaps[0],
            # Plain decoding itself may have chosen what its own forward does not.
            distance=max(_distance(start, token, sampling, drawn, last) for token in tokens),
            noise=noise,
            # Where every step has plain decoding's bits, rounding explains nothing.
            allowed=0.0 if self._decoder.batch_invariant else self._allowed(rows[0], noise),
        )

    def _allowed(self, logits: Tensor, noise: float) -> float:
        """The most that rounding may move these logits if forwards differ by `noise`."""
        raw, dtype = logits[logits.isfinite()], self._decoder.runner.model.rounding
        most = TOLERANCE[torch.bfloat16 if self._quantised else dtype] * float(raw.std())
        rounding = torch.finfo(dtype).eps * float(raw.abs().max())
        return min(SAFETY * noise, most) + rounding

    def probabilities(
        self,
        text: Sequence[int],
        prompt_length: int,
        sampling: SamplingConfig,
        processors: Sequence[LogitsProcessor] = (),
    ) -> list[float] | None:
        """By token id, how probable plain decoding draws it after a text; None where memory does
        not suffice.  Arguments as for `gap`."""
        logits = attempt(self._plain, text, prompt_length)
        if logits is None:
            return None
        scores = restricted(scored(logits, text, sampling, processors)[None], sampling)
        shares: list[float] = scores.double().softmax(dim=-1)[0].tolist()
        return shares

    def _plain(self, text: Sequence[int], prompt_length: int) -> Tensor:
        """Logits after the text, as plain decoding has them: one token a step."""
        start, boundary = prompt_length, self._decoder.local.facts.rope_boundary
        if boundary is not None and prompt_length <= boundary < len(text):
            start = boundary + 1  # there all of it is read again
        try:
            self._read(text, start)
            for end in range(start, len(text) + 1):
                logits = self._step(text, end, 1)
            return logits
        finally:
            self._decoder.forget()

    def _wide(self, text: Sequence[int], width: int) -> Tensor:
        """Logits after the text, all of which but the last token is read at once."""
        try:
            self._read(text, len(text))
            return self._step(text, len(text), width)
        finally:
            self._decoder.forget()

    def _read(self, text: Sequence[int], end: int) -> None:
        """Feed all but the last of the first `end` tokens of a text to the cache, emptied first."""
        self._decoder.forget()
        cache, boundary = self._decoder.cache, self._decoder.local.facts.rope_boundary
        anchor = len(text) - 1 if boundary is not None and len(text) > boundary else None
        while (start := cache.length) < end - 1:
            tokens = text[start : min(start + PREFILL_CHUNK, end - 1)]
            self._runner.run(layout.build_chunk(tokens, start, anchor))
            cache.keep(range(len(tokens)))

    def _step(self, text: Sequence[int], end: int, width: int) -> Tensor:
        """Float32 logits after the first `end` tokens, by a step of some width, which is kept."""
        cache = self._decoder.cache
        start = cache.length
        if self._runner.model.drafts != "trees":
            width = 1  # padding would become part of the text
        logits = self._runner.run(layout.build(text[start:end], start, Draft(width=width)))
        cache.keep(range(end - start))
        return logits[0].float()


def _noise_between(scores: Sequence[Tensor], gaps: Sequence[float]) -> float:
    """The largest change of a gap between forwards, from their scores [vocabulary] and gaps."""
    # A model may rule tokens out with infinite logits.
    noise = max(gaps) - min(gaps) if all(map(math.isfinite, gaps)) else 0.0
    # One forward can be right by chance: the best tokens move as this one may.
    best = scores[0].topk(min(64, len(scores[0]))).indices
    for score in scores[1:]:
        moved = (score - scores[0])[best]
        moved = moved[moved.isfinite()]
        if len(moved):
            noise = max(noise, 2.0**0.5 * float(moved.std(correction=0)))
    return noise


def _as_they_are(logits: Tensor) -> Tensor:
    return logits


def _distance(
    logits: Tensor,
    token: int,
    sampling: SamplingConfig,
    noise: Tensor | None,
    last: Callable[[Tensor], Tensor],
) -> float:
    """How far the logit of one token must rise for it to be chosen: to pass the best one, and to
    be left in by top-k, top-p and min-p.

    Args:
        logits: float32 [vocabulary].
        token: its id.
        sampling: how tokens are chosen.
        noise: Gumbel noise of the position; None for greedy.
        last: what happens to the risen logits before one is chosen.
    """
    if noise is None:
        return float(logits.max() - logits[token])

    def chosen(rise: float) -> bool:
        raised = logits.clone()
        raised[token] += rise
        return int(choose(last(raised)[None], sampling, noise)) == token

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
    """Logits after processors and the repetition penalty, float32 [vocabulary]."""
    ids = torch.tensor([[*text]], device=logits.device)
    return processed(logits[None], ids, sampling, processors)[0]
