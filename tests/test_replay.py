"""Replay: the recorded pace, every kind of stream, and the steps on the whole screen."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest

from ladecli.decoder.events import Started
from ladecli.errors import INTERRUPTED, LadeError, UsageError
from ladecli.events import Ended, Piece, PromptRead, TextEvent, TextStep
from ladecli.inspect.browse import Browser
from ladecli.inspect.trace import TraceWriter
from ladecli.replay import play, run
from ladecli.views import Together

from .recording import WORDS, events_of, record, small_trace

EVENTS: list[TextEvent] = [
    Started(0, 600),
    PromptRead(512, 600, 0.25),
    TextStep((Piece("a"),), (1,), 1, 0, 0.5),
    TextStep((Piece("b"),), (2,), 1, 0, 1.0),
    Ended("length"),
]


class Clock:
    """A time that passes only where somebody sleeps, or showing takes long."""

    def __init__(self, showing: float = 0.0) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.seen: list[tuple[float, TextEvent]] = []
        self.finished = 0
        self._showing = showing

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def show(self, event: TextEvent) -> None:
        self.seen.append((self.now - 100.0, event))
        self.now += self._showing

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize(("speed", "unit"), [(1.0, 1.0), (4.0, 0.25), (0.5, 2.0)])
def test_events_come_when_they_came(speed: float, unit: float) -> None:
    clock = Clock()
    assert play(EVENTS, clock, speed, sleep=clock.sleep, clock=clock)
    assert clock.seen == [
        (0.0, EVENTS[0]),
        (0.25 * unit, EVENTS[1]),
        (0.75 * unit, EVENTS[2]),
        (1.75 * unit, EVENTS[3]),
        (1.75 * unit, EVENTS[4]),
    ]
    assert clock.finished == 1


def test_showing_is_part_of_the_time() -> None:
    clock = Clock(showing=0.125)
    play(EVENTS, clock, 1.0, sleep=clock.sleep, clock=clock)
    assert [at for at, _ in clock.seen] == [0.0, 0.25, 0.75, 1.75, 1.875]


def test_infinite_speed_does_not_sleep() -> None:
    clock = Clock()
    play(EVENTS, clock, float("inf"), sleep=clock.sleep, clock=clock)
    assert clock.slept == []


def test_ctrl_c_ends_it_and_the_view() -> None:
    clock = Clock()
    ended = play(
        EVENTS, clock, 1.0, cancelled=lambda: clock.now >= 100.5, sleep=clock.sleep, clock=clock
    )
    assert not ended
    assert (len(clock.seen), clock.finished) == (2, 1)
    assert clock.now == 100.5  # it did not sleep on


@pytest.fixture
def small(tmp_path: Path) -> str:
    trace = small_trace()
    writer = TraceWriter(tmp_path / "small.jsonl", trace.header, WORDS.__getitem__)
    for event in trace.events:
        writer.show(event)
    writer.finish()
    return str(tmp_path / "small.jsonl")


def test_a_pipe_gets_the_text_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record(tmp_path / "x.jsonl", "all sources")
    assert run(str(path), speed=1e9) == 0
    captured = capsys.readouterr()
    steps = [event for event in events_of("all sources") if isinstance(event, TextStep)]
    text = "".join(piece.text for step in steps for piece in step.pieces)
    assert captured.out == text + "\n" * (not text.endswith("\n"))
    assert f" tokens in {len(steps)} steps · " in captured.err
    assert "\x1b" not in captured.out + captured.err


def test_colours_on_demand(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(small, speed=1e9, color="always") == 0
    assert "\x1b[32m sat\x1b[0m\x1b[36m on\x1b[0m the" in capsys.readouterr().out


def test_steps_without_a_terminal(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(small, step=True) == 0
    captured = capsys.readouterr()
    assert [line[:13] for line in captured.out.splitlines() if line.startswith(" step")] == [
        " step 1 of 3 ",
        " step 2 of 3 ",
        " step 3 of 3 ",
    ]
    assert "\x1b" not in captured.out
    assert captured.err == ""


def test_a_trace_without_an_end_is_said(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(small)
    path.write_bytes(path.read_bytes()[:-30])
    assert run(small, speed=1e9) == 0
    captured = capsys.readouterr()
    assert captured.out == " cat sat on the\n"
    assert captured.err.startswith(
        f"lade: the trace {small} has no end: the program was stopped while it recorded\n"
    )


def test_a_trace_without_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TraceWriter(tmp_path / "x", small_trace().header, str).finish()
    assert run(str(tmp_path / "x"), step=True) == 0
    assert capsys.readouterr().err.endswith("lade: the trace holds no steps\n")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "zero": ({"speed": 0.0}, "speed must be above 0, not 0"),
    "negative": ({"speed": -2.0}, "speed must be above 0, not -2"),
    "nan": ({"speed": float("nan")}, "speed must be above 0, not nan"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(case: str, small: str) -> None:
    options, message = BAD[case]
    with pytest.raises(UsageError) as caught:
        run(small, **options)
    assert str(caught.value) == message


# On a terminal.

PROGRAM = "import sys; from ladecli.replay import run; sys.exit(run({path!r}, **{options!r}))"


class Terminal:
    """A program on a screen that can be read."""

    def __init__(self, path: str, columns: int = 80, rows: int = 24, **options: Any) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        environment = os.environ | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        environment.pop("COLUMNS", None)
        self.raw = b""
        self.child = pexpect.spawn(
            sys.executable,
            ["-c", PROGRAM.format(path=path, options=options)],
            dimensions=(rows, columns),
            env=environment,
            timeout=30,
        )

    def text(self) -> str:
        """The screen as it is now."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, wanted: str) -> str:
        """The screen as soon as it holds `wanted`."""
        end = time.monotonic() + 30
        while wanted not in self.text():
            assert time.monotonic() < end, f"no {wanted!r} on:\n{self.text()}"
            self._read()
        return self.text()

    def _read(self) -> bool:
        try:
            data = self.child.read_nonblocking(65536, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True

    def end(self) -> int:
        """The exit code, when the program has ended."""
        while self._read():
            pass
        self.child.close()
        return int(self.child.exitstatus)


@pytest.fixture
def terminal() -> Iterator[Any]:
    made: list[Terminal] = []

    def start(*arguments: Any, **options: Any) -> Terminal:
        made.append(Terminal(*arguments, **options))
        return made[-1]

    yield start
    for one in made:
        one.child.close(force=True)


FOOTER = " ← → step · PgUp PgDn ten · g G ends · ? help · q leave"


def footer(number: int, count: int) -> str:
    """The last line of a screen that is 80 cells wide."""
    return "\n" + FOOTER + f"step {number} of {count}".rjust(79 - len(FOOTER))


RIGHT, LEFT, PAGE_UP, PAGE_DOWN = "\x1b[C", "\x1b[D", "\x1b[5~", "\x1b[6~"
RED = "\x1b[31m"  # no key, but what somebody may paste


def test_walking_through_the_steps(terminal: Any, tmp_path: Path) -> None:
    path = record(tmp_path / "x.jsonl", "paper")
    count = len([event for event in events_of("paper") if isinstance(event, TextStep)])
    program = terminal(str(path), step=True)
    screen = program.wait_for(f"step 1 of {count}")
    assert "W=5 N=4" in screen
    assert "filling: 1 row so far" in screen
    walk = [
        (RED, 1), (RIGHT, 2), (" ", 3), ("n", 4), ("\r", 5), (LEFT, 4), ("p", 3), ("b", 2),
        (PAGE_DOWN, 12), (PAGE_UP, 2), (PAGE_UP, 1), ("G", count), (RIGHT, count), ("g", 1),
        (LEFT, 1), ("\x1b[F", count), ("\x1b[H", 1),
    ]  # fmt: skip
    for key, number in walk:
        program.child.send(key)
        program.wait_for(footer(number, count))
    program.child.send("?")
    assert "the next step" in program.wait_for("this help, and back")
    program.child.send("?")
    program.wait_for("filling: 1 row so far")
    program.child.send("q")
    assert program.end() == 0
    assert program.raw.count(b"\x1b[?1049h") == program.raw.count(b"\x1b[?1049l") == 1
    assert program.raw.rindex(b"\x1b[?25h") > program.raw.rindex(b"\x1b[?25l")


@pytest.mark.parametrize("key", ["q", "\x1b", "\x03"])
def test_ways_to_leave(key: str, terminal: Any, small: str) -> None:
    program = terminal(small, step=True)
    program.wait_for("step 1 of 3")
    program.child.send(key)
    assert program.end() == 0


def test_a_screen_that_changes_its_size(terminal: Any, small: str) -> None:
    program = terminal(small, step=True)
    program.wait_for("step 1 of 3")
    program.child.send("n")
    program.wait_for("3 tokens · width 12 · 30.0 ms · 2.00 tokens per step so far")
    program.wait_for(footer(2, 3))
    program.screen.resize(20, 44)
    program.child.setwinsize(20, 44)
    screen = program.wait_for("\n ← → · ? help · q leave         step 2 of 3")
    assert all(len(line) <= 44 for line in screen.splitlines())
    program.child.send("q")
    assert program.end() == 0


def test_the_figures_stay_on_a_low_screen(terminal: Any, small: str) -> None:
    program = terminal(small, 80, 12, step=True)
    program.wait_for("step 1 of 3")
    program.child.send("n")
    program.wait_for("\n3 tokens · width 12")
    screen = program.wait_for(footer(2, 3)).splitlines()
    assert screen[-2].startswith("3 tokens · width 12")


def test_no_colours_where_none_are_wanted(terminal: Any, small: str) -> None:
    for color, coloured in (("never", False), ("auto", True)):
        program = terminal(small, step=True, color=color)
        program.wait_for("step 1 of 3")
        program.child.send("n")
        program.wait_for(" step 2 of 3")
        program.child.send("q")
        program.end()
        assert (b"\x1b[0;32m" in program.raw) == coloured


def test_ctrl_c_while_playing(terminal: Any, small: str) -> None:
    program = terminal(small, speed=0.02)
    program.wait_for(" cat")
    os.kill(program.child.pid, signal.SIGINT)
    assert program.end() == INTERRUPTED
    assert "1 token in 1 step" in program.text()
    assert b"Traceback" not in program.raw


def test_the_browser_stays_within_the_trace() -> None:
    browser = Browser(small_trace(), coloured=False)
    for number, shown in ((0, 1), (-5, 1), (2, 2), (99, 3)):
        browser.go(number)
        assert browser.number == shown
    assert len(browser.screen(80, 12).splitlines()) <= 12
    for width in range(10, 90):
        assert len(browser.footer(width)) <= max(width, len("step 3 of 3 "))


def test_playing_needs_no_torch(small: str) -> None:
    code = (
        f"import sys; from ladecli import replay; replay.run({small!r}, speed=1e9);"
        f"replay.run({small!r}, step=True); import ladecli.inspect.browse, ladecli.export;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_what_stdout_is_decides(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    run(small, speed=1e9)
    assert stream.getvalue() == " cat sat on the\n"


def test_all_views_are_finished_whatever_happens() -> None:
    class Breaks(Clock):
        def finish(self) -> None:
            super().finish()
            raise LadeError(f"no {views.index(self)}")

    views = Breaks(), Clock(), Breaks()
    together = Together(*views)
    together.show(EVENTS[0])
    with pytest.raises(LadeError, match=r"^no 0; no 2$"):
        together.finish()
    assert [(len(view.seen), view.finished) for view in views] == [(1, 1)] * 3
