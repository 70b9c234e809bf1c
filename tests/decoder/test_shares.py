"""How much of a step the window may take, and what a place in it is worth."""

from __future__ import annotations

import pytest

from ladecli.decoder.step_cost import CostCurve
from ladecli.decoder.strategies.shares import PAUSES, TRIAL, WindowShare, price_of_place

ROWS = 4
COLUMNS = 7


def book(share: WindowShare, price: float, found: int = 0) -> int:
    """One step of a window of `ROWS` rows; returns its columns in the next one."""
    share.book(found, ROWS * share.columns, price, ROWS * COLUMNS)
    return share.columns


def widths(share: WindowShare, steps: int, price: float, found: int = 0) -> list[int]:
    return [book(share, price, found) for _ in range(steps)]


def dropped() -> WindowShare:
    """A window that was dropped just now: it found nothing, and its cells were dear."""
    share = WindowShare(COLUMNS)
    while share.columns:
        book(share, 0.1)
    return share


# The window's share.


def test_a_window_starts_with_all_columns() -> None:
    assert WindowShare(COLUMNS).columns == COLUMNS


def test_a_window_that_is_not_worth_its_place_is_halved_then_dropped() -> None:
    seen = widths(WindowShare(COLUMNS), 2 * TRIAL, price=0.5)
    halved = [COLUMNS // 2] * TRIAL
    assert seen == [*[COLUMNS] * (TRIAL - 1), *halved, 0]


def test_a_window_stays_where_its_cells_cost_nothing() -> None:
    assert set(widths(WindowShare(COLUMNS), 500, price=0.0)) == {COLUMNS}


def test_a_window_stays_while_it_brings_enough() -> None:
    """The same price drops a window that finds nothing."""
    assert set(widths(WindowShare(COLUMNS), 500, price=0.05, found=1)) == {COLUMNS}
    assert 0 in widths(WindowShare(COLUMNS), 500, price=0.05)


def test_a_window_that_stops_finding_is_dropped() -> None:
    share = WindowShare(COLUMNS)
    widths(share, 100, price=0.05, found=1)
    assert 0 in widths(share, 100, price=0.05)


def test_one_dear_step_does_not_drop_a_window() -> None:
    share = WindowShare(COLUMNS)
    widths(share, 50, price=0.0, found=1)
    assert book(share, price=0.5) == COLUMNS
    assert set(widths(share, 50, price=0.0)) == {COLUMNS}


def test_half_a_window_stays_where_a_whole_one_is_too_dear() -> None:
    share = WindowShare(COLUMNS)
    seen = widths(share, 300, price=0.12, found=1)
    assert seen[-200:] == [COLUMNS // 2] * 200


def test_half_a_window_grows_back_when_the_whole_is_worth_its_place() -> None:
    share = WindowShare(COLUMNS)
    while share.columns == COLUMNS:
        book(share, 0.1)
    assert share.columns == COLUMNS // 2
    assert widths(share, 40, price=0.0, found=1)[-1] == COLUMNS


def test_a_dropped_window_is_tried_again_after_pauses_that_double() -> None:
    share = dropped()
    pauses: list[int] = []
    for _ in range(6):
        pauses.append(1)
        while not book(share, 0.5):
            pauses[-1] += 1
        assert share.columns == COLUMNS // 2, "it starts narrow where its place is dear"
        assert widths(share, TRIAL, price=0.5)[-1] == 0
    assert pauses[0] >= PAUSES[0]
    assert pauses[-1] == PAUSES[1]
    assert pauses[1:] == [min(2 * pause, PAUSES[1]) for pause in pauses[:-1]]


def test_the_whole_window_returns_as_soon_as_there_is_room() -> None:
    share = dropped()
    pause = 1
    while not book(share, 0.0):
        pause += 1
    assert share.columns == COLUMNS
    assert TRIAL <= pause < PAUSES[0]


def test_a_window_that_returns_has_a_chance() -> None:
    """What it did not find before it was dropped is forgotten."""
    share = dropped()
    while not share.columns:
        book(share, 0.002)
    assert widths(share, TRIAL, price=0.002) == [COLUMNS] * TRIAL


def test_a_half_window_that_grows_back_makes_pauses_short_again() -> None:
    share = dropped()
    first = widths(share, PAUSES[1], price=0.1).index(COLUMNS // 2)
    while share.columns != COLUMNS // 2:
        book(share, 0.1)
    while share.columns != COLUMNS:
        book(share, 0.0, found=1)
    while share.columns:
        book(share, 0.5)
    assert widths(share, PAUSES[1], price=0.5).index(COLUMNS // 2) == first


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_narrow_window_is_dropped_from_one_column(columns: int) -> None:
    seen = widths(WindowShare(columns), 2 * TRIAL, price=2.0)
    assert seen == [*[columns] * (TRIAL - 1), *[1] * TRIAL, 0]


# The price of a place.

CURVE = CostCurve((1.0, 1.0, 1.5, 2.5), (0.0, 0.5, 1.0, 0.0))


def test_a_place_is_worth_the_node_that_would_have_stood_there() -> None:
    """Where the tree had no room for it; further nodes are about half as probable."""
    free = CostCurve((1.0,) * 4, (0.0,) * 4)
    assert price_of_place(0.6, free, 3, 2.0) == pytest.approx(0.3)
    assert price_of_place(0.0, free, 3, 2.0) == 0.0


def test_a_place_is_worth_what_it_costs() -> None:
    assert price_of_place(0.0, CURVE, 1, 2.0) == pytest.approx(1.0)
    assert price_of_place(0.0, CURVE, 1, 3.0) == pytest.approx(1.5)


def test_a_place_is_worth_the_more_of_the_two() -> None:
    assert price_of_place(0.8, CURVE, 1, 0.1) == pytest.approx(0.4)
    assert price_of_place(0.8, CURVE, 1, 2.0) == pytest.approx(1.0)


def test_a_full_tree_pays_what_its_last_node_did() -> None:
    """Beyond it the curve says nothing, and not that places are free."""
    assert price_of_place(0.0, CURVE, 3, 2.0) == pytest.approx(2.0)
