"""The inspector: one step of a trace on screens of several sizes, and control characters."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from ladecli.decoder.events import Detail
from ladecli.events import Piece, TextStep
from ladecli.trace.format import Trace, read_trace
from ladecli.trace.inspector import StepView
from tests.support.traces import record, small_trace


def shown(trace: Trace, number: int, width: int) -> list[str]:
    """Return the lines of a step as Rich prints them, without trailing blanks."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(StepView(trace, number))
    return [line.rstrip() for line in capture.get().removesuffix("\n").split("\n")]


def test_a_step_with_everything() -> None:
    assert shown(small_trace(), 2, 80) == [
        " step 2 of 3  demo · lookahead · W=2 N=3 G=2 · trajectory+context+recycled",
        "3 tokens · width 12 · 30.0 ms · ≈1.5× plain · so far 2.00 tokens per step, ≈1.5×",
        "The cat▸␣sat␣on␣the",
        "window 2 columns; the outputs are the last row of the next step ────────────────",
        "row 0    ␣cat   ␣the",
        "row 1    ␣the   ␣mat",
        "outputs  ␣你好  .",
        "n-grams 2 closed, the window's columns ─────────────────────────────────────────",
        "␣cat ␣the ␣你好 · ␣the ␣mat .",
        "draft 6 proposed, 2 accepted ✓; → the model's own ──────────────────────────────",
        "␣cat",
        "├── trajectory: ␣sat ✓",
        "│   ├── context: ␣on ✓ → ␣the",
        "│   │   └── trajectory: ␣mat",
        "│   └── recycled: ␣ran",
        "└── recycled: ␣dog .",
    ]


def test_steps_without_a_draft_or_a_full_window() -> None:
    assert shown(small_trace(), 1, 60) == [
        " step 1 of 3  demo · lookahead · W=2 N=3 G=2 · trajectory+c…",
        "1 token · width 7 · 20.0 ms · so far 1.00 tokens per step",
        "The▸␣cat",
        "window 3 columns; filling, 1 row so far ────────────────────",
        "row 0    The   ␣on   ␣the",
        "outputs  ␣cat  ␣the  ␣mat",
        "draft none in this step ────────────────────────────────────",
        "The → ␣cat",
    ]
    lines = shown(small_trace(), 3, 80)
    assert lines[2:4] == ["The cat sat on the▸⏎", ""]
    assert lines[4].startswith("window none in this step; --sources trajectory records")
    assert lines[6] == "␣the → ⏎"
    trace = small_trace()
    unknown = replace(trace, events=(replace(trace.steps[0], detail=None),))
    assert shown(unknown, 1, 60)[3:] == ["this trace does not record the candidates of the step"]


@pytest.mark.parametrize("width", [20, 80])
def test_no_line_is_wider_than_the_screen(width: int, tmp_path: Path) -> None:
    trace = read_trace(record(tmp_path / "x", "paper"))
    for number, step in enumerate(trace.steps, start=1):
        lines = shown(trace, number, width)
        assert all(cell_len(line) <= width for line in lines), (number, lines)
        # The most important parts come first.
        assert lines[0].startswith(f" step {number} of")
        assert lines[1].startswith(f"{len(step.token_ids)} token")


def test_a_tree_has_the_accepted_path_first_and_chains_on_one_line() -> None:
    def drawn(parents: list[int], accepted: tuple[int, ...] = ()) -> list[str]:
        count = len(parents)
        nodes = (tuple(range(count)), tuple(parents), ("context",) * count)
        step = TextStep((Piece("!"),), (99,), 1, 0, 0.1, Detail(0, *nodes, accepted))
        words = {number: str(number) for number in range(100)}
        trace = replace(small_trace(), events=(step,), spellings=words)
        return shown(trace, 1, 60)[5:]

    parents = [-1, -1, 0, 0, 1, -1, 2, 5]
    assert drawn(parents) == [
        "0 → 99",
        "├── context: 0",
        "│   ├── context: 2 6",
        "│   └── context: 3",
        "├── context: 1 4",
        "└── context: 5 7",
    ]
    assert drawn(parents, (5, 7))[:3] == ["0", "├── context: 5 ✓ 7 ✓ → 99", "├── context: 0"]
    assert len(drawn(list(range(-1, 3000)))) == 2
