"""Axes of a sweep as people type them."""

from __future__ import annotations

import pytest

from ladecli.bench import axes
from ladecli.errors import UsageError

KNOWN = ("W", "N", "G", "sources")


def test_axes_stand_in_one_text_or_in_several() -> None:
    one = axes.parse(["W=5,10 N=3"], KNOWN)
    assert one == axes.parse(["window=5,10", "ngram=3"], KNOWN) == {"W": ("5", "10"), "N": ("3",)}


def test_cells_are_all_combinations_the_last_axis_fastest() -> None:
    found = list(axes.cells({"W": ("5", "10"), "N": ("3", "4")}))
    assert [(cell["W"], cell["N"]) for cell in found] == [
        ("5", "3"), ("5", "4"), ("10", "3"), ("10", "4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("W", "--sweep W: an axis is NAME=VALUE,VALUE with a name of W, N, G, sources"),
        ("X=1", "--sweep X=1: an axis is NAME=VALUE,VALUE with a name of W, N, G, sources"),
        ("W=", "--sweep W=: W has no values"),
        ("W=,", "--sweep W=,: W has no values"),
        ("W=1 window=2", "--sweep has W twice; give all its values in one list"),
    ],
)
def test_what_is_no_axis_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        axes.parse([text], KNOWN)
    assert str(caught.value) == message


def test_a_value_counts_once() -> None:
    assert axes.parse(["W=5,5,3"], KNOWN) == {"W": ("5", "3")}
