"""The live view of a reply, on a terminal with a scrollback."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pyte
import pytest
from rich.console import Console

from ladecli.decoder.events import Started
from ladecli.events import Piece, PromptRead, TextEvent, TextStep
from ladecli.metrics import Tally
from ladecli.view.live import LiveView
from ladecli.view.markdown import MarkdownRenderer

HEIGHT = 6


class Terminal:
    """A view with its screen, and a clock that the test moves."""

    def __init__(self, width: int = 40) -> None:
        self._screen_of(width)
        self.written = io.StringIO()
        options: Any = {"force_terminal": True, "legacy_windows": False}
        self.console = Console(file=self.written, width=width, height=HEIGHT, **options)
        self.now, self.tally = 0.0, Tally()
        view: Any = (self.console, self.tally, MarkdownRenderer(True, False))
        self.view = LiveView(*view, max_context=2048, clock=lambda: self.now)
        self._stream.feed("$ lade\r\n")

    def _screen_of(self, width: int) -> None:
        self.screen = pyte.HistoryScreen(width, HEIGHT, history=10_000)
        self._stream = pyte.Stream(self.screen)

    def take(self, event: TextEvent) -> None:
        self.tally.add(event)
        self.view.show(event)

    def show(self, *events: TextEvent) -> list[str]:
        """Show events, each late enough to be drawn."""
        for event in events:
            self.now += 10
            self.take(event)
            self.update()
        return self.lines

    def say(self, text: str, size: int = 5, source: str | None = None) -> list[str]:
        return self.show(*(step(text[at : at + size], source) for at in range(0, len(text), size)))

    def redraw(self) -> list[str]:
        """Show an event without text, late enough to be drawn."""
        self.now += 10
        self.view.show(PromptRead(1, 1, 0.1))
        self.update()
        return self.lines

    def resize(self, width: int) -> None:
        """Make the screen narrower or wider; like a terminal, wrap long lines again."""
        before, rows = self.screen, self._rows()
        at = len(before.history.top) + before.cursor.y
        while len(rows) > at + 1 and not rows[-1]:
            rows.pop()
        self.console.width = width
        self._screen_of(width)
        self._stream.feed("\r\n".join(rows))

    def finish(self) -> list[str]:
        self.view.finish()
        self.update()
        return self.lines

    def update(self) -> bool:
        """Process the output; return True if there was any."""
        text = self.written.getvalue()
        self.written.seek(0)
        self.written.truncate()
        self._stream.feed(text.replace("\n", "\r\n"))
        return bool(text)

    def _rows(self) -> list[str]:
        screen = self.screen
        rows = [*screen.history.top, *(screen.buffer[at] for at in range(HEIGHT))]
        return ["".join(row[at].data for at in range(screen.columns)).rstrip() for row in rows]

    @property
    def lines(self) -> list[str]:
        """Return the scrollback and the screen, without the empty rows at the end."""
        return "\n".join(self._rows()).rstrip().split("\n")


def step(text: str, source: str | None = None, tokens: int = 2) -> TextStep:
    return TextStep((Piece(text, source),), tuple(range(tokens)), 8, 7, 0.01)


def rows_of(text: str, width: int) -> list[str]:
    renderer = MarkdownRenderer(True, False)
    rows, _ = renderer.feed([Piece(text)], width)
    return [row.plain.rstrip() for row in rows + renderer.flush(width)]


ROW = "Paragraph {} says *something* that takes more than one row of the screen.\n"
PROSE = "\n".join(map(ROW.format, range(20)))


@pytest.mark.parametrize(
    ("width", "growing", "grown"),
    [
        (30, ["A reply that grows", "2.00 tokens per step ▂"],
         ["A reply that grows word by", "word", "2.00 tokens per step ▂▂"]),
        (80, ["A reply that grows", "2.00 tokens per step · 200.0 tok/s · 1904/2048 ▂"],
         ["A reply that grows word by word",
          "2.00 tokens per step · 200.0 tok/s · 1906/2048 ▂▂"]),
    ],
)  # fmt: skip
def test_an_unfinished_reply(width: int, growing: list[str], grown: list[str]) -> None:
    terminal = Terminal(width)
    assert terminal.show(Started(0, 1900), PromptRead(512, 1900, 0.1))[1:] == [
        *("", "reading the prompt 512/1900")
    ]
    assert terminal.say("A reply that grows", 9) == ["$ lade", *growing]
    assert terminal.say(" word by word", 20) == ["$ lade", *grown]
    assert terminal.finish() == ["$ lade", *grown[:-1]]
    assert (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, len(grown))


@pytest.mark.parametrize(("width", "size"), [(12, 3), (30, 7), (80, 400)])
def test_a_long_reply_is_in_the_scrollback_complete_and_once(width: int, size: int) -> None:
    code = "\n```python\n" + "x = 'a line of code that is folded' + 1\n" * 4 + "```\n"
    text = PROSE + code + "中文没有空格,所以必须在宽度处换行。" * 4 + "😀 emoji 👍 too " * 6
    terminal = Terminal(width)
    before = terminal.say(text, size)
    shown = terminal.finish()
    assert shown == ["$ lade", *rows_of(text, width)]
    assert "".join("".join(shown[1:]).split()) == "".join(text.split())
    assert before[:-2] == shown[: len(before) - 2], "complete rows stay"


@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_the_last_line_is_ended_once(ending: str) -> None:
    terminal = Terminal()
    terminal.say("one\ntwo" + ending, 3)
    terminal.finish()
    assert terminal.finish() == ["$ lade", "one", "two"]
    assert terminal.screen.cursor.y == 3 + max(len(ending) - 1, 0)


@pytest.mark.parametrize(("cut", "to"), [(300, 13), (317, 25), (351, 60), (402, 100), (419, 13)])
def test_a_resize_loses_and_repeats_nothing(cut: int, to: int) -> None:
    terminal = Terminal(40)
    terminal.say(PROSE[:cut], 50)
    terminal.resize(to)
    terminal.redraw()
    terminal.say(PROSE[cut:], 50)
    # Words that were on the screen may be broken.
    assert "".join("".join(terminal.finish()[1:]).split()) == "".join(PROSE.split())


def refreshes(terminal: Terminal, events: Iterable[TextEvent], seconds: float) -> int:
    """Return the number of refreshes if an event comes every `seconds`."""
    drawn = 0
    for event in events:
        terminal.now += seconds
        terminal.take(event)
        drawn += terminal.update()
    return drawn


def test_the_first_text_is_drawn_at_once_and_then_20_times_a_second() -> None:
    terminal = Terminal()
    first = [Started(0, 10), step(""), step("first\n" * 5)]
    assert [refreshes(terminal, [event], 1e-6) for event in first] == [1, 0, 1]
    assert refreshes(terminal, [step("x ")] * 1000, 1e-3) == pytest.approx(20, abs=2)
