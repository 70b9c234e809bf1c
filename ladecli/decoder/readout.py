"""What is read out of a step's logits, packed into one tensor so that one copy brings it home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .choosing import choose_ahead
from .config import SamplingConfig
from .ranking import ranked


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a step is asked about every output.

    Attributes:
        successors: so many of its most probable successors; 0 for the most probable token alone.
        logits: whether somebody will look at its logits.
        sampling: how a token is chosen where that does not depend on the path; None where it
            does, or is the most probable one.
        uniforms: for choosing, one number for each of the step's tokens; () otherwise.
    """

    successors: int = 0
    logits: bool = True
    sampling: SamplingConfig | None = None
    uniforms: Sequence[float] = ()


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


@dataclass(frozen=True, slots=True)
class Shown:
    """What a step says.

    Attributes:
        logits: of every output.
        best: the most probable token after each.
        ranked: probabilities of successors, the best first; () unless asked for.
        chosen: the token drawn after each output; None unless asked for.
        certain: whether it is the one that `Sampler` would draw.
    """

    logits: Rows
    best: list[int]
    ranked: Sequence[dict[int, float]] = ()
    chosen: list[int] | None = None
    certain: list[bool] | None = None


def pack(
    logits: Tensor, successors: int, sampling: SamplingConfig | None, uniforms: Tensor | None
) -> Tensor:
    """Everything that is wanted of logits, as 32-bit words; nothing here waits for the device.

    Args:
        logits: [rows, vocabulary].
        successors, sampling: as in `Wanted`.
        uniforms: float64 [rows], where tokens are to be chosen.

    Returns:
        int32 [words], for `unpack`.
    """
    words: list[Tensor] = []
    if successors:
        tokens, probabilities = ranked(logits, min(successors, logits.shape[-1]))
        words += [tokens.int().flatten(), probabilities.float().flatten().view(torch.int32)]
    else:
        words += [logits.argmax(dim=-1).int()]
    if sampling is not None and uniforms is not None:
        chosen, certain = choose_ahead(logits, uniforms, sampling)
        words += [chosen.int(), certain.int()]
    return words[0] if len(words) == 1 else torch.cat(words)


def unpack(words: NDArray[np.int32], logits: Rows, count: int, wanted: Wanted) -> Shown:
    """What `pack` packed.

    Args:
        words: on the host.
        logits: by output.
        count: rows that were packed.
        wanted: what was asked for.
    """
    outputs, at = logits.rows, 0
    every = outputs == [*range(count)]

    def take(each: int) -> NDArray[np.int32]:
        nonlocal at
        part = words[at : at + count * each].reshape(count, each)
        at += count * each
        return part if every else part[outputs]

    ranked: list[dict[int, float]] = []
    if wanted.successors:
        drawn = 2 * count if wanted.sampling is not None else 0
        # A small vocabulary has no more.
        successors = (len(words) - drawn) // (2 * count)
        tokens = take(successors).tolist()
        probabilities = take(successors).view(np.float32).tolist()
        # Within a step of a GPU the host waits for this, so it is done without a loop in Python.
        ranked = [*map(dict, map(zip, tokens, probabilities))]
        best = [row[0] for row in tokens]
    else:
        best = take(1)[:, 0].tolist()
    if wanted.sampling is None:
        return Shown(logits, best, ranked)
    chosen, certain = take(1)[:, 0].tolist(), take(1)[:, 0].astype(bool).tolist()
    return Shown(logits, best, ranked, chosen, certain)
