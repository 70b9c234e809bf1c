"""Outlooks: where more GPUs stop paying, which is best, and over what speed-ups are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ladecli.planning.cost import LOOKAHEAD, PLAIN, TENSOR
from ladecli.planning.outlook import PAYS, Outlook, fewest, look

from .makers import setup_of

COUNTS = (1, 2, 4, 8)


def outlook(gpu: str, size: str, asked: int | None = None, **fields: Any) -> Outlook:
    counts = sorted({*COUNTS, *([asked] if asked else [])})
    return look(setup_of(gpu, size, **fields), counts, asked)


def test_more_gpus_stop_paying_where_a_doubling_brings_too_little() -> None:
    seen = outlook("a100", "7b")
    speeds = {row.gpus: row.step.speed for row in seen.rows[LOOKAHEAD] if row.step is not None}
    stop = seen.stop(LOOKAHEAD)
    assert stop is not None
    assert (stop.gpus, stop.beyond) == (4, 8)  # tokens per step: 3, 4, 5, and beyond those 5.5
    for low, high in ((1, 2), (2, 4)):
        assert speeds[high] / speeds[low] >= 1 + PAYS
    assert stop.gain == pytest.approx(speeds[8] / speeds[4] - 1)
    assert stop.gain < PAYS


def test_a_number_that_is_no_power_of_two_is_no_doubling() -> None:
    assert outlook("a100", "7b", 6).stop(LOOKAHEAD) == outlook("a100", "7b").stop(LOOKAHEAD)


def test_other_numbers_count_where_they_are_all_there_is() -> None:
    made = setup_of("l4", "7b", link="450,450")
    shape = replace(made.shape, heads=3, kv_heads=3)
    stop = look(replace(made, shape=shape), (1, 2, 3, 4), 3).stop(PLAIN)
    assert stop is not None
    assert (stop.gpus, stop.beyond) == (3, None)


def test_a_mode_that_pays_throughout_says_so() -> None:
    stop = outlook("l4", "qwen2.5-32b", link="450,450").stop(PLAIN)
    assert stop is not None
    assert (stop.gpus, stop.beyond) == (8, None)


def test_what_fits_nowhere_stops_nowhere() -> None:
    seen = outlook("l4", "70b")
    assert seen.stop(LOOKAHEAD) is None
    assert [row.step for row in seen.rows[LOOKAHEAD]] == [None] * 4
    assert {row.problem for row in seen.rows[LOOKAHEAD]} == {None}


def test_the_baseline_is_plain_decoding_on_the_fewest_gpus_that_hold_the_model() -> None:
    small, large = outlook("a100", "7b"), outlook("a100", "70b")
    assert small.baseline is not None
    assert large.baseline is not None
    assert (small.baseline.mode, small.baseline.gpus) == (PLAIN, 1)
    assert large.baseline.gpus == 4 == fewest(large.setup)
    assert small.speedup(small.rows[PLAIN][0]) == 1
    assert large.speedup(large.rows[PLAIN][0]) is None
    assert large.speedup(large.rows[PLAIN][2]) == 1
    assert large.efficiency(TENSOR, large.rows[TENSOR][2]) == 1


def test_the_fewest_divide_the_model() -> None:
    # Six of them have room for all of it; its 8 heads of keys want 8.
    assert fewest(setup_of("l40s", "70b")) == 4
    assert fewest(setup_of("rtx4090", "70b")) == 8
    assert fewest(setup_of("t4", "405b")) is None
    assert fewest(setup_of("t4", "7b", quantize="4bit")) == 1
    assert fewest(setup_of("gpu", "405b")) == 1  # of unknown memory


@pytest.mark.parametrize("asked", [1, 2, 3, 4, 8])
def test_the_best_has_no_more_gpus_than_were_asked_for(asked: int) -> None:
    seen = outlook("a100", "7b", asked)
    best = seen.best()
    assert best is not None
    assert best.gpus <= asked
    speeds = [
        row.step.speed
        for rows in seen.rows.values()
        for row in rows
        if row.step is not None and row.gpus <= asked
    ]
    assert best.step.speed == max(speeds)


def test_of_equals_the_best_is_plain_and_on_the_fewest() -> None:
    # Drafts do not pay here, so that all modes are plain decoding on one GPU.
    best = outlook("t4", "7b", 2, quantize="4bit").best()
    assert best is not None
    assert (best.mode, best.gpus) == (PLAIN, 1)


def test_nothing_is_best_where_nothing_fits() -> None:
    assert outlook("a100", "70b", 2).best() is None
