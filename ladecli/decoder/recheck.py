"""Scores of a committed text by several forwards that are all right.

Where two strategies chose different tokens, this tells rounding from a fault.  It decodes
nothing: it feeds a text that is there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import layout
from .config import PREFILL_CHUNK, SamplingConfig
from .engine import Decoder
from .memory import attempt
from .movement import Movement, movement
from .probe import TOLERANCE
from .readout.penalty import penalize
from .runner import Runner
from .sampling import distribution
from .tree import TokenTree


@dataclass(frozen=True, slots=True)
class Fed:
    """A step as a strategy made it: tokens fed, and tokens that it yielded."""

    width: int
    tokens: int


class Recheck:
    """Feeds texts to a model again; the decoder's cache is used for it, and is empty then.

    Args:
        decoder: the model at work.
        model: the model itself.
        attention: name of the attention backend.
        quantised: whether weights are packed, so that their kernels add noise of their own.
    """

    def __init__(
        self, decoder: Decoder, model: Any, attention: str, *, quantised: bool = False
    ) -> None:
        self._decoder = decoder
        self._cache = decoder.cache
        self._runner = Runner(model, decoder.cache, attention)
        self._dtype: torch.dtype = model.dtype
        coarse = max(TOLERANCE.values())
        self._tolerance = coarse if quantised else TOLERANCE.get(self._dtype, coarse)

    def movement(
        self,
        text: Sequence[int],
        prompt_length: int,
        chosen: tuple[int, int],
        steps: Sequence[Fed],
        sampling: SamplingConfig,
    ) -> Movement | None:
        """What it takes to choose another token behind a text.

        Args:
            text: prompt and answer, up to the token in question.
            prompt_length: how much of it is the prompt.
            chosen: the token of plain decoding, and the other one.
            steps: those that the other strategy made of the answer, up to the one in question.
            sampling: how tokens were chosen.

        Returns:
            None where memory does not suffice to read the text again.
        """
        raw = attempt(self._forwards, text, prompt_length, steps)
        if raw is None:
            return None
        # A model may rule tokens out with infinite logits.
        finite = raw[0][raw[0].isfinite()]
        return movement(
            [_penalized(row, text, sampling) for row in raw],
            chosen,
            sampling,
            len(text),
            # Half a unit in the last place of either logit.
            rounding=torch.finfo(self._dtype).eps * float(finite.abs().max()),
            most=self._tolerance * float(finite.std()),
        )

    def probabilities(
        self, text: Sequence[int], prompt_length: int, sampling: SamplingConfig
    ) -> NDArray[np.float64] | None:
        """The distribution that plain decoding draws the token behind a text from.

        Args:
            text: prompt, and the answer so far.
            prompt_length: how much of it is the prompt.
            sampling: with a temperature above 0.

        Returns:
            [vocabulary], summing to 1; None where memory does not suffice to read the text
            again.
        """
        logits = attempt(self._plain, text, prompt_length)
        if logits is None:
            return None
        scores = _penalized(logits, text, sampling)
        probabilities = distribution(scores, sampling).double().cpu().numpy()
        return np.asarray(probabilities / probabilities.sum(), dtype=np.float64)

    def _plain(self, text: Sequence[int], prompt_length: int) -> Tensor:
        """Logits behind the text as plain decoding has them, [vocabulary]."""
        try:
            return self._walk(text, _plainly(text, prompt_length)).float()
        finally:
            self._decoder.forget()

    def _forwards(
        self, text: Sequence[int], prompt_length: int, steps: Sequence[Fed]
    ) -> list[Tensor]:
        """Logits behind the text, [vocabulary] each, the plain ones first."""
        try:
            rows = [self._walk(text, _plainly(text, prompt_length))]
            # The same keys, and a last step as wide as the one in question.
            self._cache.truncate(len(text) - 1)
            rows.append(self._step(text, _Read(len(text), 0, steps[-1].width)))
            rows.append(self._walk(text, _as_fed(text, prompt_length, steps)))
            # A text that has no room to be read at once leaves the other forwards.
            whole = attempt(self._walk, text, [_Read(len(text), 0, 1)], chunk=len(text))
            return [row.float() for row in (*rows, *([] if whole is None else [whole]))]
        finally:
            self._decoder.forget()

    def _walk(
        self, text: Sequence[int], reads: Sequence[_Read], chunk: int = PREFILL_CHUNK
    ) -> Tensor:
        """Feed a text to an empty cache, step by step; returns the logits behind it."""
        self._decoder.forget()
        boundary = self._decoder.facts.rope_boundary
        is_long = boundary is not None and len(text) > boundary
        if is_long:
            # As the loop does it: what lies before the boundary is read again behind it.
            reads = [read for read in reads if read.committed > (boundary or 0)]
        first = reads[0].committed
        while first - self._cache.length > chunk:
            start = self._cache.length
            tokens = text[start : start + chunk]
            self._runner.forward(layout.build_chunk(tokens, start, first - 1 if is_long else None))
            self._cache.keep(range(chunk))
        for read in reads:
            logits = self._step(text, read)
        return logits

    def _step(self, text: Sequence[int], read: _Read) -> Tensor:
        """Logits behind the tokens that a step commits and accepts, and these in the cache."""
        start, tree = self._cache.length, TokenTree()
        tree.add(text[read.committed : read.committed + read.accepted], "text", read.accepted)
        draft = layout.Draft(tree, width=read.width)
        step = layout.build(text[start : read.committed], start, draft)
        logits = self._runner.forward(step)
        self._cache.keep(range(step.pending + read.accepted))
        return logits[read.accepted]


@dataclass(frozen=True, slots=True)
class _Read:
    """One step through a text: tokens committed before it, drafts accepted in it, its width."""

    committed: int
    accepted: int
    width: int


def _plainly(text: Sequence[int], prompt_length: int) -> list[_Read]:
    return [_Read(end, 0, 1) for end in range(prompt_length, len(text) + 1)]


def _as_fed(text: Sequence[int], prompt_length: int, steps: Sequence[Fed]) -> list[_Read]:
    """The steps that a strategy made, with padding for the drafts that failed."""
    reads, end = [], prompt_length
    for step in steps:
        # Of the last step, as much as leads to the token in question.
        reads.append(_Read(end, min(step.tokens - 1, len(text) - end), step.width))
        end += step.tokens
    return reads


def _penalized(logits: Tensor, text: Sequence[int], sampling: SamplingConfig) -> Tensor:
    """Scores as the sampler has them, [vocabulary] in float32."""
    if sampling.repetition_penalty == 1.0:
        return logits
    seen = torch.tensor(list(set(text)), device=logits.device)
    return penalize(logits, seen, sampling.repetition_penalty)
