"""Tokens drawn from lists of the best ones, by a Triton kernel with one program for each row.

By torch's operations that takes some thirty kernels, all of them too small for a GPU: more than all
else that is read out of a plain step's logits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..lean import fused
from ..lean.trial import numbers, passed
from ..memory import attempt
from .quick import ONE, may_read

MOST = 1024
"""Tokens of a list that one program holds."""
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


Draw = Callable[[Tensor, Tensor, Tensor | None, Cuts, Tensor], tuple[Tensor, Tensor]]
"""(values, tokens, totals, cuts, uniforms) -> tokens and whether they are certain, as `draw`."""


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
        totals = torch.full((TRIED, 1), (4 + count) * ONE, device=device)
        all_of_it = Cuts(0.7, 0, 1.0, 0, 2 * count)
        some = torch.linspace(0, 1, TRIED + 1, dtype=torch.float64, device=device)[:-1]
        edges = _edges(values[0], tokens[0], all_of_it.temperature)
        asked = [
            (None, all_of_it, edges),
            (None, Cuts(0.7, 1 + count // 3, 0.8, ONE // 50, 2 * count), some),
            (totals, Cuts(0.7, 0, 0.1, 0, 2 * count), some),
        ]
        return all(
            torch.equal(mine, theirs)
            for each in asked
            for mine, theirs in zip(
                draw(values, tokens, *each), own(values, tokens, *each), strict=True
            )
        )

    return passed(device, trial)


def _edges(values: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Uniform numbers between one token and the next, where the last bit of any weight shows.

    Args:
        values, tokens: of one row, [count].

    Returns:
        float64 [TRIED].
    """
    weights = ((values - values[:1].double()) * (1.0 / temperature)).exp().mul(ONE).floor()
    through = weights[tokens.argsort()].cumsum(dim=0)
    places = torch.linspace(0, len(values) - 1, TRIED, device=values.device).long()
    return (through / through[-1])[places].clamp(max=1.0 - 2.0**-53)


def draw(
    values: Tensor, tokens: Tensor, totals: Tensor | None, cuts: Cuts, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """The token of each row at its uniform number, as `choosing` has them; `may_draw` must be true.

    Args:
        values: the greatest logits of each row, the greatest first, [rows, count].
        tokens: theirs, int64 [rows, count].
        totals: what all tokens of each row weigh, int64 [rows, 1]; may be None unless
            `cuts.needs_total`.
        cuts: for all rows.
        uniforms: float64 [rows], each in [0, 1).

    Returns:
        Tokens, int64, and whether no token that is not listed can change them, bool, [rows] each.
        Of rows that are not finite that is never so, and the token is any.
    """
    from . import draw_kernel

    rows, count = values.shape
    drawn = torch.empty_like(uniforms, dtype=torch.int64)
    certain = torch.empty_like(uniforms, dtype=torch.bool)
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
            certain,
            count,
            cuts.vocabulary,
            fused.power(cuts.vocabulary) // 2,
            cuts.top_k,
            _bits(1.0 / cuts.temperature),
            _bits(cuts.top_p),
            cuts.least,
            ONE=float(ONE),
            COUNT=block,
            num_warps=max(1, block // 128),
            enable_fp_fusion=False,
        )
    return drawn, certain


def _bits(number: float) -> int:
    """The bits of a float64."""
    return int(np.float64(number).view(np.int64))
