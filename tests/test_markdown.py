"""A reply as styled rows: what is said stays as it is, and rows do not depend on the pieces."""

from __future__ import annotations

import random
import statistics
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from ladecli.events import Piece
from ladecli.markdown import MarkdownRenderer

FAMILY = "👨\u200d👩\u200d👧\u200d👦"
HEART = "❤\ufe0f"
ACCENTED = "e\u0301"

SAMPLE = f"""<think>
Is 2 * 3 the *same* as 3 * 2?
```python
x = 1
</think>
# A title that is long enough to be wrapped
Some **strong** and _soft_ text, snake_case_names, f(**kwargs) and `code *x*`.

- an item with more words than fit into a row
  10. nested, and `as long` as the one above it
      ```python
      def f(x):
          '''A string
          of two lines'''
          return "a line that is much longer than the screen is wide, to be folded"
      ```
> quoted words, also more than fit into one row
| a table | that is | wider than the screen is, so it is | folded |
这是**重点**内容,中文没有空格所以必须在宽度处换行。「引号」也一样。
{FAMILY} {HEART}{HEART} 🇩🇪🇫🇷 👍🏽 caf{ACCENTED} {ACCENTED * 30}
https://example.com/a/very/long/address/that/fits/into/no/row
_______________________________________________________________
\ta tab\tand\tanother
~~~
```
~~~
```inline``` code
"""


def rows_of(
    text: str, width: int = 30, markdown: bool = True, colours: bool = False, **options: bool
) -> list[Text]:
    renderer = MarkdownRenderer(markdown, colours, **options)
    return renderer.feed([Piece(text)], width) + renderer.flush(width)


def lines_of(text: str, width: int = 30, **options: bool) -> list[str]:
    return [row.plain for row in rows_of(text, width, **options)]


def styles_of(row: Text) -> list[tuple[str, str]]:
    """Runs of one style, as text and the style's words."""
    console = Console()
    runs = [(s.text, str(s.style or "none")) for s in row.render(console)]
    return [(text, "" if style == "none" else style) for text, style in runs if text.strip("\n")]


def styled(text: str, **options: bool) -> list[tuple[str, str]]:
    (row,) = rows_of(text, 200, **options)
    return styles_of(row)


def look_of(row: Text) -> tuple[str, list[tuple[str, str]], str]:
    return row.plain, styles_of(row), row.end


# Rows.


def test_rows_are_wrapped_at_words_and_hang_under_their_item() -> None:
    text = "Words that wrap at the edge.\n\n- an item that wraps as well\n  1. and one inside it\n"
    assert lines_of(text, 16) == [
        "Words that wrap",
        "at the edge.",
        "",
        "- an item that",
        "  wraps as well",
        "  1. and one",
        "     inside it",
    ]
    assert lines_of("> quoted words too\n", 12) == ["> quoted", "  words too"]
    assert lines_of("- an item that wraps", 10, markdown=False) == ["- an item", "that wraps"]


def test_text_without_spaces_wraps_anywhere_but_before_what_closes() -> None:
    assert lines_of("中文没有空格,所以换行", 9) == ["中文没有", "空格,所以", "换行"]
    assert lines_of("一二三四。五六「七」", 8) == ["一二三", "四。五六", "「七」"]
    assert lines_of("一二三「四」", 8) == ["一二三", "「四」"]
    assert lines_of("中文English中文", 9) == ["中文", "English中", "文"]


def test_characters_of_many_parts_stay_whole() -> None:
    assert lines_of(FAMILY * 3, 5) == [FAMILY * 2, FAMILY]
    assert lines_of("ab" + HEART * 3, 6) == ["ab" + HEART * 2, HEART]
    assert lines_of(ACCENTED * 5, 2) == [ACCENTED * 2, ACCENTED * 2, ACCENTED]
    assert lines_of("```\n" + FAMILY * 3 + "\n", 5)[1:] == [FAMILY * 2, FAMILY]


def test_what_is_too_long_for_a_row_is_folded() -> None:
    assert lines_of("see https://example.com/x for", 10) == [
        "see",
        "https://ex",
        "ample.com/",
        "x for",
    ]


def test_code_and_tables_are_folded_by_the_terminal() -> None:
    rows = rows_of("```\nshort  line\na longer line of it\n```\n| a | b | c | d |", 10)
    assert [(row.plain, row.end) for row in rows] == [
        ("```", "\n"),
        ("short  lin", ""),
        ("e", "\n"),
        ("a longer l", ""),
        ("ine of it", "\n"),
        ("```", "\n"),
        ("| a | b | ", ""),
        ("c | d |", "\n"),
    ]


def test_what_is_copied_is_what_was_said() -> None:
    """Wide enough, the text comes out as it went in, tabs and unsafe characters apart."""
    assert "\n".join(lines_of(SAMPLE.replace("\t", ""), 300)) + "\n" == SAMPLE.replace("\t", "")
    assert lines_of("\ta\tb\x1b[2Jc\r\n", 80) == ["    a   b[2Jc"]


@pytest.mark.parametrize("width", [1, 2, 3, 7, 10, 30, 31, 80])
@pytest.mark.parametrize("markdown", [True, False])
def test_no_row_is_wider_than_the_screen_and_nothing_is_lost(width: int, markdown: bool) -> None:
    renderer = MarkdownRenderer(markdown, False)
    rows = []
    for character in SAMPLE:
        rows += renderer.feed([Piece(character)], width)
        tail = renderer.tail(width)
        assert "\n" not in tail.plain
        assert tail.cell_len <= width or width == 1
    rows += renderer.flush(width)
    assert all(row.cell_len <= width for row in rows) or width == 1
    said = "".join(SAMPLE.split())
    assert "".join("".join(row.plain.split()) for row in rows) == said


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(
        st.sampled_from([*"ab 1.*_`~#->|\n\t(<", "<think>", "</think>", "```", "中", "。", HEART])
        | st.characters(codec="utf-8"),
        max_size=120,
    ).map("".join)
    | st.just(SAMPLE),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    width=st.integers(1, 40),
    markdown=st.booleans(),
    thinking=st.booleans(),
)
def test_rows_do_not_depend_on_the_pieces(
    text: str, cuts: list[int], width: int, markdown: bool, thinking: bool
) -> None:
    renderer = MarkdownRenderer(markdown, False, thinking)
    rows, at, turn = [], 0, 0
    while at < len(text):
        rows += renderer.feed([Piece(text[at : (at := at + cuts[turn % len(cuts)])])], width)
        assert renderer.tail(width).cell_len <= max(width, 2)
        turn += 1
    rows += renderer.flush(width)
    whole = rows_of(text, width, markdown, thinking=thinking)
    assert list(map(look_of, rows)) == list(map(look_of, whole))


def test_a_new_width_lays_out_only_what_is_not_complete() -> None:
    renderer = MarkdownRenderer(True, False)
    assert renderer.feed([Piece("one two three four")], 40) == []
    assert [row.plain for row in renderer.feed([], 10)] == ["one two"]
    assert renderer.tail(10).plain == "three four"
    assert renderer.feed([], 40) == []
    assert [row.plain for row in renderer.feed([Piece(" five")], 40)] == []
    assert [row.plain for row in renderer.flush(40)] == ["three four five"]


def test_a_narrow_screen_leaves_room_behind_the_hanging_indent() -> None:
    renderer = MarkdownRenderer(True, False)
    renderer.feed([Piece(" " * 20 + "- one two three four five six seven eight")], 40)
    assert renderer.tail(40).plain == " " * 20 + "five six seven eight"
    assert all(row.cell_len <= 10 for row in renderer.feed([], 10))
    assert renderer.tail(10).plain == "     eight"


@pytest.mark.parametrize("text", ["-", "**", "12.", "``", "a *", "</thi", "*****x", "# "])
def test_marks_at_the_end_are_text(text: str) -> None:
    assert lines_of(text, thinking=True) == [text]
    assert lines_of("**</think>" + text, thinking=True) == ["**</think>" + text]


# Markdown.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a **b** c",
            [("a ", ""), ("**", "bold dim"), ("b", "bold"), ("**", "bold dim"), (" c", "")],
        ),
        ("a *b*", [("a ", ""), ("*", "dim italic"), ("b", "italic"), ("*", "dim italic")]),
        ("_b_", [("_", "dim italic"), ("b", "italic"), ("_", "dim italic")]),
        ("`*x*`", [("`", "dim magenta"), ("*x*", "magenta"), ("`", "dim magenta")]),
        ("***b***", [("***", "bold dim italic"), ("b", "bold italic"), ("***", "bold dim italic")]),
        ("# T", [("# ", "bold dim underline"), ("T", "bold underline")]),
        ("### T", [("### ", "bold dim"), ("T", "bold")]),
        ("- x", [("- ", "bold magenta"), ("x", "")]),
        ("12. x", [("12. ", "bold magenta"), ("x", "")]),
        ("> x", [(">", "dim"), (" x", "dim italic")]),
        (
            "重**点**内",
            [("重", ""), ("**", "bold dim"), ("点", "bold"), ("**", "bold dim"), ("内", "")],
        ),
    ],
)
def test_marks_are_kept_and_style_what_they_enclose(
    text: str, expected: list[tuple[str, str]]
) -> None:
    assert styled(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "2 * 3 * 4",
        "2*3*4",
        "snake_case_name and snake_",
        "f(**kwargs) and f(*args)",
        r"\*no\* \_no\_ \`no\`",
        "a * b",
        "____________ and ****************",
        "*****x",
        "#hashtag and # no title",
        "-5 degrees, 3.5 too",
        "1984 was a year",
        "a < b",
    ],
)
def test_marks_that_mean_nothing_style_nothing(text: str) -> None:
    assert styled(text) == [(text, "")]


def test_emphasis_ends_with_its_line() -> None:
    first, second = rows_of("**never closed\nplain", 80)
    assert styles_of(first)[-1] == ("never closed", "bold")
    assert styles_of(second) == [("plain", "")]


def test_code_has_the_colours_of_its_language_over_several_lines() -> None:
    rows = rows_of('```python\ndef f():\n    """Doc\n    string"""\n    return 1\n```\nafter', 80)
    looks = [dict(styles_of(row)) for row in rows]
    assert looks[0] == {"```python": "dim"}
    assert looks[1]["def"] == "magenta"
    assert looks[1]["f"] == "bold"
    # The lexer knows in the fourth line that a string began in the third.
    assert "green" in looks[3]["    string"]
    assert looks[4]["return"] == "magenta"
    assert looks[5] == {"```": "dim"}
    assert rows[6].plain == "after"


def test_unknown_languages_and_lines_like_fences_are_plain() -> None:
    rows = rows_of("~~~nonsense\ndef f(): **x**\n```\n~~~\n**b**\n", 80)
    assert [row.plain for row in rows] == ["~~~nonsense", "def f(): **x**", "```", "~~~", "**b**"]
    assert not rows[1].spans
    assert not rows[2].spans
    assert styles_of(rows[3]) == [("~~~", "dim")]
    assert ("b", "bold") in styles_of(rows[4])


def test_lexers_that_fail_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    from pygments.lexer import ExtendedRegexLexer, RegexLexer

    def broken(*_args: object, **_options: object) -> None:
        raise RuntimeError("a lexer's own trouble")

    monkeypatch.setattr(ExtendedRegexLexer, "get_tokens_unprocessed", broken)
    rows = rows_of("```python\nx = 1\n", 80)
    assert ("1", "cyan") in styles_of(rows[1]), "line by line it still works"
    monkeypatch.setattr(RegexLexer, "get_tokens_unprocessed", broken)
    rows = rows_of("```python\nx = 1\n", 80)
    assert [row.plain for row in rows] == ["```python", "x = 1"]
    assert not rows[1].spans


def test_fences_have_a_reasonable_place() -> None:
    text = " " * 300 + "```\n**b**\n```\n" + " " * 7 + "```\n```" + " " * 300 + "x\n```\n**b**"
    rows = rows_of(text, 400)
    assert "".join("".join(row.plain.split()) for row in rows) == "".join(text.split())
    assert ("b", "bold") in styles_of(rows[1])
    assert ("b", "bold") in styles_of(rows[-1])


def test_a_fence_deep_in_code_does_not_close_it() -> None:
    rows = rows_of("```\nx = 1\n       ```\n**b**\n```\n**c**", 80)
    assert not rows[3].spans
    assert ("c", "bold") in styles_of(rows[5])


def test_three_backticks_around_words_are_code_in_a_line() -> None:
    first, second = rows_of("```x``` *y*\n*z*", 80)
    assert first.plain == "```x``` *y*"
    assert ("y", "italic") in styles_of(first)
    assert ("z", "italic") in styles_of(second)


def test_a_ruler_is_shown_while_it_grows() -> None:
    renderer = MarkdownRenderer(True, False)
    assert [row.plain for row in renderer.feed([Piece("_" * 60)], 40)] == ["_" * 40]


def test_fences_inside_of_items_open_and_close() -> None:
    text = "1. run\n   ```sh\n   ls *.py\n   ```\n   **then**\n- ```\n  x *y*\n  ```\n*z*"
    rows = rows_of(text, 80)
    assert [row.plain for row in rows] == text.split("\n")
    assert ("then", "bold") in styles_of(rows[4])
    assert not rows[6].spans
    assert ("z", "italic") in styles_of(rows[8])


# Sources.


def test_colours_belong_to_the_sources() -> None:
    pieces = [
        Piece("**a "),
        Piece("b** `c`", "context"),
        Piece("\n```python\n"),
        Piece("def", "recycled"),
    ]
    renderer = MarkdownRenderer(True, True)
    rows = renderer.feed(pieces, 80) + renderer.flush(80)
    allowed = {None, Color.parse("cyan"), Color.parse("blue")}
    assert {Style.parse(s).color for row in rows for _, s in styles_of(row)} <= allowed
    assert ("b", "bold cyan") in styles_of(rows[0])
    assert styles_of(rows[2]) == [("def", "blue")]


def test_plain_text_has_no_style_but_the_sources() -> None:
    text = "# *a* **b**\n```python\ndef f()\n"
    assert not any(row.spans for row in rows_of(text, 80, markdown=False))
    renderer = MarkdownRenderer(False, True)
    renderer.feed([Piece("# *a*", "context")], 80)
    assert styles_of(renderer.tail(80)) == [("# *a*", "cyan")]


def test_a_switch_changes_the_unfinished_row_and_what_follows() -> None:
    renderer = MarkdownRenderer(False, False)
    first = renderer.feed([Piece("**a**\n", "context"), Piece("**b**", "context")], 80)
    assert not first[0].spans
    assert not renderer.tail(80).spans
    renderer.markdown = renderer.colours = True
    assert ("b", "bold cyan") in styles_of(renderer.tail(80))
    renderer.markdown = False
    (row,) = renderer.flush(80)
    assert styles_of(row) == [("**b**", "cyan")]


# Reasoning.


def test_reasoning_is_dimmed_with_its_tags() -> None:
    rows = rows_of("<think>\n**Hm**\n</think>\n\nYes", 80)
    for row in rows[:3]:
        assert all("dim" in style for _, style in styles_of(row))
    assert styles_of(rows[4]) == [("Yes", "")]


def test_reasoning_may_have_begun_in_the_prompt_and_tags_may_be_cut() -> None:
    renderer = MarkdownRenderer(True, False, thinking=True)
    rows = renderer.feed([Piece("Hm</th"), Piece("ink"), Piece(">Yes\n")], 80)
    assert [(text, "dim" in style) for text, style in styles_of(rows[0])] == [
        ("Hm</think>", True),
        ("Yes", False),
    ]


def test_what_is_not_certain_yet_is_shown_and_looks_like_its_line() -> None:
    renderer = MarkdownRenderer(True, False, thinking=True)
    renderer.feed([Piece("# Hm **")], 80)
    assert renderer.tail(80).plain == "# Hm **"
    renderer.feed([Piece("b</thi")], 80)
    assert renderer.tail(80).plain == "# Hm **b</thi"
    assert all("dim" in style for _, style in styles_of(renderer.tail(80)))


def test_what_reasoning_left_open_does_not_reach_the_answer() -> None:
    rows = rows_of("<think>\n```python\nx = 1\n</think>\n**yes**", 80)
    assert ("yes", "bold") in styles_of(rows[-1])


@pytest.mark.parametrize("text", ["write `<think>` for", "```\n<think>\nx", "a <thing> b", "<thin"])
def test_other_tags_are_text(text: str) -> None:
    rows = rows_of(text, 80)
    assert "\n".join(row.plain for row in rows) == text
    assert not any("dim" in str(style) for run, style in styles_of(rows[-1]) if run != "`")


# Cost.


@pytest.mark.parametrize(
    "text",
    [SAMPLE * 60, "x" * 40_000, "```python\n" + "(" * 40_000, "中" * 20_000],
)
def test_the_cost_of_a_piece_does_not_grow(text: str) -> None:
    cut = random.Random(0)
    renderer, times, at = MarkdownRenderer(True, False), [], 0
    while at < len(text):
        piece, turn = Piece(text[at : (at := at + cut.randint(1, 8))]), len(times)
        began = time.perf_counter()
        renderer.feed([piece], 60)
        # Between those that count, what takes long is left out of most.
        if not len(text) * 0.25 < at < len(text) * 0.75 or turn % 10 == 0:
            renderer.tail(60)
        times.append(time.perf_counter() - began)
    fifth = len(times) // 5
    first, last = statistics.median(times[:fifth]), statistics.median(times[-fifth:])
    assert last < 2 * first, f"{first * 1e6:.0f} to {last * 1e6:.0f} microseconds"


def test_cells_are_those_of_the_text() -> None:
    renderer = MarkdownRenderer(True, False)
    renderer.feed([Piece(f"{FAMILY}{HEART}中{ACCENTED}")], 80)
    assert renderer.tail(80).cell_len == cell_len(f"{FAMILY}{HEART}中{ACCENTED}") == 7
