"""Tokens drawn from lists of the best ones, or from all, by Triton kernels with one program for
each row.

By torch's operations that takes some thirty kernels, all of them too small for a GPU: more than all
else that is read out of a plain step's logits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..lean import fused
from ..lean.trial import numbers, passed
from ..memory import attempt
from ..successors import NOTHING
from .penalty import Scores, part
from .quick import ONE, bits_of, kind_of, may_read, operands, strides, tried

MOST = 1024
"""Tokens of a list that one program holds."""
MOST_SUMS = 8192
"""Sums of a row that one program holds."""
TRIED = 16
"""Rows of a trial."""


class Cuts(NamedTuple):
    """What the tokens of a list weigh, and which of them can be drawn.

    Attributes:
        temperature: as it divides, above 0.
        top_k: at most as many as are listed; 0 where it removes none.
        top_p: 1.0 where it removes none.
        least: what each token that min-p keeps weighs at least; 0 where it removes none.
        vocabulary: how many tokens there are; a list may hold all of them.
    """

    temperature: float
    top_k: int
    top_p: float
    least: int
    vocabulary: int

    def needs_total(self, count: int) -> bool:
        """Whether top-p is a share of more than a list of `count` tokens says."""
        return self.top_p < 1.0 and not self.top_k and count < self.vocabulary


Draw = Callable[[Tensor, Tensor, Tensor | None, Cuts, Tensor], Tensor]
"""(values, tokens, totals, cuts, uniforms) -> tokens, or `NOTHING`, as `draw`."""
Pick = Callable[[Scores, Tensor, Tensor, float, Tensor], Tensor]
"""(scores, best, sums, temperature, uniforms) -> tokens, as `pick`."""


def may_draw(values: Tensor, own: Draw) -> bool:
    """Whether `draw` takes lists like these, since a trial has shown that it says the same.

    Args:
        values: [rows, count].
        own: what it would stand for.
    """
    count = values.shape[-1]
    return (
        count <= MOST
        and may_read(values)
        and bool(attempt(_draws, values.device, values.dtype, count, own))
    )


@lru_cache(maxsize=16)
def _draws(device: torch.device, dtype: torch.dtype, count: int, own: Draw) -> bool:
    """Whether `draw` says what `own` does, to the last bit."""

    def trial() -> bool:
        row = numbers(torch.empty(0, dtype=dtype, device=device), 2 * count)
        values, tokens = (each.expand(TRIED, count).contiguous() for each in row.topk(count))
        totals = torch.full((TRIED, 1), 4 * ONE, device=device)
        all_of_it = Cuts(0.7, 0, 1.0, 0, 2 * count)
        some = torch.linspace(0, 1, TRIED + 1, dtype=torch.float64, device=device)[:-1]
        # Behind a token that is impossible there is none: nothing is certain without it.
        closed = values.masked_fill(torch.arange(count, device=device) == count - 1, -torch.inf)
        edges = _edges(closed.gather(1, tokens.argsort(dim=-1)), all_of_it.temperature)[1]
        asked = [
            (closed, tokens, None, all_of_it, edges),
            (values, tokens, None, Cuts(0.7, 1 + count // 3, 0.8, ONE // 50, 2 * count), some),
            (values, tokens, totals, Cuts(0.7, 0, 0.5, 0, 2 * count), some),
            (values, tokens, None, all_of_it, some),
        ]
        return all(torch.equal(draw(*each), own(*each)) for each in asked)

    return passed(device, trial)


def _edges(values: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Uniform numbers between one token and the next, where the last bit of any weight shows.

    Args:
        values: [TRIED, tokens], in order of the tokens' ids.
        temperature: as it divides.

    Returns:
        What the tokens weigh, int64 [TRIED, tokens], and the numbers, float64 [TRIED].
    """
    scaled = (values - values.amax(dim=-1, keepdim=True).double()) * (1.0 / temperature)
    weights = scaled.exp_().mul_(ONE).floor_().long()
    through = weights.cumsum(dim=-1)
    places = torch.linspace(0, values.shape[-1] - 1, TRIED, device=values.device).long()
    # One more shows from below, and one less from above.
    sides = torch.arange(TRIED, dtype=torch.float64, device=values.device) % 2 / 2 - 0.25
    edges = (through.gather(1, places[:, None])[:, 0] + sides) / through[:, -1].double()
    return weights, edges.clamp_(0.0, 1.0 - 2.0**-53)


def draw(
    values: Tensor, tokens: Tensor, totals: Tensor | None, cuts: Cuts, uniforms: Tensor
) -> Tensor:
    """The token of each row at its uniform number, as `choosing` has them; `may_draw` must be true.

    Args:
        values: the greatest logits of each row, the greatest first, [rows, count].
        tokens: theirs, int64 [rows, count].
        totals: what all tokens of each row weigh, int64 [rows, 1]; may be None unless
            `cuts.needs_total`.
        cuts: for all rows.
        uniforms: float64 [rows], each in [0, 1).

    Returns:
        Tokens, int32 [rows]; `NOTHING` where some token that is not listed could change them, and
        of rows that are not finite.
    """
    from . import draw_kernel

    rows, count = values.shape
    drawn = torch.empty_like(uniforms, dtype=torch.int32)
    block = fused.power(count)
    # Triton launches on the current device.
    with torch.cuda.device(values.get_device()):
        draw_kernel.draw[rows,](
            values.contiguous(),
            tokens.contiguous(),
            # Totals that are not looked at.
            tokens if totals is None else totals.contiguous(),
            uniforms.contiguous(),
            drawn,
            count,
            cuts.vocabulary,
            fused.power(cuts.vocabulary) // 2,
            cuts.top_k,
            bits_of(1.0 / cuts.temperature),
            bits_of(cuts.top_p),
            cuts.least,
            ONE=float(ONE),
            NOTHING=NOTHING,
            COUNT=block,
            num_warps=max(1, block // 128),
            enable_fp_fusion=False,
        )
    return drawn


def may_pick(scores: Scores, block: int, own: Pick) -> bool:
    """Whether `pick` takes rows like these, since a trial has shown that it says the same.

    Args:
        scores: [rows, vocabulary].
        block: tokens that one sum is of, a power of two.
        own: what it would stand for.
    """
    logits, penalized = kind_of(scores)
    vocabulary = logits.shape[-1]
    asked = logits.device, logits.dtype, vocabulary, block, own, penalized
    return vocabulary <= block * MOST_SUMS and may_read(logits) and bool(attempt(_picks, *asked))


@lru_cache(maxsize=16)
def _picks(
    device: torch.device,
    dtype: torch.dtype,
    vocabulary: int,
    block: int,
    own: Pick,
    penalized: bool,
) -> bool:
    """Whether `pick` says what `own` does, to the last bit."""

    def trial() -> bool:
        scores = tried(dtype, device, vocabulary, penalized, TRIED)
        values = part(scores, slice(vocabulary))
        weights, edges = _edges(values, 0.7)
        whole = torch.nn.functional.pad(weights, (0, -vocabulary % block))
        sums = whole.reshape(TRIED, -1, block).sum(dim=-1)
        asked = scores, values.argmax(dim=-1), sums, 0.7, edges
        return torch.equal(pick(*asked, block), own(*asked))

    return passed(device, trial)


def pick(
    scores: Scores,
    best: Tensor,
    sums: Tensor,
    temperature: float,
    uniforms: Tensor,
    block: int,
) -> Tensor:
    """The token of each row at its uniform number where none is removed; `may_pick` must be true.

    Args:
        scores: [rows, vocabulary].
        best: the token with the greatest score of each row, whole numbers [rows].
        sums: of the weights of each block of tokens, int64 [rows, blocks].
        temperature: as it divides, above 0.
        uniforms: float64 [rows], each in [0, 1).
        block: as it was for `weigh`.

    Returns:
        Tokens, int32 [rows].  Of rows that are not finite it is any.
    """
    from . import kernels

    rows, vocabulary = scores.shape
    blocks = sums.shape[-1]
    picked = torch.empty_like(uniforms, dtype=torch.int32)
    held = fused.power(blocks)
    with torch.cuda.device(sums.get_device()):
        kernels.pick[rows,](
            *operands(scores),
            best,
            bits_of(1.0 / temperature),
            sums.contiguous(),
            uniforms.contiguous(),
            picked,
            *strides(scores),
            best.stride(0),
            vocabulary,
            blocks,
            PENALIZED=kind_of(scores)[1],
            ONE=float(ONE),
            BLOCK=block,
            BLOCKS=held,
            num_warps=max(1, min(held // 128, 8)),
        )
    return picked
