"""What is printed on screens and on pipes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ladecli import screen
from ladecli.table import Column, Table

TABLE = Table(
    "Fruit",
    (
        Column("", number=False),
        Column("weight", note="weight: in grams"),
        Column("price", weight=1, note="price: for one"),
        Column("from where", weight=2, number=False, note="from where: the last port"),
    ),
    (("apple", "150", "0.40", "a port with a long name"), ("[b]pear", "170", "-", "-")),
    ("as of today",),
)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO, width: int, colours: bool = False) -> tuple[list[str], set[str]]:
    console = Console(file=stream, width=width, force_terminal=colours)
    gone = screen.print_table(TABLE, console)
    return stream.getvalue().splitlines(), gone


@pytest.mark.parametrize(
    ("width", "head", "gone", "note"),
    [
        (80, ["weight", "price", "from", "where"], set(),
         "weight: in grams; price: for one; from where: the last port"),
        (30, ["weight", "price"], {"from where"}, "weight: in grams; price: for"),
        (20, ["weight"], {"from where", "price"}, "weight: in grams"),
        (4, None, {"from where", "price"}, None),
    ],
)  # fmt: skip
def test_a_screen_has_the_columns_that_it_has_room_for(
    width: int, head: list[str] | None, gone: set[str], note: str | None
) -> None:
    lines, missing = printed(Screen(), width)
    assert missing == gone
    if head is not None:
        assert lines[0] == "Fruit"
        assert lines[1].split() == head
        assert note in [line.rstrip() for line in lines]
        assert max(map(len, lines)) <= width


def test_of_columns_that_weigh_the_same_the_last_goes_first() -> None:
    columns = (Column("", number=False), Column("first", weight=1), Column("second", weight=1))
    stream = Screen()
    gone = screen.print_table(Table("", columns, (("a", "1", "2"),)), Console(file=stream, width=8))
    assert gone == {"second"}


@pytest.mark.parametrize("colours", [False, True])
def test_a_pipe_has_whole_rows_whatever_the_width(colours: bool) -> None:
    lines, missing = printed(io.StringIO(), 20, colours)
    assert not missing
    assert any("150   0.40  a port with a long name" in line for line in lines)
    assert any("[b]pear" in line for line in lines)
    assert not any(line.endswith(" ") for line in lines)
    assert any("\x1b" in line for line in lines) is colours


@pytest.mark.parametrize(
    ("stream", "width", "encoding", "draws"),
    [
        (Screen, 40, "utf-8", True), (Screen, 39, "utf-8", False), (io.StringIO, 9, "utf-8", True),
        (Screen, 40, "latin-1", False),
    ],
)  # fmt: skip
def test_plots_need_room_and_dots(
    stream: type[io.StringIO], width: int, encoding: str, draws: bool
) -> None:
    class Stream(stream):
        @property
        def encoding(self) -> str:
            return encoding

    console = Console(file=Stream(), width=width)
    assert screen.draws(console, 40) is draws


def test_columns_without_anything_are_left_out_with_their_notes() -> None:
    rows = tuple((row[0], "-", row[2], "-") for row in TABLE.rows)
    found = Table("", TABLE.columns, rows, TABLE.notes).without_empty()
    assert [column.title for column in found.columns] == ["", "weight", "price"]
    assert found.rows[0] == ("apple", "-", "0.40")
    assert found.footnotes == ("weight: in grams; price: for one", "as of today")
