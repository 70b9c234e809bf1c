"""Reports on the terminal: what fits, what is left out, and nothing that drives it."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from ladecli.bench.report import show
from ladecli.bench.result import Result

from . import makers, report_results

ESCAPE = re.compile(r"\x1b\[[\d;]*m")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(result: Result, width: int = 80, *, screen: bool = True, colour: bool = False) -> str:
    console = Console(
        file=Screen() if screen else io.StringIO(), width=width, no_color=not colour,
        force_terminal=screen or colour, color_system="truecolor" if colour else None,
        legacy_windows=False,
    )  # fmt: skip
    show(result, console)
    text = console.file.getvalue()
    return text if colour else ESCAPE.sub("", text)


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("name", report_results.ALL)
def test_every_result_fits_the_screen(name: str, width: int) -> None:
    text = shown(report_results.ALL[name](), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert "\x1b" not in text


def test_the_answer_comes_first() -> None:
    lines = shown(makers.result(interrupted=True)).splitlines()
    assert lines[0] == "demo on Test CPU"
    assert lines[1].startswith("Lookahead makes 1.5")
    assert any(line.startswith("note: Interrupted: ") for line in lines[:6])


def heads(text: str, title: str) -> list[str]:
    lines = text.splitlines()
    return lines[lines.index(title) + 1].split()


def test_figures_are_left_out_by_weight_and_named() -> None:
    wide, narrow = shown(makers.result(), 140), shown(makers.result(), 60)
    assert " ".join(heads(wide, "How fast")) == (
        "speed-up 95 % equal tok/s tok/step first ms ms/step p95 ms width memory"
    )
    assert heads(narrow, "How fast")[:4] == ["speed-up", "95", "%", "equal"]
    assert "memory" not in heads(narrow, "How fast")
    closing = " ".join(narrow[narrow.index("without room here: ") :].split())
    assert "memory" in closing
    assert closing.endswith("a wider screen or --report has them")
    assert "without room" not in shown(makers.result(), 140)


def test_what_is_sure_is_the_last_to_go() -> None:
    assert heads(shown(makers.result(), 48), "How fast") == ["speed-up", "95", "%", "equal"]
    assert heads(shown(makers.result(), 40), "How fast") == ["speed-up", "95", "%"]


def test_footnotes_explain_the_columns_that_are_there() -> None:
    wide, narrow = shown(makers.result(), 400), shown(makers.result(), 48)
    for title in ("speed-up", "95 %", "equal"):
        assert f"{title}: " in wide
        assert f"{title}: " in " ".join(narrow.split())
    for title in ("tok/s", "first ms", "ms/step", "p95 ms", "width"):
        assert f"{title}: " in wide
        assert f"{title}: " not in narrow[: narrow.index("Speed-up by category")]


def test_on_a_pipe_every_row_is_one_whole_line() -> None:
    text = shown(makers.result(), screen=False)
    assert "without room" not in text
    row = next(line for line in text.splitlines() if line.startswith("lookahead  "))
    assert row.endswith(" MB")
    assert not any(line.endswith(" ") for line in text.splitlines())
    coloured = shown(makers.result(), screen=False, colour=True)
    assert "\x1b[" in coloured
    assert ESCAPE.sub("", coloured) == text


def test_a_heat_map_says_in_figures_what_it_says_in_colours() -> None:
    made = report_results.grid({"W": ("3", "5", "10"), "N": ("3", "5")}, missing=(1,))
    text = shown(made)
    grid = text[text.index("N \\ W") :].splitlines()
    assert grid[0].split() == ["N", "\\", "W", "3", "5", "10"]
    assert [line.split()[0] for line in grid[2:4]] == ["3", "5"]
    assert grid[3].split()[1] == "-"
    assert sum(line.count("*") for line in grid[2:4]) == 1
    assert text.count("* the highest") == 2
    assert "48;2;" in shown(made, colour=True)


def test_a_grid_wider_than_the_screen_goes_on_below() -> None:
    made = report_results.grid({"W": tuple(str(n) for n in range(3, 15)), "N": ("3", "5")})
    text = shown(made, 60)
    assert text.count("N \\ W") > 2


def test_the_law_is_drawn_where_the_screen_has_room() -> None:
    made = report_results.grid({"W": ("3", "5", "10"), "N": ("3", "5")})
    assert "(tokens fed)" in shown(made, 80)
    assert "(tokens fed)" not in shown(made, 50)
    assert "R² = " in shown(made, 50)


def test_markup_in_names_is_text() -> None:
    text = shown(report_results.hostile(), 400)
    assert '[red]<b>"x"|`$\\alpha$`[31m & 本*_ # no' in text
