"""Step costs: which tables are refused, interpolation, and curves by number of nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.errors import ConfigError
from ladecli.decoder.step_cost import StepCost, fitting

TABLE = StepCost((1, 2, 4), (0, 1000), ((1.0, 1.5, 2.5), (1.0, 2.0, 4.0)))


@st.composite
def tables(draw: st.DrawFn) -> StepCost:
    """Any table: ascending widths and contexts, and costs that do not fall."""
    widths = sorted(draw(st.sets(st.integers(2, 60), max_size=5)))
    contexts = sorted(draw(st.sets(st.integers(0, 2000), min_size=1, max_size=3)))
    rise = st.lists(st.floats(0.0, 4.0), min_size=len(widths), max_size=len(widths))
    rows = []
    for _ in contexts:
        row = [1.0]
        for step in draw(rise):
            row.append(row[-1] + step)
        rows.append(tuple(row))
    return StepCost((1, *widths), tuple(contexts), tuple(rows))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"widths": (2,)}, r"widths must ascend from 1, not \(2,\)"),
        ({"widths": (1, 3, 3), "costs": ((1.0, 1.0, 1.0),)}, "widths must ascend"),
        ({"contexts": (-1,)}, "contexts must ascend from 0"),
        ({"contexts": (9, 3), "costs": ((1.0,), (1.0,))}, r"contexts must ascend.*\(9, 3\)"),
        ({"contexts": (0, 9)}, "1 rows of costs for 2 contexts"),
        ({"widths": (1, 2)}, "1 costs for 2 widths"),
        ({"costs": ((2.0,),)}, "from 1 at width 1"),
        ({"widths": (1, 2, 3), "costs": ((1.0, 3.0, 2.0),)}, "costs must not fall"),
        ({"contexts": (0, 9), "costs": ((1.0,), (0.5,))}, "costs must not fall"),
        ({"widths": (1, 2), "costs": ((1.0, float("nan")),)}, "costs must not fall"),
    ],
)
def test_a_table_of_another_form_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^step_cost: .*{message}"):
        StepCost(**values)


def test_lists_as_toml_has_them_are_accepted() -> None:
    values: dict[str, Any] = {"widths": [1, 2], "contexts": [0, 9], "costs": [[1, 2], [1, 3.5]]}
    from_lists = StepCost(**values)
    from_tuples = StepCost((1, 2), (0, 9), ((1.0, 2.0), (1.0, 3.5)))
    assert from_lists == from_tuples
    # Curves are remembered by table.
    assert from_lists.curve(9, 1, 3, ()) is from_tuples.curve(9, 1, 3, ())


@pytest.mark.parametrize(
    ("width", "context", "cost"),
    [
        (3, 0, 2.0),
        (3, 1000, 3.0),
        (2, 500, 1.75),
        (3, 500, 2.5),
        # Beyond the last two points, in one direction and in both.
        (6, 0, 3.5),
        (4, 2000, 5.5),
        (6, 2000, 8.5),
    ],
)
def test_costs_lie_on_lines_through_the_points(width: int, context: int, cost: float) -> None:
    assert TABLE.at(width, context) == pytest.approx(cost)


@given(tables(), st.integers(1, 200), st.integers(0, 100_000))
def test_no_step_costs_less_than_a_plain_one(table: StepCost, width: int, context: int) -> None:
    assert table.at(width, context) >= 1.0
    assert table.at(1, context) == 1.0


def test_buckets_make_steps_of_the_curve() -> None:
    costs = TABLE.curve(0, 1, 7, (2, 4, 6)).cost
    at = {width: TABLE.at(width, 0) for width in (2, 4, 6, 7, 8)}
    assert costs == tuple(at[width] for width in (2, 2, 4, 4, 6, 6, 7, 8))


def test_the_slope_looks_beyond_the_next_bucket() -> None:
    """A node that fills a bucket is free; one that opens the next brings room for others."""
    curve = StepCost((1, 9), (0,), ((1.0, 5.0),)).curve(0, 1, 8, (1, 5, 9))
    assert curve.cost == pytest.approx((1.0, *[3.0] * 4, *[5.0] * 4))
    assert curve.slope == pytest.approx((0.5, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0))


@given(
    tables(),
    st.integers(0, 5000),
    st.integers(1, 12),
    st.integers(1, 25),
    st.sets(st.integers(1, 50), max_size=4),
)
def test_no_number_of_further_nodes_costs_less_than_the_slope(
    table: StepCost, context: int, base: int, nodes: int, buckets: set[int]
) -> None:
    curve = table.curve(context, base, nodes, tuple(sorted(buckets)))
    assert len(curve.cost) == len(curve.slope) == nodes + 1
    for n in range(nodes):
        means = [(curve.cost[m] - curve.cost[n]) / (m - n) for m in range(n + 1, nodes + 1)]
        assert curve.slope[n] == pytest.approx(min(means))


def test_ranks_wait_for_the_widest_part() -> None:
    """Three tokens and the nodes over two ranks, of which one feeds two tokens in any case."""
    costs = TABLE.curve(0, 3, 4, (), 2, 2).cost
    assert costs == tuple(TABLE.at(width, 0) for width in (2, 2, 3, 3, 4))


@pytest.mark.parametrize(("width", "fits"), [(1, 2), (2, 2), (3, 8), (8, 8), (9, 9)])
def test_a_step_takes_the_narrowest_bucket_that_holds_it(width: int, fits: int) -> None:
    assert fitting(width, (2, 8)) == fits
    assert fitting(width, ()) == width


@pytest.mark.parametrize(
    "table",
    [
        {"widths": 1},
        {"costs": [1.0]},
        {"widths": [1, 2], "costs": [[1.0, "x"]]},
        {"widths": [1, 2.5], "costs": [[1.0, 2.0]]},
    ],
)
def test_what_is_no_table_of_numbers_is_named(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="step_cost must hold lists of numbers"):
        StepCost(**table)
