"""A reply as styled rows: its text is unchanged, and rows do not depend on the pieces."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.style import Style
from rich.text import Text

from ladecli.events import Piece
from ladecli.view.markdown import MarkdownRenderer
from ladecli.visualize import style_of

FAMILY = "👨\u200d👩\u200d👧\u200d👦"
HEART = "❤\ufe0f"
ACCENTED = "e\u0301"

SAMPLE = f"""Is 2 * 3 the *same* as 3 * 2?
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
| a table | that is | wider than the screen is | folded |
这是**重点**内容,中文没有空格所以必须在宽度处换行。
{FAMILY} {HEART}{HEART} 🇩🇪🇫🇷 👍🏽 caf{ACCENTED} {ACCENTED * 30}
https://example.com/a/very/long/address/that/fits/into/no/row
\ta tab\tand\tanother
~~~
```
~~~
```inline``` code
"""


def rows_of(text: str, width: int = 80, markdown: bool = True, colours: bool = False) -> list[Text]:
    renderer = MarkdownRenderer(markdown, colours)
    rows, _ = renderer.feed([Piece(text)], width)
    return rows + renderer.flush(width)


def lines_of(text: str, width: int = 30, markdown: bool = True) -> list[str]:
    return [row.plain for row in rows_of(text, width, markdown)]


def styles_of(row: Text) -> list[tuple[str, str]]:
    """Return runs of one style, as text and the words of the style."""
    runs: list[tuple[str, str]] = []
    for text, style, _ in row.render(Console(), end=""):
        words = "" if style is None or not style else str(style).replace("none", "")
        if runs and runs[-1][1] == words:
            text = runs.pop()[0] + text
        runs.append((text, words))
    return runs


def test_a_wide_screen_shows_the_text_as_it_is() -> None:
    plain = SAMPLE.replace("\t", "")
    assert "".join(row.plain + row.end for row in rows_of(plain, 100)) == plain


@pytest.mark.parametrize(
    ("text", "width", "rows"),
    [
        ("> quoted words too", 12, ["> quoted", "  words too"]),
        ("  10. nested, and `as long`", 16, ["  10. nested,", "      and `as", "      long`"]),
        ("```\na line of code", 6, ["```", "a line", " of co", "de"]),
        ("中文没有空格,所以换行", 9, ["中文没有", "空格,所以", "换行"]),
        (FAMILY * 3, 5, [FAMILY * 2, FAMILY]),
        ("ab" + HEART * 3, 6, ["ab" + HEART * 2, HEART]),
        (ACCENTED * 5, 2, [ACCENTED * 2, ACCENTED * 2, ACCENTED]),
        ("see https://example.com/x for", 10, ["see", "https://ex", "ample.com/", "x for"]),
        ("words   \nx", 6, ["words ", "x"]),
        ("\ta\tb\x1b[2Jc\r\n", 80, ["    a   b[2Jc"]),
    ],
)
def test_rows(text: str, width: int, rows: list[str]) -> None:
    assert lines_of(text, width) == rows


@settings(max_examples=60, deadline=None)
@example(text=SAMPLE, cuts=[3, 1, 7], width=11, markdown=True)
@example(text=SAMPLE, cuts=[9], width=37, markdown=True)
@given(
    text=st.lists(
        st.sampled_from([*"ab 1.*_`~#->|\n\t(<", "```", "中", "。", HEART])
        | st.characters(codec="utf-8"),
        max_size=120,
    ).map("".join)
    | st.lists(st.sampled_from(SAMPLE.splitlines(keepends=True)), max_size=6).map("".join),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    width=st.integers(1, 40),
    markdown=st.booleans(),
)
def test_rows_fit_whatever_the_pieces(text: str, cuts: Any, width: int, markdown: bool) -> None:
    renderer = MarkdownRenderer(markdown, False)
    rows, at, turn = list[Text](), 0, 0
    while at < len(text):
        piece = Piece(text[at : (at := at + cuts[turn % len(cuts)])])
        complete, unfinished = renderer.feed([piece], width)
        assert unfinished.cell_len <= max(width, 2)
        rows, turn = rows + complete, turn + 1
    rows += renderer.flush(width)
    assert all(row.cell_len <= max(width, 2) for row in rows)
    whole = rows_of(text, width, markdown)
    assert [(row.plain, row.end) for row in rows] == [(row.plain, row.end) for row in whole]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a **b** c",
         [("a ", ""), ("**", "bold dim"), ("b", "bold"), ("**", "bold dim"), (" c", "")]),
        ("`*x*`", [("`", "dim magenta"), ("*x*", "magenta"), ("`", "dim magenta")]),
        ("***b***", [("***", "bold dim italic"), ("b", "bold italic"), ("***", "bold dim italic")]),
        ("**a *b***",
         [("**", "bold dim"), ("a ", "bold"), ("*", "bold dim italic"), ("b", "bold italic"),
          ("*", "bold dim italic"), ("**", "bold dim")]),
        ("### T", [("### ", "bold dim"), ("T", "bold")]),
        ("- x", [("- ", "bold magenta"), ("x", "")]),
        ("> x", [("> ", "dim"), ("x", "dim italic")]),
        ("重**点**内",
         [("重", ""), ("**", "bold dim"), ("点", "bold"), ("**", "bold dim"), ("内", "")]),
        ("**never closed", [("**", "bold dim"), ("never closed", "bold")]),
    ],
)  # fmt: skip
def test_marks_are_kept_and_style_what_they_enclose(text: str, expected: Any) -> None:
    first, second = rows_of(f"{text}\nplain")
    assert styles_of(first) == expected
    assert styles_of(second) == [("plain", "")], "it ends with its line"


@pytest.mark.parametrize(
    "text",
    [
        *("2 * 3 * 4", "2*3*4", "snake_case_name and snake_", "f(**kwargs) and f(*args)"),
        *(r"\*no\* \_no\_ \`no\`", "____________ and ****************", "*****x", "a **"),
        *("#hashtag and # no title", "-5 degrees, 3.5 too", "1984 was a year", "a < b", "a <x>"),
    ],
)
def test_marks_without_meaning_have_no_style(text: str) -> None:
    (row,) = rows_of(text)
    assert styles_of(row) == [(text, "")]


@pytest.mark.parametrize(
    ("text", "italic"),
    [
        (
            "~~~nonsense\ndef f(): *x*\n```\n~~~\n*b*",
            [4],
        ),  # the other kind of fence is part of the code
        ("````\n```\n*a*\n````\n*b*", [4]),
        ("1. run\n   ```sh\n   *ls*\n   ```\n   *then*\n- ```\n  *y*\n  ```\n*z*", [4, 8]),
        ("```x``` *y*\n*z*", [0, 1]),  # inline code opens no fence
    ],
)
def test_fences_open_and_close(text: str, italic: list[int]) -> None:
    rows = rows_of(text)
    assert "\n".join(row.plain for row in rows) == text
    styles = [" ".join(style for _, style in styles_of(row)) for row in rows]
    assert [number for number, style in enumerate(styles) if "italic" in style] == italic


def test_colours_belong_to_the_sources() -> None:
    pieces = [Piece("**a "), Piece("b** `c`", "context"), Piece("\n```python\n")]
    pieces.append(Piece("def", "recycled"))
    renderer = MarkdownRenderer(True, True)
    rows = [*renderer.feed(pieces, 80)[0], *renderer.flush(80)]
    colours = {Style.parse(style).color for row in rows for _, style in styles_of(row)}
    context, recycled = style_of("context"), style_of("recycled")
    assert {colour.name for colour in colours if colour} == {context, recycled}
    assert ("b", f"bold {context}") in styles_of(rows[0])
    assert styles_of(rows[2]) == [("def", recycled)]


BOMBS = {
    "one line": "a" * 100_000,
    "words": "word " * 15_000,
    "quotes": "> " * 15_000 + "x",
    "stars": "*" * 50_000 + "x" + "*" * 50_000,
    "code": "```python\n" + "(" * 50_000 + "\n```\n" + "`" * 50_000,
    "combining": "e" + "\u0301" * 100_000,
    "wide": "你" * 10_000,
}


@pytest.mark.timeout(60)  # a hundred times the usual time
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_text_that_is_hard_to_lay_out(bomb: str) -> None:
    """The text is complete and the same for any pieces, and the cost grows linearly."""
    text = BOMBS[bomb]
    shown = []
    for size in (20_000, 997):
        renderer = MarkdownRenderer(True, True)
        parts = (text[start : start + size] for start in range(0, len(text), size))
        rows = [row for part in parts for row in renderer.feed([Piece(part)], 80)[0]]
        shown.append([row.plain for row in rows + renderer.flush(80)])
    assert shown[0] == shown[1]
    assert re.sub(r"\s", "", "".join(shown[0])) == re.sub(r"\s", "", text)
