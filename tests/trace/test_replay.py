"""Replay: every kind of stream, and the steps on the whole screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ladecli.events import TextStep
from tests.support.terminal import Terminal
from tests.support.traces import events_of, record, small_trace, write


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Return the file of a trace of three steps."""
    return str(write(tmp_path / "small", small_trace()))


def test_a_pipe_gets_the_text_and_nothing_else(lade: Any, tmp_path: Path) -> None:
    result = lade("replay", str(record(tmp_path / "x", "all sources")))
    steps = [event for event in events_of("all sources") if isinstance(event, TextStep)]
    text = "".join(piece.text for step in steps for piece in step.pieces)
    assert result.code == 0
    assert result.out == text + "\n" * (not text.endswith("\n"))
    assert f" tokens in {len(steps)} steps · " in result.err
    assert "\x1b" not in result.out + result.err


def test_steps_on_a_pipe(lade: Any, small: str) -> None:
    out = lade("replay", small, "--step").out
    titles = [line[:12] for line in out.splitlines() if line.startswith(" step")]
    assert titles == [f" step {number} of 3" for number in (1, 2, 3)]
    assert "\x1b" not in out


def test_a_trace_without_an_end_is_reported(lade: Any, small: str) -> None:
    path = Path(small)
    path.write_bytes(path.read_bytes()[:-30])
    result = lade("replay", small)
    assert (result.code, result.out) == (0, " cat sat on the\n")
    assert result.err.startswith(f"lade: the trace {small} has no end")


RIGHT, LEFT, PAGE_UP, PAGE_DOWN = "\x1b[C", "\x1b[D", "\x1b[5~", "\x1b[6~"


def wait_for_step(terminal: Terminal, number: int, count: int) -> None:
    """Wait until the title names this step."""
    terminal.wait(lambda _: terminal.rows()[0].startswith(f" step {number} of {count} "))


@pytest.mark.slow
def test_walking_through_the_steps(tmp_path: Path) -> None:
    path = record(tmp_path / "x", "paper")
    count = sum(isinstance(event, TextStep) for event in events_of("paper"))
    with Terminal("replay", str(path), "--step") as terminal:
        wait_for_step(terminal, 1, count)
        assert "W=5 N=4" in terminal.text()
        assert "filling, 1 row so far" in terminal.text()
        walk = [(RIGHT, 2), (" ", 3), ("\r", 4), (LEFT, 3), ("b", 2), (PAGE_DOWN, 12)]
        walk += [(PAGE_UP, 2), ("G", count), (RIGHT, count), ("g", 1), (LEFT, 1)]
        for key, number in walk:
            terminal.send(key)
            wait_for_step(terminal, number, count)
        terminal.resize(44, 16)
        terminal.wait(lambda _: terminal.rows()[15].startswith(" q leave"))
        wait_for_step(terminal, 1, count)
        terminal.send("q")
        assert terminal.close() == 0
        assert terminal.raw.count(b"\x1b[?1049h") == 1


@pytest.mark.slow
@pytest.mark.parametrize("key", ["\x1b", "\x03"])
def test_keys_that_leave_the_inspector(key: str, small: str) -> None:
    with Terminal("replay", small, "--step", "--color", "never") as terminal:
        wait_for_step(terminal, 1, 3)
        assert {cell.fg for cell in terminal.screen.buffer[0].values()} == {"default"}
        terminal.send(key)
        assert terminal.close() == 0
