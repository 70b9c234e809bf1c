"""Tokens per step by ranks and width: between what was measured, beyond it, and bad tables."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ladecli.errors import UsageError
from ladecli.planning import growth

from .makers import TABLE


@pytest.mark.parametrize(
    ("ranks", "budget", "tokens"),
    [
        (1, 1, 1.0),  # a step of one token yields one
        (8, 1, 1.0),
        (1, 16, 2.0),
        (2, 64, 4.0),
        (1, 4, 1.5),  # half of the way from 1 to 16, by the logarithm
        (1, 32, 2.5),
        (4, 32, 3.875),
        (1, 1000, 3.0),  # nothing is added beyond the widest
        (8, 64, 5.5),  # half of the last doubling's gain
        (16, 64, 5.75),
        (8, 16, 2.875),
    ],
)
def test_between_and_beyond(ranks: int, budget: int, tokens: float) -> None:
    assert growth.parse(TABLE)["tests"].tokens(ranks, budget) == pytest.approx(tokens)


def test_more_ranks_and_more_width_never_yield_less() -> None:
    for table in growth.shipped().values():
        for budget in (2, 16, 40, 64, 128, 500):
            values = [table.tokens(ranks, budget) for ranks in (1, 2, 3, 4, 6, 8, 16, 64, 1024)]
            assert all(a <= b for a, b in pairwise(values))
            assert values[-1] < 2 * table.tokens(8, budget)
        for ranks in (1, 3, 8, 32):
            values = [table.tokens(ranks, budget) for budget in (1, 2, 8, 16, 50, 64, 128)]
            assert all(a <= b for a, b in pairwise(values))


def test_the_first_text_counts_where_none_is_asked_for() -> None:
    names = list(growth.shipped())
    assert growth.growth_of().text == names[0]
    assert growth.growth_of(names[-1]).text == names[-1]
    with pytest.raises(UsageError) as error:
        growth.growth_of("prose")
    assert str(error.value) == (
        f"unknown text 'prose'; tokens per step are known for {', '.join(names)}"
    )


ROW = TABLE.split("[[measured]]")[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "growth.toml: no [[measured]]"),
        (
            "[[measured]]" + ROW.replace("[1, 2, 4]", "[2, 4, 8]"),
            "growth.toml, measured 1: ranks must ascend from 1, not [2, 4, 8]",
        ),
        (
            "[[measured]]" + ROW.replace("[1, 2, 4]", "[1, 2]"),
            "growth.toml, measured 1: 3 tokens_per_step for 2 ranks",
        ),
        (
            "[[measured]]" + ROW + "[[measured]]" + ROW,
            "growth.toml: two rows of 'tests' have the same budget",
        ),
        (
            "[[measured]]" + ROW.replace("budget = 16", "budget = 1"),
            "growth.toml, measured 1: budget must be at least 2, not 1",
        ),
        (
            "[[measured]]" + ROW.replace("origin", "orign"),
            "growth.toml, measured 1: unknown key 'orign'; known: budget, model, origin, ranks,"
            " text, tokens_per_step",
        ),
    ],
)
def test_bad_tables(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        growth.parse(text)
    assert str(error.value) == message
