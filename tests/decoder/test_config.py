"""Settings out of range are refused by name; widths, window cells and the cost of a step."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.config import LookaheadConfig, SamplingConfig, captured_width
from ladecli.decoder.errors import ConfigError
from ladecli.decoder.step_cost import StepCost

SAMPLING = {
    "temperature": (-0.1, 1e-40, 1e39, math.nan, math.inf),
    "top_k": (-1,),
    "top_p": (0.0, 1.1, -1.0, math.nan),
    "min_p": (-0.1, 1.1, math.nan),
    "repetition_penalty": (0.0, -1.0, 1e-40, 1e39, math.nan),
    "seed": (-(2**63) - 1, 2**64),
}
LOOKAHEAD: dict[str, tuple[Any, ...]] = {
    "window": (0, 3000),
    "ngram": (1,),
    "guesses": (-1,),
    "budget": (0, 10),
    "source": ((), ("context", "context"), ("x",)),
    "widths": ((1, 6), (8, 64), (1, 64, 64)),
}
STEP_COST: list[dict[str, Any]] = [
    {"widths": (2,)},
    {"widths": (1, 3, 3), "costs": ((1.0, 1.0, 1.0),)},
    {"contexts": (-1,)},
    {"contexts": (9, 3), "costs": ((1.0,), (1.0,))},
    {"contexts": (0, 9)},
    {"costs": ((2.0,),)},
    {"costs": ((1.0, 3.0, 2.0),), "widths": (1, 2, 3)},
    {"costs": ((1.0,), (0.5,)), "contexts": (0, 9)},
    {"costs": ((1.0, math.nan),), "widths": (1, 2)},
    {"costs": ((1.0,),), "widths": (1, 2)},
]


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in SAMPLING.items() for v in vs])
def test_sampling_settings_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name.replace("_", "-")):
        SamplingConfig(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in LOOKAHEAD.items() for v in vs])
def test_lookahead_settings_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}|too wide"):
        LookaheadConfig(**{"sources" if name == "source" else name: value})


@pytest.mark.parametrize("values", STEP_COST, ids=str)
def test_invalid_tables_of_step_costs(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="step_cost"):
        StepCost(**values)


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


TABLE = StepCost((1, 2, 4), (0, 1000), ((1.0, 1.5, 2.5), (1.0, 2.0, 4.0)))


@st.composite
def tables(draw: st.DrawFn) -> StepCost:
    """Any table: ascending widths and contexts, and costs that do not fall."""
    widths = sorted(draw(st.sets(st.integers(2, 60), max_size=5)))
    contexts = sorted(draw(st.sets(st.integers(0, 2000), min_size=1, max_size=3)))
    rise = st.lists(st.floats(0.0, 4.0), min_size=len(widths), max_size=len(widths))
    rows = [tuple(itertools.accumulate(draw(rise), initial=1.0)) for _ in contexts]
    return StepCost((1, *widths), tuple(contexts), tuple(rows))


def test_costs_lie_on_lines_through_the_points() -> None:
    inside = {(3, 0): 2.0, (3, 1000): 3.0, (2, 500): 1.75, (3, 500): 2.5}
    # Beyond the last two points, in one direction and in both.
    beyond = {(6, 0): 3.5, (4, 2000): 5.5, (6, 2000): 8.5}
    for (width, context), cost in (inside | beyond).items():
        assert TABLE.at(width, context) == pytest.approx(cost)


@given(
    tables(),
    st.integers(0, 100_000),
    st.integers(1, 12),
    st.integers(1, 25),
    st.sets(st.integers(1, 50), max_size=4),
)
def test_curves_hold_the_cost_of_nodes_and_the_slope_after_them(
    table: StepCost, context: int, base: int, nodes: int, buckets: set[int]
) -> None:
    """Check the curve of a step of `base` tokens and up to `nodes` more, padded to buckets."""
    widths = tuple(sorted(buckets))
    curve = table.curve(context, base, nodes, widths)
    assert len(curve.cost) == len(curve.slope) == nodes + 1
    assert list(curve.cost) == sorted(curve.cost)
    assert curve.cost[0] >= 1.0 == table.at(1, context)
    padded = next((width for width in widths if width >= base), base)
    assert table.curve(0, base, nodes, widths).cost[0] == table.at(padded, 0)
    # No number of further nodes costs less than the slope.
    for n in range(nodes):
        means = [(curve.cost[m] - curve.cost[n]) / (m - n) for m in range(n + 1, nodes + 1)]
        assert curve.slope[n] == pytest.approx(min(means))


def test_ranks_wait_for_the_widest_part() -> None:
    """Three tokens and the nodes over two ranks, one of which must feed two tokens."""
    costs = TABLE.curve(0, 3, 4, (), 2, 2).cost
    assert costs == tuple(TABLE.at(width, 0) for width in (2, 2, 3, 3, 4))
