"""The inspector: one step of a trace on screens of several sizes, and texts that could harm."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from ladecli.decoder.events import Detail
from ladecli.events import Piece, TextStep
from ladecli.inspector import StepView, origins, visible
from ladecli.metrics import Tally
from ladecli.trace import Header, Trace, read_trace

from .recording import SETTINGS, record, small_trace


def shown(
    trace: Trace, number: int, width: int, height: int | None = None, color: bool = False
) -> list[str]:
    """The lines of a step as Rich prints them, without blanks at their ends."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
    )
    with console.capture() as capture:
        console.print(StepView(trace, number), height=height)
    return [line.rstrip() for line in capture.get().removesuffix("\n").split("\n")]


def test_a_step_with_everything() -> None:
    assert shown(small_trace(), 2, 80) == [
        " step 2 of 3  demo · lookahead · W=2 N=3 G=2 · trajectory+context+recycled",
        "The cat▸␣sat␣on␣the",
        "window 2 columns; every row is what a step put out, and moves up ───────────────",
        "↑ start   ␣cat   ␣the",
        "↑ step 1  ␣the   ␣mat",
        "= step 2  ␣你好  .",
        "n-grams 2 closed, the window's columns ─────────────────────────────────────────",
        "␣cat ␣the ␣你好 · ␣the ␣mat .",
        "draft 6 proposed, 2 accepted ───────────────────────────────────────────────────",
        "␣cat",
        "├── ␣sat ✓  trajectory",
        "│   ├── ␣on ✓ → ␣the  context",
        "│   │   └── ␣mat  trajectory",
        "│   └── ␣ran  recycled",
        "└── ␣dog .  recycled",
        "3 tokens · width 12 · 30.0 ms · 2.00 tokens per step so far · 2.0× plain",
    ]


def test_a_window_that_is_not_full_yet() -> None:
    lines = shown(small_trace(None), 1, 60)
    assert lines[2].startswith("window filling: 1 row so far")
    assert lines[3:5] == ["↑ start   The   ␣on   ␣the", "= step 1  ␣cat  ␣the  ␣mat"]
    assert lines[5].startswith("n-grams none yet")
    assert lines[6].startswith("draft none in this step")
    assert lines[7:] == [
        "The → ␣cat",
        "1 token · width 7 · 20.0 ms · 1.00 tokens per step so far",
    ]


def test_a_step_with_neither_window_nor_draft() -> None:
    lines = shown(small_trace(), 3, 80)
    assert lines[1:3] == ["The cat sat on the▸⏎", ""]
    assert lines[3].startswith("window none in this step")
    assert lines[5] == "␣the → ⏎"


def test_a_trace_without_windows_says_how_to_see_one() -> None:
    trace = small_trace()
    assert "--sources trajectory" in shown(replace(trace, events=trace.steps[2:]), 1, 80)[3]


def test_a_step_of_which_nothing_is_known() -> None:
    trace = small_trace(None)
    lines = shown(replace(trace, events=(replace(trace.steps[0], detail=None),)), 1, 60)
    assert lines[2:-1] == ["this trace does not say what the step tried"]


def test_sources_have_their_colors_and_accepted_tokens_are_bold() -> None:
    screen = "\n".join(shown(small_trace(), 2, 80, color=True))
    for part in (
        "\x1b[1;4;32m␣sat\x1b[0m",  # new in the text
        "\x1b[1;4;36m␣on\x1b[0m",
        "\x1b[1;32m␣sat ✓\x1b[0m",  # accepted in the tree
        "\x1b[2;32m␣mat\x1b[0m",  # rejected
        "\x1b[2;34m␣ran\x1b[0m",
    ):
        assert part in screen


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("width", "height"), [(120, 39), (80, 23), (40, 23), (40, 12), (20, 5)])
def test_no_line_is_too_wide_and_no_screen_too_high(
    name: str, width: int, height: int, tmp_path: Path
) -> None:
    trace = read_trace(record(tmp_path / "x", name, 0.004))
    for number, step in enumerate(trace.steps, start=1):
        lines = shown(trace, number, width, height)
        assert len(lines) <= height
        assert all(cell_len(line) <= width for line in lines), (number, lines)
        # What matters most is always there.
        assert lines[0].startswith(f" step {number} of")
        assert f"{len(step.token_ids)} token" in "\n".join(lines)


def test_figures_are_those_of_the_statistics(tmp_path: Path) -> None:
    trace = read_trace(record(tmp_path / "x", "all sources"))
    tally = Tally()
    for event in trace.events:
        tally.add(event)
    last = shown(trace, tally.steps, 120)[-1]
    assert f"{tally.tokens_per_step:.2f} tokens per step so far" in last


def test_columns_without_room_are_left_out() -> None:
    detail = Detail(1, window=((1,) * 30,) * 2, outputs=(2,) * 30, closed=True)
    step = TextStep((Piece("!"),), (3,), 1, 0, 0.1, detail)
    words = {1: "a", 2: "extraordinarily", 3: "!"}
    lines = shown(replace(small_trace(), events=(step,), spellings=words), 1, 80)
    row = next(line for line in lines if line.startswith("= step 1"))
    assert row.endswith("…")
    assert 5 < row.count("extr") < 30
    assert cell_len(row) <= 80


def test_tokens_cannot_drive_the_terminal() -> None:
    trace = small_trace()
    evil = "\x1b[2J\x9b31m\x07\u202e\u2028\r"
    settings = {"strategy": evil, "window": evil, "sources": [evil]}
    header = Header(model=evil, prompt=evil, prompt_tokens=1, settings=settings)
    steps = (trace.steps[0], replace(trace.steps[1], pieces=(Piece(evil),) * 3))
    changed = Trace(header, steps, dict.fromkeys(range(20), evil))
    for width in (20, 80):
        screen = "\n".join(shown(changed, 2, width))
        assert not {"\x1b", "\x9b", "\x07", "\r", "\u202e"} & set(screen)


def drawn(parents: list[int], height: int, accepted: tuple[int, ...] = ()) -> list[str]:
    """The lines of a tree on a screen that leaves it `height` lines."""
    count = len(parents)
    detail = Detail(0, tuple(range(count)), tuple(parents), ("context",) * count, accepted)
    step = TextStep((Piece("!"),), (99,), 1, count, 0.1, detail)
    trace = replace(small_trace(None), events=(step,), spellings={n: str(n) for n in range(100)})
    # Title, text, window, heading of the draft, figures.
    return shown(trace, 1, 60, height + 5)[4:-1]


def test_a_tree_that_does_not_fit_shows_what_was_proposed_first() -> None:
    parents = [-1, -1, 0, 0, 1, -1, 2, 5]
    whole = [
        "0 → 99",
        "├── 0  context",
        "│   ├── 2 6  context",
        "│   └── 3  context",
        "├── 1 4  context",
        "└── 5 7  context",
    ]
    assert drawn(parents, 20) == drawn(parents, 6) == whole
    assert drawn(parents, 4) == ["0 → 99", "├── 0 2  context", "└── 1  context", "… and 5 more"]
    # The accepted path stays, whatever else has to go.
    assert drawn(parents, 4, (5, 7)) == [
        "0",
        "├── 5 ✓ 7 ✓ → 99  context",
        "└── 0  context",
        "… and 5 more",
    ]


def test_deep_trees_are_drawn() -> None:
    assert len(drawn(list(range(-1, 3000)), 10)) == 2
    assert len(drawn([max(i - 2, -1) for i in range(300)], 10)) <= 10


def test_rows_know_which_step_put_them_out(tmp_path: Path) -> None:
    found = read_trace(record(tmp_path / "x", "paper"))  # N = 4: three rows
    assert [origins(found, number) for number in (1, 2, 3, 4, 9)] == [
        [None],
        [None, 1],
        [None, 1, 2],
        [1, 2, 3],
        [6, 7, 8],
    ]


def test_a_window_that_starts_again_has_rows_of_no_step() -> None:
    found = small_trace()
    detail = found.steps[1].detail
    assert detail is not None

    def with_another(*rows: tuple[int, ...]) -> Trace:
        changed = replace(detail, window=rows, outputs=(9,) * len(rows[0]))
        step = replace(found.steps[1], detail=changed)
        return replace(found, events=(*found.steps[:2], step))

    assert origins(with_another((2, 5), (5, 6)), 3) == [1, 2]
    assert origins(with_another((2,), (5,)), 3) == [1, 2]  # made narrower
    assert origins(with_another((2, 5, 6)), 3) == [None]
    assert origins(with_another((2, 5, 6), (5, 6, 7)), 3) == [None, None]


def test_invisible_characters_get_pictures() -> None:
    table = {
        " the": "␣the", "\n\n": "⏎⏎", "\t": "⇥", "": "∅", "\x1b[": "␛[", "\r": "␍", "\x7f": "␡",
        "\x9b": "·", "\u202e": "·", "\u2028": "·", "\xa0": "␣", "\ud800": "·", "\u200b": "·",
        "你😀é": "你😀é", "👩\u200d👧": "👩\u200d👧",
    }  # fmt: skip
    assert {text: visible(text) for text in table} == table
