"""Tables, lines and progress: on a screen as wide as it is, on a pipe whole, when closed quiet."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ladecli.view import screen, terminal
from ladecli.view.screen import Column, Table
from ladecli.view.terminal import Terminal
from tests.support import processes
from tests.support.terminal import Screen
from tests.support.traces import record

COLUMNS = (
    Column("", number=False),
    Column("weight", note="weight: in grams"),
    Column("price", weight=1, note="price: for one"),
    Column("from where", weight=2, number=False, note="from where: the last port"),
)
ROWS = (("apple", "150", "0.40", "a port with a long name"), ("[b]pear", "170", "-", "-"))
TABLE = Table("Fruit", COLUMNS, ROWS, ("as of today",))


def printed(stream: io.StringIO, width: int) -> tuple[str, set[str]]:
    console = Console(file=stream, width=width, color_system=None)
    gone = screen.print_table(TABLE, console if stream.isatty() else Terminal().console(stream))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()), gone


@pytest.mark.parametrize(
    ("width", "head", "gone", "note"),
    [
        (80, "weight price from where", set(), "weight: in grams; price: for one; from where"),
        (30, "weight price", {"from where"}, "weight: in grams; price: for"),
        (20, "weight", {"from where", "price"}, "weight: in grams"),
    ],
)
def test_columns_that_fit_are_shown(width: int, head: str, gone: set[str], note: str) -> None:
    shown, missing = printed(Screen(), width)
    lines = shown.splitlines()
    assert missing == gone
    assert lines[0] == "Fruit"
    assert lines[1].split() == head.split()
    assert note in shown
    assert max(map(len, lines)) <= width


def test_a_pipe_has_whole_rows_whatever_the_width() -> None:
    shown, missing = printed(io.StringIO(), 20)
    assert not missing
    assert re.search(r"^apple +150 +0\.40  a port with a long name$", shown, re.MULTILINE)
    assert re.search(r"^\[b\]pear +170 +- +-$", shown, re.MULTILINE)


ANSWER = "generate -p the -n 99 --ignore-eos"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *("--help", "config", "doctor", "replay --step", "replay"),
        *(f"{ANSWER} --json", f"{ANSWER} --no-stats"),
    ],
)
def test_a_closed_pipe_ends_quietly(command: str, tmp_path: Path) -> None:
    trace = [str(record(tmp_path / "a.trace", "paper"))] if "replay" in command else []
    read, write = os.pipe()
    os.close(read)
    with tempfile.TemporaryFile() as err:
        child = processes.Forked([*command.split(), *trace], (0, write, err.fileno()), os.environ)
        os.close(write)
        assert child.wait() == 0
        err.seek(0)
        errors = err.read()
    assert b"Broken" not in errors
    assert b"Traceback" not in errors


def test_a_bar_is_drawn_seldom_on_screens_only_and_leaves_nothing(monkeypatch: Any) -> None:
    def drawn(stream: io.StringIO, every: float, quiet: bool = False) -> str:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(terminal, "DRAWN_EVERY", every)
        threads = threading.active_count()
        with Terminal(quiet=quiet).bar("measuring", 8) as advance:
            assert threading.active_count() == threads
            for more in (2, 1, 0, 5):
                advance(more)
        return stream.getvalue()

    always = drawn(Screen(), every=0.0)
    assert re.findall(r"\d+%", always)[:5] == ["0%", "25%", "38%", "38%", "100%"]
    assert always.endswith("\x1b[1A\x1b[2K")
    assert "25%" not in drawn(Screen(), every=60.0)
    assert drawn(Screen(), every=0.0, quiet=True) == drawn(io.StringIO(), every=0.0) == ""
