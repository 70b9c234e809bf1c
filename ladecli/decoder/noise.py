"""The Gumbel noise with which tokens are drawn.

It depends on the seed and the position only.  It is known before the model runs, so drafts use it,
too, to guess which token will be drawn.

Source: Gumbel, "Statistical theory of extreme values", 1954; Maddison, Tarlow and Minka,
"A* sampling", 2014; the generator: Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from struct import Struct

import torch
from torch import Tensor

from .config import SamplingConfig
from .kv_cache import to_device

_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64."""
_MASK = (1 << 64) - 1
_SHARPEST = 16.0
"""The largest power that estimated probabilities are raised to: they are not precise."""
_LARGEST = 1.0 - 2.0**-24
"""The largest uniform number, so that its logarithm is not 0."""


def gumbel_noise(seed: int, positions: Sequence[int], tokens: Tensor) -> Tensor:
    """Return the Gumbel noise of tokens at positions, float32 [positions, n], on their device.

    Uniform numbers come from the counter-based generator SplitMix64, whose start is a hash of seed
    and position.  They are the same on every device; their logarithms are, up to rounding.

    Args:
        seed: 64 bits, signed or not: -1 is the same as 2**64 - 1.
        positions: positions in the text.
        tokens: token ids, int64 [n], or [positions, n].
    """
    starts = [[_signed((_stream(seed, position) + _GOLDEN) & _MASK)] for position in positions]
    z = torch.add(to_device(starts, tokens.device), tokens, alpha=_signed(_GOLDEN))
    z.bitwise_xor_((z >> 30) & ((1 << 34) - 1)).mul_(_signed(_MIX1))
    z.bitwise_xor_((z >> 27) & ((1 << 37) - 1)).mul_(_signed(_MIX2))
    z.bitwise_xor_((z >> 31) & ((1 << 33) - 1))
    # The negative of a uniform number.  In float32 numbers near 0, on which rare tokens depend,
    # keep their precision, and those near 1 do not.
    negative = ((z >> 1) & ((1 << 63) - 1)).float().add_(0.5).mul_(-(2.0**-63))
    return negative.clamp_(min=-_LARGEST).log1p_().neg_().log_().neg_()


def drawn_probabilities(
    sampling: SamplingConfig, tokens: Sequence[int], estimates: Sequence[float], position: int
) -> list[float]:
    """Return an estimate of each token's probability to be drawn at a position.

    Of tokens with probabilities p at temperature T, the one with the largest p^(1/T) e^noise is
    drawn.  The noise is known; p is only estimated, so the result is a token's share in the sum of
    these numbers.

    Args:
        sampling: the settings, which are not greedy.
        tokens: the most probable tokens, best first.
        estimates: the estimated probabilities of these tokens, descending; other tokens have the
            rest.
        position: the position in the text.
    """
    power = min(1.0 / max(sampling.temperature, 1e-9), _SHARPEST)
    weights = [estimate**power for estimate in estimates]
    rest = max(1.0 - sum(estimates), 0.0) ** power
    kept = _kept(sampling, weights, rest)
    if kept < len(weights):
        weights[kept:], rest = [0.0] * (len(weights) - kept), 0.0
    numbers = _uniform(sampling.seed, position, tokens)
    weights = [weight / -math.log1p(-u) for weight, u in zip(weights, numbers, strict=True)]
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


def _uniform(seed: int, position: int, tokens: Sequence[int]) -> list[float]:
    """Return the uniform number of each token from which `gumbel_noise` makes its noise.

    The states of SplitMix64 are in one integer, each in the lower half of 128 bits, so that
    products fit.  This takes 0.6 of the time of one state after the other; NumPy saved less.
    """
    places, ones = _places(len(tokens))
    low, start = ones * _MASK, (_stream(seed, position) + _GOLDEN) & _MASK
    z = (int.from_bytes(places.pack(*tokens), "little") * _GOLDEN + ones * start) & low
    z = ((z ^ (z >> 30 & low)) * _MIX1) & low
    z = ((z ^ (z >> 27 & low)) * _MIX2) & low
    z ^= z >> 31 & low
    states = places.unpack(z.to_bytes(places.size, "little"))
    return [min(((state >> 1) + 0.5) * 2.0**-63, _LARGEST) for state in states]


@cache
def _places(count: int) -> tuple[Struct, int]:
    """Return the layout of some numbers of 64 bits, 128 bits apart, and an integer of ones."""
    places = Struct("<" + "Q8x" * count)
    return places, int.from_bytes(places.pack(*[1] * count), "little")


def _stream(seed: int, position: int) -> int:
    """Return the start of the generator for a position."""
    return _mixed(_mixed(seed) + position)


def _mixed(z: int) -> int:
    """Return the number that SplitMix64 makes of a state."""
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
