"""The roofline: times of steps and the settings that follow, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ladecli.decoder.step_cost import StepCost
from ladecli.models.device import Rates
from ladecli.models.memory import ModelSpec
from ladecli.profiles.derive import CAPTURED, LAUNCH, READING, derive, fit_settings, step_seconds
from tests.support.profiles import shape

GPU = Rates(1e12 / READING, 100e12)
"""Reads 1 GB in a millisecond; products with few rows reach 75 of the 100 TFLOP/s."""

# 10 GB in one layer, whose launch time is negligible; 40 kB of cache per token.
DENSE = replace(shape(5e9), layers=1, heads=100, kv_heads=100, head_size=100)
LAYERS = replace(DENSE, layers=32)
EXPERTS = replace(DENSE, parameters=8e9, active=2e9, weight_bytes=16e9)
PACKED = replace(DENSE, parameters=8e9, active=8e9, weights="nf4", weight_bytes=4.5e9)
EIGHT = replace(PACKED, weights="int8", weight_bytes=8e9)


@pytest.mark.parametrize(
    ("model", "width", "context", "milliseconds"),
    [
        # Reading 10 GB takes 10 ms, and a token multiplies for 10 GFLOP / 75 TFLOP/s = 0.133 ms.
        pytest.param(DENSE, 1, 0, 10.0, id="a plain step reads"),
        # 1000 tokens: 133.3 ms, and drafting 999 of them.
        pytest.param(DENSE, 1000, 0, 133.34 + 999 * 0.0065, id="a wide step multiplies"),
        # 75 tokens take the 10 ms that reading takes; the norm of (10, 10) is 10 * 2 ** 0.25.
        pytest.param(DENSE, 75, 0, 11.892 + 74 * 0.0065, id="at the knee"),
        # 50,000 tokens of 2 * 100 * 100 values in 2 bytes each: 2 GB more.
        pytest.param(DENSE, 1, 50_000, 12.0, id="the cache is read"),
        # A quarter of the weights, then 1 - 0.75 ** width of them: 43.75 % of 16 GB.
        pytest.param(EXPERTS, 1, 0, 4.0, id="one token meets its experts"),
        pytest.param(EXPERTS, 2, 0, 7.0 + 0.0065, id="two tokens meet others"),
        # Unpacked weights, 8e9 * 2 bytes, are written and read again.
        pytest.param(PACKED, 1, 0, 4.5, id="packed weights are multiplied by one token"),
        pytest.param(PACKED, 2, 0, 36.5 + 0.0065, id="and are unpacked for two"),
        pytest.param(EIGHT, 2, 0, 8.0 + 0.0065, id="8 bits are not"),
    ],
)
def test_step_times(model: ModelSpec, width: int, context: int, milliseconds: float) -> None:
    seconds = step_seconds(GPU, model, width, context, captured=False)
    assert 1e3 * seconds == pytest.approx(milliseconds, rel=3e-4)


def test_launching_kernels_takes_time_outside_of_graphs() -> None:
    boundless = Rates(1e18, 1e21)
    assert step_seconds(boundless, LAYERS, 1, 0, captured=False) == pytest.approx(32 * LAUNCH)
    # What is not reading, 30 us in each of 32 layers, comes on top of it: 0.96 ms.
    seconds = step_seconds(GPU, LAYERS, 1, 0, captured=True)
    assert seconds == pytest.approx(10e-3 + 32 * CAPTURED) == pytest.approx(10.96e-3)
    packed = replace(EIGHT, layers=32)  # whose products look for outliers on the host
    assert len({step_seconds(GPU, packed, 8, 0, captured=x) for x in (False, True)}) == 1


H200 = Rates(4.8e12, 989e12)


@pytest.mark.parametrize(
    ("weights", "layers", "heads", "size", "milliseconds"),
    [
        pytest.param(7.5e9, 32, 32, 128, (4.63, 4.733, 4.813, 5.164), id="8b"),
        pytest.param(0.135e9, 30, 9, 64, (0.906, 0.942, 0.988, 1.096), id="135m"),
    ],
)
def test_captured_steps_take_what_they_took_on_an_h200(
    weights: float, layers: int, heads: int, size: int, milliseconds: tuple[float, ...]
) -> None:
    """After 1024 tokens, in bfloat16, on the device alone (benchmarks/results/gpu-h200.json)."""
    model = replace(shape(weights), layers=layers, heads=heads, kv_heads=2, head_size=size)
    host, widths = 6.5e-6, (1, 8, 16, 64)
    seconds = [step_seconds(H200, model, n, 1024, captured=True) - host * (n - 1) for n in widths]
    assert 1e3 * seconds[0] == pytest.approx(milliseconds[0], rel=0.1)
    expected = [number / milliseconds[0] for number in milliseconds]
    assert [number / seconds[0] for number in seconds] == pytest.approx(expected, rel=0.04)


def test_small_models_on_fast_gpus_have_narrow_trees() -> None:
    """The host's time per token, and the reading of logits, do not shrink with the model."""
    fast = Rates(3.35e12, 989e12)
    small, large = (
        replace(shape(size), layers=layers, vocabulary=128_000)
        for size, layers in ((1.2e9, 16), (8e9, 32))
    )
    budgets = [derive(fast, model, captured=True).budget for model in (small, large)]
    assert budgets[0] <= 32 < 64 <= budgets[1]
    assert derive(fast, replace(small, vocabulary=1000), captured=True).budget > budgets[0]


# The budget from a curve costs at most 1.25 steps of two tokens.


@pytest.mark.parametrize(
    ("costs", "budget"),
    [
        pytest.param({1: 1.0, 128: 1.0}, 128, id="width is free"),
        pytest.param({1: 1.0, 32: 1.0, 64: 1.25, 128: 2.0}, 64, id="up to the limit"),
        pytest.param({1: 1.0, 24: 1.2, 32: 1.3}, 24, id="a narrow one"),
        pytest.param({1: 1.0, 128: 128.0}, 2, id="every token costs a step"),
        # The budget is relative to the cost of the first draft: 5 * 1.25 = 6.25.
        pytest.param({1: 1.0, 2: 5.0, 64: 6.25, 128: 8.0}, 64, id="weights that are unpacked"),
    ],
)
def test_settings_derived_from_a_curve(costs: dict[int, float], budget: int) -> None:
    row = tuple(costs.values())
    # Steps cost more after a longer text; the shortest one decides.
    later = tuple(1.0 + 3.0 * (value - 1.0) for value in row)
    settings = fit_settings(StepCost(tuple(costs), (1024, 4096), (row, later)))
    assert (settings.budget, settings.sources) == (budget, ("context", "recycled"))
