"""The Gumbel noise of a position, with which its token is drawn, and how drafts use it.

The noise depends on the seed and the position only.  It is known before the model runs, so drafts
can use it.

Source: Gumbel, "Statistical theory of extreme values", 1954; Maddison, Tarlow and Minka,
"A* sampling", 2014; the generator: Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .config import SamplingConfig
from .kv_cache import to_device

_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64."""
_MASK = (1 << 64) - 1
_ROUNDS = [(np.uint64(_MIX1), np.uint64(30)), (np.uint64(_MIX2), np.uint64(27))]
"""A factor, and a shift before it."""
_SHARPEST = 16.0
"""The largest power that estimated probabilities are raised to: they are not precise."""
_LAST, _SIGN = np.uint64(31), np.uint64(1)
_LARGEST = 1.0 - 2.0**-24  # uniform number


def gumbel_noise(seed: int, positions: Sequence[int], tokens: Tensor) -> Tensor:
    """Gumbel noise of tokens at positions, float32 [positions, n], on the tokens' device.

    Uniform numbers come from the counter-based generator SplitMix64, whose stream starts where
    the seed and the position are mixed to.  They are the same on every device, and their logarithms
    up to rounding.

    Args:
        seed: of 64 bits, signed or not: -1 is the same as 2**64 - 1.
        positions: in the text.
        tokens: ids, int64 [n], or [positions, n].
    """
    starts = [[_signed((_stream(seed, position) + _GOLDEN) & _MASK)] for position in positions]
    z = torch.add(to_device(starts, tokens.device), tokens, alpha=_signed(_GOLDEN))
    z.bitwise_xor_((z >> 30) & ((1 << 34) - 1)).mul_(_signed(_MIX1))
    z.bitwise_xor_((z >> 27) & ((1 << 37) - 1)).mul_(_signed(_MIX2))
    z.bitwise_xor_((z >> 31) & ((1 << 33) - 1))
    # Small numbers keep their relative precision in float32, and rare tokens depend on those.
    negative = ((z >> 1) & ((1 << 63) - 1)).float().add_(0.5).mul_(-(2.0**-63))
    return negative.clamp_(min=-_LARGEST).log1p_().neg_().log_().neg_()


def drawn_probabilities(
    sampling: SamplingConfig, tokens: Sequence[int], estimates: Sequence[float], position: int
) -> list[float]:
    """Return the probability of each token to be drawn at a position, whose noise is known.

    Of tokens with probabilities p at temperature T, the one with the largest p^(1/T) e^noise is
    drawn.  Drafts have estimates of p only, so each token gets its part of the sum of all these.

    Args:
        sampling: not greedy.
        tokens: the most probable ones, best first.
        estimates: of the model's probabilities, descending; other tokens have what is left.
        position: in the text.
    """
    power = min(1.0 / max(sampling.temperature, 1e-9), _SHARPEST)
    weights = [estimate**power for estimate in estimates]
    rest = max(1.0 - sum(estimates), 0.0) ** power
    kept = _kept(sampling, weights, rest)
    if kept < len(weights):
        weights[kept:], rest = [0.0] * (len(weights) - kept), 0.0
    factors = _factors(sampling.seed, position, tokens)
    weights = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
    unit = 1.0 / (sum(weights) + rest or 1.0)
    return [weight * unit for weight in weights]


def _kept(sampling: SamplingConfig, weights: Sequence[float], rest: float) -> int:
    """Return how many of the first tokens top-k, top-p and min-p keep, by their weights."""
    count = len(weights)
    if 0 < sampling.top_k < count:
        count = sampling.top_k
    if sampling.min_p > 0.0:
        count = min(count, sum(weight >= sampling.min_p * weights[0] for weight in weights))
    if sampling.top_p < 1.0:
        left = sampling.top_p * (sum(weights) + rest)
        for index, weight in enumerate(weights[:count]):
            if left <= 0.0:
                return index
            left -= weight
    return count


def _factors(seed: int, position: int, tokens: Sequence[int]) -> list[float]:
    """e^noise of some tokens, the noise that `gumbel_noise` has for all."""
    start = _stream(seed, position) + _GOLDEN
    z = np.array([(start + token * _GOLDEN) & _MASK for token in tokens], dtype=np.uint64)
    for factor, shift in _ROUNDS:
        z = (z ^ (z >> shift)) * factor
    uniform = (((z ^ (z >> _LAST)) >> _SIGN) + 0.5) * 2.0**-63
    factors: list[float] = (-1.0 / np.log1p(-np.minimum(uniform, _LARGEST))).tolist()
    return factors


def _stream(seed: int, position: int) -> int:
    """Return where the numbers of a position start."""
    return _mixed(_mixed(seed) + position)


def _mixed(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
