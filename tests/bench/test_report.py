"""What a report says of a result, in every format."""

from __future__ import annotations

import dataclasses
import io
import re
from html import escape
from pathlib import Path

import pytest
from rich.console import Console

from ladecli.bench import report
from ladecli.bench.report import document
from ladecli.bench.result import Failure, Result, Skipped

from .makers import result, run

pytestmark = pytest.mark.slow


class Screen(io.StringIO):
    """A stream that has a width."""

    def isatty(self) -> bool:
        return True


def shown(made: Result, width: int = 200, stream: io.StringIO | None = None) -> str:
    stream = stream or Screen()
    report.show(made, Console(file=stream, width=width, color_system=None))
    return stream.getvalue()


def written(made: Result, path: Path) -> str:
    report.write(made, path)
    return path.read_text(encoding="utf-8")


def titles(made: Result) -> list[str]:
    return [table.title for table in document(made).tables]


def contexts() -> Result:
    """Three texts of each of two lengths."""
    runs = tuple(
        run(name, f"{length}/{row}", length, prompt_tokens=int(length), repeat=repeat)
        for name in ("autoregressive", "lookahead")
        for length in ("100", "4000")
        for row in (1, 2, 3)
        for repeat in (1, 2)
    )
    made = result({"autoregressive": 1.0, "lookahead": 1.5}, runs=runs)
    asked = dataclasses.replace(made.conditions, sweep={"context": ("100", "4000")})
    return dataclasses.replace(made, conditions=asked)


def slower_at_the_end() -> Result:
    """The last of three repeats took a fifth longer."""
    made = result()
    runs = [
        dataclasses.replace(each, step_seconds=tuple(1.2 * s for s in each.step_seconds))
        if each.repeat == 3
        else each
        for each in made.runs
    ]
    return dataclasses.replace(made, runs=tuple(runs))


RESULTS = {
    "plain": result,
    "contexts": contexts,
    "one row": lambda: result(rows=1, repeats=1),
    "one method": lambda: result({"lookahead": 1.0}),
    "transformers alone": lambda: result({"hf": 1.0}),
}


def test_the_headline_has_speed_and_equality() -> None:
    speed, equality = document(result()).headline
    assert speed.startswith("lookahead: ")
    for part in ("1.5", "plain decoding", "transformers' generate", "tokens per step"):
        assert part in speed
    assert "162 of 162" in equality


def test_a_speed_up_that_may_be_chance_is_marked() -> None:
    made = result({"autoregressive": 1.0, "lookahead": 1.0})
    assert "no clear difference" in document(made).headline[0]
    assert "~1." in shown(made) or "~0." in shown(made)


def test_answers_that_differ_are_in_the_headline() -> None:
    made = result({"autoregressive": 1.0, "lookahead": 1.5})
    runs = [
        dataclasses.replace(each, digest="other")
        if (each.method, each.row) == ("lookahead", "row-0")
        else each
        for each in made.runs
    ]
    headline = document(dataclasses.replace(made, runs=tuple(runs))).headline
    assert "3 of 27 of lookahead" in headline[1]
    assert "24/27" in shown(dataclasses.replace(made, runs=tuple(runs)))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (result(interrupted=True), "Interrupted"),
        (result(repeats=1), "measured once"),
        (result(reference=None), "no baseline"),
        (result(rows=2), "too few for a speed-up"),
        (result(rows=4), "too narrow"),
        (slower_at_the_end(), "not steady"),
        (result(failures=(Failure("jacobi", "row-1", "KeyError"),)), "Failed: jacobi"),
        (contexts(), "made for 2,048 tokens"),
    ],
)
def test_caveats(made: Result, words: str) -> None:
    assert any(words in caveat for caveat in document(made).caveats)
    assert not any(words in caveat for caveat in document(result()).caveats)


def test_tables_are_those_that_the_result_has() -> None:
    found = titles(result())
    assert "Tokens per step by category" in found
    assert "Where the time of a step goes" in found
    assert "Accepted draft tokens per step, by source" in found
    assert "Peak memory by context" in titles(contexts())
    assert "Where the time of a step goes" not in titles(result(time_spent=()))
    assert {"Left out", "Failed"} <= {
        *titles(result(skipped=(Skipped("a", "b"),), failures=(Failure("a", "b", "c"),)))
    }


def test_shares_of_the_time_of_a_step() -> None:
    page = shown(result(), 120)
    assert "86 %" in page  # 2.5 ms of 2.9 are the forward
    assert "10.0 GB/s (50 %)" in page  # 25 MB in 2.5 ms, of 20 GB/s


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_result_fits_the_screen(name: str, width: int) -> None:
    lines = shown(RESULTS[name](), width).splitlines()
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("name", RESULTS)
def test_a_page_stands_alone(name: str, tmp_path: Path) -> None:
    text = written(RESULTS[name](), tmp_path / "r.html")
    assert "<script" not in text
    assert all(source.startswith("#") for source in re.findall('(?:src|href)="(.*?)"', text))
    found = document(RESULTS[name]())
    names = [found.title, *titles(RESULTS[name]())]
    assert all(escape(title) in text for title in names)
    assert text.count("●") == len(found.speedups)
    cells = (cell for table in found.tables for row in table.rows for cell in row)
    assert all(escape(word) in text for cell in cells for word in cell.split())
    tables = re.findall(
        r"\n\n(\|.+\|)\n(\|[-: |]+\|)\n\|", written(RESULTS[name](), tmp_path / "r.md")
    )
    assert len(tables) == len(titles(RESULTS[name]()))
    assert all(head.count(" | ") == rule.count(" | ") for head, rule in tables)


def test_names_are_escaped(tmp_path: Path) -> None:
    model = dataclasses.replace(result().model, name="a|b<script>*\x1b[31m")
    made = result(model=model)
    assert "<script>" not in written(made, tmp_path / "r.html")
    assert "# a\\|b\\<script\\>\\*" in written(made, tmp_path / "r.md")
    assert "\x1b" not in shown(made, stream=io.StringIO())
