"""Settings out of range are refused by name."""

from __future__ import annotations

import itertools
import math

import pytest

from ladecli.decoder.config import LookaheadConfig, SamplingConfig, captured_width
from ladecli.decoder.errors import ConfigError

BAD = {
    "temperature": (-0.1, math.nan, math.inf),
    "top_k": (-1,),
    "top_p": (0.0, 1.1, -1.0, math.nan),
    "min_p": (-0.1, 1.1, math.nan),
    "repetition_penalty": (0.0, -1.0, 1e39, math.nan),
    "seed": (-1, 2**64),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_sampling_settings_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name.replace("_", "-")):
        SamplingConfig(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window must be at least 1, not 0"),
        ({"ngram": 1}, "ngram must be at least 2, not 1"),
        ({"guesses": -1}, "guesses must be at least 0, not -1"),
        ({"budget": 0}, "budget must be at least 1, not 0"),
        ({"budget": 10}, "budget 10 is smaller than the 28 tokens of a window with W=7, N=5"),
        ({"window": 3000}, "too wide"),
        ({"sources": ()}, "sources must name at least one of trajectory, context, recycled"),
        ({"sources": ("context", "context")}, "a source is named twice: context, context"),
        ({"sources": ("x",)}, "unknown source 'x'; known sources: trajectory, context, recycled"),
        ({"widths": (1, 6)}, "the widest step that widths allow has 6 tokens"),
        ({"widths": (8, 64)}, "widths must ascend from 1"),
        ({"widths": (1, 64, 64)}, "widths must ascend from 1"),
    ],
)
def test_lookahead_settings_out_of_range(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LookaheadConfig(**settings)


def test_window_cells_bound_every_phase_of_filling() -> None:
    for window, ngram in itertools.product((1, 2, 3, 7), (2, 3, 5, 8)):
        config = LookaheadConfig(window, ngram, 0)
        phases = [r * (window + ngram - 1 - r) for r in range(1, ngram)]
        assert config.window_cells == max(phases)
        assert LookaheadConfig(window, ngram, sources=("context",)).window_cells == 1


def test_the_budget_is_rounded_down_to_a_width() -> None:
    assert LookaheadConfig(2, 3, 2, 30, widths=(1, 6, 14)).step_limit == 14
    assert LookaheadConfig(7, 5, 7).step_limit == 28 + 28
    widths = {1: 1, 3: 4, 24: 24, 97: 128, 128: 128, 129: 256}
    assert {count: captured_width(count) for count in widths} == widths
