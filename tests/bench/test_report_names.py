"""Names beside charts: as long as there is room, and no two alike."""

from __future__ import annotations

import dataclasses

import pytest
from rich.cells import cell_len

from ladecli.bench.report.names import beside, fitted
from ladecli.bench.report.summary import summarise

from . import makers, report_results


@pytest.mark.parametrize(
    ("names", "most", "said"),
    [
        (["short", "plain decoding"], 14, ["short", "plain decoding"]),
        (["abcdefghijkl"], 8, ["abc…ijkl"]),
        # The middle is the same in both, and so is the end.
        (["abcdefgh", "abcXefgh"], 6, ["abcd…h", "abcX…h"]),
        (["abcdefgX", "abcdefgh"], 6, ["ab…fgX", "ab…fgh"]),
        # What differs is at both ends and in between.
        (["axxxxbxxxxc", "axxxxdxxxxc", "exxxxbxxxxc", "axxxxbxxxxf"], 7,
         ["ax… (1)", "ax… (2)", "ex… (3)", "ax… (4)"]),
        (["本本本本本本", "本本本本本人"], 8, ["本…本本", "本…本人"]),
    ],
)  # fmt: skip
def test_names_are_cut_where_it_leaves_them_unlike(
    names: list[str], most: int, said: list[str]
) -> None:
    assert fitted(names, most) == said
    assert max(map(cell_len, said)) <= most


def test_cells_go_without_the_strategy_that_all_of_them_share() -> None:
    made = report_results.grid(
        {"W": ("3", "5"), "sources": ("context", "context+recycled+trajectory")}
    )
    assert list(beside(summarise(made)).values()) == [
        "plain decoding",
        "W=3 sources=context",
        "W=3 sources=con…ycled+trajectory",
        "W=5 sources=context",
        "W=5 sources=con…ycled+trajectory",
    ]
    (plain, *cells) = made.contenders
    other = dataclasses.replace(cells[0], name="jacobi W=3", strategy="jacobi")
    mixed = dataclasses.replace(made, contenders=(plain, other, *cells[1:]))
    assert beside(summarise(mixed))["jacobi W=3"] == "jacobi W=3"
    assert beside(summarise(mixed))[cells[2].name] == "lookahead W=5 sources=context"


def test_without_a_sweep_names_are_whole() -> None:
    made = summarise(makers.result())
    assert beside(made) == {each.name: made.label(each.name) for each in made.result.contenders}
    # Whose time is known without that it took part is called something, too.
    alone = dataclasses.replace(made.result, contenders=())
    assert "lookahead" in beside(summarise(alone))
