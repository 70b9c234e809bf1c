"""Text in terminal cells: made visible, wrapped, split by style."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from ladecli.cells import runs, styled, visible, wrapped


def test_characters_that_cannot_be_seen_are_shown() -> None:
    table = {
        " the": "␣the", "\n\n": "⏎⏎", "\t": "⇥", "": "∅", "\x1b[": "␛[", "\r": "␍", "\x7f": "␡",
        "\x9b": "·", "\u202e": "·", "\u2028": "·", "\xa0": "␣", "\ud800": "·", "\u200b": "·",
        "你😀é": "你😀é", "👩\u200d👧": "👩\u200d👧",
    }  # fmt: skip
    assert {text: visible(text) for text in table} == table


@given(st.text(st.sampled_from("ab  \n你😀é-"), max_size=60), st.integers(2, 12))
def test_wrapping_loses_nothing(text: str, width: int) -> None:
    lines = [line.plain for line in wrapped(Text(text), width)]
    assert "".join(lines) == text.replace("\n", "")
    assert all(cell_len(line) <= width for line in lines)


def test_lines_break_between_words() -> None:
    lines = [line.plain for line in wrapped(Text("the cat sat\n\ncc"), 8)]
    assert lines == ["the cat ", "sat", "", "cc"]


def test_runs_have_one_style_each() -> None:
    text = styled("a", "bold").append("b").append("c", "green")
    assert [(part, str(style)) for part, style in runs(text)] == [
        ("a", "bold"),
        ("b", "none"),
        ("c", "green"),
    ]
    assert list(runs(Text())) == []
