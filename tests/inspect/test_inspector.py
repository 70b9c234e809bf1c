"""The inspector: golden screens at fixed widths, cropping, and texts that could harm."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ladecli.cells import cropped, padded, runs, styled, visible, wrapped
from ladecli.decoder.events import Detail
from ladecli.events import Piece, TextStep
from ladecli.inspect.inspector import inspect_step
from ladecli.inspect.trace import Header, Trace, read_trace
from ladecli.inspect.tree_lines import tree_lines
from ladecli.inspect.window_lines import ngram_lines
from ladecli.metrics import Tally

from ..recording import SETTINGS, record, small_trace


def lines_of(trace: Trace, number: int, width: int, height: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, markup=False)
    console.print(inspect_step(trace, number, width, height), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_step_with_everything() -> None:
    assert lines_of(small_trace(), 2, 80) == [
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
        "├─ ␣sat ✓  trajectory",
        "│  ├─ ␣on ✓ → ␣the  context",
        "│  │  └─ ␣mat  trajectory",
        "│  └─ ␣ran  recycled",
        "└─ ␣dog .  recycled",
        "3 tokens · width 12 · 30.0 ms · 2.00 tokens per step so far · 2.0× plain",
    ]


def test_a_window_that_is_not_full_yet() -> None:
    assert lines_of(small_trace(None), 1, 60) == [
        " step 1 of 3  demo · lookahead · W=2 N=3 G=2 · trajectory+c…",
        "The▸␣cat",
        "window filling: 1 row so far, one more with every step ─────",
        "↑ start   The   ␣on   ␣the",
        "= step 1  ␣cat  ␣the  ␣mat",
        "n-grams none yet: the window is not full ───────────────────",
        "draft none in this step ────────────────────────────────────",
        "The → ␣cat",
        "1 token · width 7 · 20.0 ms · 1.00 tokens per step so far",
    ]


def test_a_step_with_neither_window_nor_draft() -> None:
    assert lines_of(small_trace(), 3, 40) == [
        " step 3 of 3  demo · lookahead · W=2 N=…",
        "The cat sat on the▸⏎",
        "",
        "window none in this step ───────────────",
        "draft none in this step ────────────────",
        "␣the → ⏎",
        "1 token · width 1 · 10.0 ms",
        "1.67 tokens per step so far · 2.0× plain",
    ]


def test_a_step_of_which_nothing_is_known() -> None:
    trace = small_trace(None)
    step = replace(trace.steps[0], detail=None)
    lines = lines_of(replace(trace, events=(step,)), 1, 60)
    assert lines[2:-1] == ["this trace does not say what the step tried"]


def styles(text: Text, part: str) -> set[str]:
    return {str(style) for run, style in runs(text) if run == part}


def test_sources_have_their_colours_and_what_was_accepted_is_bold() -> None:
    screen = inspect_step(small_trace(), 2, 80)
    assert styles(screen, "␣sat") == {"bold underline green", "bold green"}
    assert styles(screen, "␣on") == {"bold underline cyan", "bold cyan"}
    assert "dim green" in styles(screen, "␣mat")  # rejected
    assert styles(screen, "␣ran") == {"dim blue"}
    assert styles(screen, "The") == {"dim"}
    assert styles(screen, " cat") == {"none"}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("width", "height"), [(120, 39), (80, 23), (40, 23), (40, 12), (20, 5)])
def test_no_line_is_too_wide_and_no_screen_too_high(
    name: str, width: int, height: int, tmp_path: Path
) -> None:
    trace = read_trace(record(tmp_path / "x.jsonl", name, 0.004))
    for number in range(1, len(trace.steps) + 1):
        screen = inspect_step(trace, number, width, height)
        lines = screen.split("\n", allow_blank=True)
        assert len(lines) <= height
        assert all(line.cell_len <= width for line in lines), (number, screen.plain)
        # What matters most is always there.
        assert lines[0].plain.startswith(f" step {number} of")
        assert f"{len(trace.steps[number - 1].token_ids)} token" in screen.plain


def test_figures_are_those_of_the_statistics(tmp_path: Path) -> None:
    trace = read_trace(record(tmp_path / "x.jsonl", "all sources"))
    tally = Tally()
    for event in trace.events:
        tally.add(event)
    last = lines_of(trace, tally.steps, 120)[-1]
    assert f"{tally.tokens_per_step:.2f} tokens per step so far" in last


@pytest.mark.parametrize("number", [0, 4, -1])
def test_steps_that_are_not_there(number: int) -> None:
    with pytest.raises(IndexError, match=f"step {number} of 3"):
        inspect_step(small_trace(), number, 80)


def test_tokens_cannot_drive_the_terminal() -> None:
    trace = small_trace()
    evil = "\x1b[2J\x9b31m\x07\u202e\u2028\r"
    header = Header(evil, evil, 1, {"strategy": evil, "window": evil, "sources": [evil]})
    pieces = (Piece(evil), Piece(evil), Piece(evil))
    steps = (trace.steps[0], replace(trace.steps[1], pieces=pieces))
    changed = Trace(header, steps, dict.fromkeys(range(20), evil))
    for width in (20, 80):
        shown = "\n".join(lines_of(changed, 2, width))
        assert not {"\x1b", "\x9b", "\x07", "\r"} & set(shown)
        assert "\u2028" not in shown.split("window")[1]


def tree_of(parents: list[int], accepted: tuple[int, ...] = ()) -> tuple[TextStep, Detail]:
    nodes = range(len(parents))
    detail = Detail(0, tuple(nodes), tuple(parents), ("context",) * len(parents), accepted)
    return TextStep((Piece("!"),), (99,), 1, len(parents), 0.1, detail), detail


def drawn(parents: list[int], height: int, accepted: tuple[int, ...] = ()) -> list[str]:
    step, detail = tree_of(parents, accepted)
    return [line.plain for line in tree_lines(step, detail, str, 60, height)]


def test_a_tree_that_does_not_fit_shows_what_was_proposed_first() -> None:
    parents = [-1, -1, 0, 0, 1, -1, 2, 5]
    assert drawn(parents, 20) == [
        "0 → 99",
        "├─ 0  context",
        "│  ├─ 2 6  context",
        "│  └─ 3  context",
        "├─ 1 4  context",
        "└─ 5 7  context",
    ]
    assert drawn(parents, 6) == drawn(parents, 20)
    assert drawn(parents, 4) == ["0 → 99", "├─ 0 2  context", "└─ 1  context", "… and 5 more"]
    # The accepted path stays, whatever else has to go.
    assert drawn(parents, 4, (5, 7)) == [
        "0",
        "├─ 5 ✓ 7 ✓ → 99  context",
        "└─ 0  context",
        "… and 5 more",
    ]


def test_deep_trees_are_drawn() -> None:
    assert len(drawn(list(range(-1, 3000)), 10)) == 2
    assert len(drawn([max(i - 2, -1) for i in range(300)], 10)) <= 10


@settings(deadline=None, max_examples=200)
@given(st.data(), st.integers(0, 30), st.integers(2, 12))
def test_every_node_is_drawn_or_counted(data: st.DataObject, count: int, height: int) -> None:
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(count)]
    lines = drawn(parents, height)
    assert len(lines) <= height
    shown = sum(len(line.replace("context", "").strip("│├└─ ").split()) for line in lines[1:])
    if lines[-1].startswith("…"):
        shown += int(lines[-1].split()[2]) - len(lines[-1].split())
    assert shown == count


def test_ngrams_without_room_are_counted() -> None:
    detail = Detail(1, window=((1, 2, 3, 4, 5),) * 2, outputs=(6, 7, 8, 9, 10), closed=True)
    lines = [line.plain for line in ngram_lines(detail, str, 20, 2)]
    assert lines == ["n-grams 5 closed, t…", "1 1 6 · 2 2 7", "3 3 8 · 4 4 9"]
    wide = [line.plain for line in ngram_lines(detail, str, 60, 1)]
    assert wide[0].startswith("n-grams 5 closed, the window's columns ──")
    few = [line.plain for line in ngram_lines(detail, str, 32, 1)]
    assert few[1:] == ["1 1 6 · 2 2 7 · 3 3 8 · 4 4 9"]


# Cells.


def test_characters_that_cannot_be_seen_are_shown() -> None:
    table = {
        " the": "␣the", "\n\n": "⏎⏎", "\t": "⇥", "": "∅", "\x1b[": "␛[", "\r": "␍", "\x7f": "␡",
        "\x9b": "·", "\u202e": "·", "\u2028": "·", "\xa0": "␣", "\ud800": "·", "\u200b": "·",
        "你😀é": "你😀é", "👩\u200d👧": "👩\u200d👧",
    }  # fmt: skip
    assert {text: visible(text) for text in table} == table


def test_wide_characters_are_cropped_and_padded_by_cells() -> None:
    assert cropped(Text("你好世界"), 8).plain == "你好世界"
    assert cropped(Text("你好世界"), 7).plain == "你好世…"
    assert cropped(Text("你好世界"), 6).plain == "你好…"
    assert cropped(Text("ab"), 0).plain == ""
    assert padded(Text("你"), 5).plain == "你   "
    assert padded(Text("你好世界"), 6).plain == "你好… "


def test_lines_break_between_words_and_keep_their_spaces() -> None:
    def plain(text: str, width: int) -> list[str]:
        return [line.plain for line in wrapped(Text(text), width)]

    assert plain("the cat sat", 8) == ["the cat ", "sat"]
    assert plain("aaaa bb\n\ncc", 6) == ["aaaa ", "bb", "", "cc"]
    assert plain("abcdefgh", 3) == ["abc", "def", "gh"]
    assert plain("你好世界", 5) == ["你好", "世界"]
    assert plain("", 5) == [""]


TEXTS = st.text(st.sampled_from("ab  \n你😀é-"), max_size=60)


@given(TEXTS, st.integers(2, 12))
def test_wrapping_loses_nothing(text: str, width: int) -> None:
    lines = [line.plain for line in wrapped(Text(text), width)]
    assert "".join(lines) == text.replace("\n", "")
    assert all(cell_len(line) <= width for line in lines)


def test_runs_have_one_style_each() -> None:
    text = styled("a", "bold").append("b").append("c", "green")
    assert [(part, str(style)) for part, style in runs(text)] == [
        ("a", "bold"),
        ("b", "none"),
        ("c", "green"),
    ]
    assert [(part, str(style)) for part, style in runs(Text("x", "dim"))] == [("x", "dim")]
    assert list(runs(Text())) == []
