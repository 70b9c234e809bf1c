"""Reports of a result, in every format."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from ladecli.bench import report
from ladecli.bench.report import document
from ladecli.bench.result import Failure, Result, Run, SkippedRow
from tests.support.results import result, run
from tests.support.terminal import Screen

pytestmark = pytest.mark.slow


def shown(made: Result, width: int = 200, stream: io.StringIO | None = None) -> str:
    stream = stream or Screen()
    report.show(made, Console(file=stream, width=width, color_system=None))
    return stream.getvalue()


def written(made: Result, path: Path) -> str:
    report.write(made, path)
    return path.read_text(encoding="utf-8")


def titles(made: Result) -> list[str]:
    return [table.title for table in document(made).tables]


def with_runs(made: Result, change: Callable[[Run], dict[str, object]]) -> Result:
    """Return a result with changed fields in its runs."""
    runs = tuple(dataclasses.replace(run, **change(run)) for run in made.runs)
    return dataclasses.replace(made, runs=runs)


ONE_STEP: dict[str, object] = {"tokens": 1, "steps": 1, "fed": 0, "step_seconds": ()}


def contexts() -> Result:
    """Return a result with three texts of each of two lengths."""
    cells = product(("autoregressive", "lookahead"), ("100", "4000"), (1, 2, 3), (1, 2))
    runs = tuple(
        run(name, f"{length}/{row}", length, prompt_tokens=int(length), repeat=repeat)
        for name, length, row, repeat in cells
    )
    made = result({"autoregressive": 1.0, "lookahead": 1.5}, runs=runs)
    asked = {**made.conditions, "sweep": {"context": ("100", "4000")}}
    return dataclasses.replace(made, conditions=asked)


RESULTS = {
    "plain": result(),
    "contexts": contexts(),
    "one row": result(rows=1, repeats=1),
    "one method": result({"lookahead": 1.0}),
    "transformers alone": result({"hf": 1.0}),
}


def test_the_headline_has_speed_and_equality() -> None:
    speed, equality = document(RESULTS["plain"]).headline
    assert speed.startswith("lookahead: ")
    for part in ("1.5", "plain decoding", "tokens per step"):
        assert part in speed
    assert "162 of 162" in equality


def test_answers_that_differ_are_in_the_headline() -> None:
    def change(run: Run) -> dict[str, object]:
        return {"digest": "other"} if (run.contender, run.row) == ("lookahead", "row-0") else {}

    made = with_runs(result({"autoregressive": 1.0, "lookahead": 1.5}), change)
    assert "3 of 27 of lookahead" in document(made).headline[1]
    assert "24/27" in shown(made)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (result(interrupted=True), "Interrupted"),
        (result(reference=None), "no baseline"),
        (result(rows=5), "An interval needs 6 prompts"),
        (with_runs(result(), lambda _: ONE_STEP), "An interval needs 6 prompts"),
    ],
)
def test_caveats(made: Result, words: str) -> None:
    assert any(words in caveat for caveat in document(made).caveats)
    assert document(RESULTS["plain"]).caveats == ()


def test_a_report_has_the_tables_of_its_result() -> None:
    assert "Tokens per step by category" in titles(RESULTS["plain"])
    assert "Milliseconds per step by context" in titles(RESULTS["contexts"])
    lost = {"skipped": (SkippedRow("a", "b"),), "failures": (Failure("a", "b", "c"),)}
    assert {"Left out", "Failed"} <= {*titles(result(**lost))}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_fits_the_screen(name: str) -> None:
    for width in (40, 120):
        assert max(map(len, shown(RESULTS[name], width).splitlines())) <= width


@pytest.mark.parametrize("name", RESULTS)
def test_markdown_has_every_table(name: str, tmp_path: Path) -> None:
    page = written(RESULTS[name], tmp_path / "r.md")
    tables = re.findall(r"\n\n(\|.+\|)\n(\|[-: |]+\|)\n\|", page)
    assert len(tables) == len(document(RESULTS[name]).tables)
    assert all(head.count(" | ") == rule.count(" | ") for head, rule in tables)


def test_names_are_escaped(tmp_path: Path) -> None:
    model = {**result().model, "name": "a|b<script>*\x1b[31m"}
    made = result({"lookahead": 1.0}, model=model)
    assert "# a\\|b\\<script\\>\\*" in written(made, tmp_path / "r.md")
    assert "\x1b" not in shown(made, stream=io.StringIO())
