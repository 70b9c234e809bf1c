"""What is read out of a step's logits, packed into one tensor so that one copy brings it home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import SamplingConfig
from ..successors import NONE, Successors
from .choosing import choose_ahead
from .penalty import Scores
from .quick import may_rank, rank
from .ranking import most_probable, ranked


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a step is asked about every output.

    Attributes:
        successors: so many of its most probable successors; 0 for the most probable token alone.
        logits: whether somebody will look at its logits.
        sampling: how a token is drawn behind every output; None where it is the most probable one,
            or the host draws it.  Its seed is in the uniform numbers, and not here.
        uniforms: for choosing, one number for each of the step's first tokens; the others are
            behind no path, and need none.
        penalty: a repetition penalty for all that is chosen or probable; 1 for none.
        text: where there is one, the text so far, as a list that grows with it.
    """

    successors: int = 0
    logits: bool = True
    sampling: SamplingConfig | None = None
    uniforms: Sequence[float] = ()
    penalty: float = 1.0
    text: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """Logits by output, wherever their rows are.

    Attributes:
        logits: [rows, vocabulary]; None where nobody was to look at them.
        rows: that of each output.
    """

    logits: Tensor | None
    rows: Sequence[int]

    def __getitem__(self, output: int) -> Tensor:
        if self.logits is None:
            raise RuntimeError("nobody asked for the logits of this step")
        return self.logits[self.rows[output]]

    def are_numbers(self) -> bool:
        """Whether the first output can be chosen from; taken to be so where nobody can look.

        This waits for the device.
        """
        return self.logits is None or bool(torch.isfinite(self[0].max()))


@dataclass(frozen=True, slots=True)
class Shown:
    """What a step says.

    Attributes:
        logits: of every output.
        best: the most probable token after each, the penalty included.
        ranked: the most probable successors; `NONE` unless asked for.
        chosen: the token drawn after each output, or `NOTHING` where only `Sampler` can tell;
            None unless asked for.
    """

    logits: Rows
    best: list[int]
    ranked: Successors = NONE
    chosen: list[int] | None = None


def pack(
    scores: Scores, successors: int, sampling: SamplingConfig | None, uniforms: Tensor | None
) -> Tensor:
    """Everything that is wanted of logits, as 32-bit words; nothing here waits for the device.

    Args:
        scores: [rows, vocabulary].
        successors, sampling: as in `Wanted`.
        uniforms: float64 [rows], where tokens are to be chosen.

    Returns:
        int32 [words], for `Readout`.
    """
    count = min(successors, scores.shape[-1])
    if count and may_rank(scores, count, ranked):
        found = rank(scores, count)
        best, words = found[0, :, 0], [found.flatten()]
    elif count:
        tokens, probabilities = ranked(scores, count)
        best, words = tokens[:, 0], [tokens.int().flatten()]
        words += [probabilities.float().flatten().view(torch.int32)]
    else:
        best = most_probable(scores)
        words = [best]
    if sampling is not None and uniforms is not None:
        words += [choose_ahead(scores, uniforms, sampling, best)]
    return words[0] if len(words) == 1 else torch.cat(words)


class Readout:
    """What `pack` packed.

    A GPU waits while it is read, so that what can be prepared before is prepared when this is
    made.

    Args:
        words: on the host, or where they will arrive there.
        logits: by output.
        count: rows that were packed.
        wanted: what was asked for.
    """

    def __init__(self, words: NDArray[np.int32], logits: Rows, count: int, wanted: Wanted) -> None:
        self._logits = logits
        self._drawn = self._successors = None
        if wanted.sampling is not None:
            words, self._drawn = words[:-count], words[-count:]
        self._best = words
        if wanted.successors:
            tokens, probabilities = words.reshape(2, count, -1)
            self._successors = Successors(tokens, probabilities.view(np.float32))
            self._outputs = np.array(logits.rows)

    def read(self) -> Shown:
        """What is there now, in copies: the next step writes over it."""
        logits, successors = self._logits, NONE
        if self._successors is None:
            best = _picked(self._best, logits.rows)
        else:
            tokens = self._successors.tokens.take(self._outputs, axis=0)
            probabilities = self._successors.probabilities.take(self._outputs, axis=0)
            successors, best = Successors(tokens, probabilities), tokens[:, 0].tolist()
        chosen = None if self._drawn is None else _picked(self._drawn, logits.rows)
        return Shown(logits, best, successors, chosen)


def _picked(numbers: NDArray[np.int32], rows: Sequence[int]) -> list[int]:
    """Those of some rows."""
    every: list[int] = numbers.tolist()
    return [every[row] for row in rows]
