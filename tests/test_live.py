"""What a person sees while a reply comes, on a terminal that keeps its scrollback."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyte
import pytest
from rich.console import Console

from ladecli.decoder.events import Started
from ladecli.events import Ended, Piece, PromptRead, TextEvent, TextStep
from ladecli.live import LiveView
from ladecli.markdown import MarkdownRenderer
from ladecli.visualize import ViewState

HEIGHT = 6


@dataclass
class Clock:
    """Time that passes only when told to, but for what each reading takes."""

    now: float = 0.0
    reading: float = 0.0

    def __call__(self) -> float:
        self.now += self.reading
        return self.now


@dataclass
class Writes(io.StringIO):
    """Counts writes and keeps what was not looked at yet."""

    parts: list[str] = field(default_factory=list)

    def write(self, text: str) -> int:
        self.parts.append(text)
        return len(text)


class Terminal:
    """A view and the screen that it draws on."""

    def __init__(
        self,
        width: int = 40,
        *,
        markdown: bool = True,
        colours: bool = False,
        thinking: bool = False,
        no_color: bool = False,
        state: ViewState | None = None,
    ) -> None:
        self.screen = pyte.HistoryScreen(width, HEIGHT, history=10_000)
        self._stream = pyte.Stream(self.screen)
        self.writes = Writes()
        self.console = Console(
            file=self.writes,
            width=width,
            height=HEIGHT,
            force_terminal=True,
            color_system="standard",
            no_color=no_color,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self.clock = Clock()
        self.view = LiveView(
            self.console,
            state or ViewState(max_context=2048),
            MarkdownRenderer(markdown, colours, thinking),
            clock=self.clock,
        )
        self._widest = width
        self._stream.feed("$ lade\r\n")

    def show(self, *events: TextEvent) -> None:
        """Events, each late enough to be drawn."""
        for event in events:
            self.clock.now += 10
            self.view.show(event)
            self._update()

    def say(self, text: str, size: int = 5, source: str | None = None) -> None:
        for at in range(0, len(text), size):
            self.show(step(text[at : at + size], source))

    def redraw(self) -> None:
        self.view.redraw()
        self._update()

    def resize(self, width: int) -> None:
        """Make the screen narrower or wider, as a terminal that leaves rows as they are.

        What lies beyond a narrower screen is not lost here, so what is lost is the view's fault.
        """
        self.console.width = width
        self._widest = max(self._widest, width)
        self.screen.columns = width
        self.screen.set_margins()

    def reflow(self, width: int) -> None:
        """Make the screen narrower or wider, as a terminal that breaks long lines anew."""
        before, lines = self.screen, self._all()
        row = len(before.history.top) + before.cursor.y
        self.console.width = self._widest = width
        while len(lines) > row + 1 and not lines[-1]:
            lines.pop()
        self.screen = pyte.HistoryScreen(width, HEIGHT, history=10_000)
        self._stream = pyte.Stream(self.screen)
        self._stream.feed("\r\n".join(lines))
        below = sum(max(-(-len(line) // width), 1) for line in lines[row:]) - 1
        self._stream.feed("\r" + f"\x1b[{below}A" * bool(below))

    def finish(self) -> list[str]:
        self.view.finish()
        self._update()
        return self.lines

    def _update(self) -> None:
        parts, self.writes.parts = self.writes.parts, []
        self._stream.feed("".join(parts).replace("\n", "\r\n"))

    def _all(self) -> list[str]:
        screen = self.screen
        rows = [*screen.history.top, *(screen.buffer[at] for at in range(HEIGHT))]
        return ["".join(row[at].data for at in range(self._widest)).rstrip() for row in rows]

    @property
    def lines(self) -> list[str]:
        """The scrollback and the screen, without the empty rows at the end."""
        lines = self._all()
        while lines and not lines[-1]:
            lines.pop()
        return lines


def step(text: str, source: str | None = None, tokens: int = 2) -> TextStep:
    return TextStep((Piece(text, source),), tuple(range(tokens)), 8, 7, 0.01)


def rows_of(text: str, width: int, **options: bool) -> list[str]:
    renderer = MarkdownRenderer(True, False, **options)
    rows = renderer.feed([Piece(text)], width) + renderer.flush(width)
    return [row.plain.rstrip() for row in rows]


PROSE = "\n".join(
    f"Paragraph {number} says *something* that takes more than one row of the screen.\n"
    for number in range(20)
)


def test_a_reply_on_its_way() -> None:
    terminal = Terminal(44, state=ViewState(plain_step=0.01, max_context=2048))
    terminal.show(Started(0, 1900), PromptRead(512, 1900, 0.1))
    assert terminal.lines == ["$ lade", "", "reading the prompt 512/1900"]
    terminal.say("A reply that grows", 9)
    assert terminal.lines == [
        "$ lade",
        "A reply that grows",
        "200.0 tok/s · 2.00 tok/step ▂▂ · 2.0× plain",
    ]
    terminal.say(" word by word", 20)
    assert terminal.lines[1:] == [
        "A reply that grows word by word",
        "200.0 tok/s · 2.00 tok/step ▂▂▂",
    ]
    assert terminal.finish() == ["$ lade", "A reply that grows word by word"]
    assert (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, 2)


@pytest.mark.parametrize("width", [12, 40, 77])
@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_long_reply_is_in_the_scrollback_complete_and_once(width: int, size: int) -> None:
    text = PROSE + "\n```python\n" + "x = 'a line of code that is folded' + 1\n" * 4 + "```\nend"
    terminal = Terminal(width)
    terminal.say(text, size)
    before = terminal.lines
    assert terminal.finish() == ["$ lade", *rows_of(text, width)]
    assert before[: -2 or None] == terminal.lines[: len(before) - 2], "complete rows stay"


def test_wide_characters() -> None:
    text = "中文没有空格,所以必须在宽度处换行。" * 4 + "😀 emoji 👍 too " * 6
    terminal = Terminal(21)
    terminal.say(text, 1)
    assert terminal.finish() == ["$ lade", *rows_of(text, 21)]


def test_a_row_as_wide_as_the_screen() -> None:
    terminal = Terminal(10)
    terminal.say("1234567890", 10)
    assert terminal.lines[1] == "1234567890"
    terminal.say("\n1234567890\n", 11)
    assert terminal.finish() == ["$ lade", "1234567890", "1234567890"]


def test_nothing_is_erased_behind_a_full_row() -> None:
    """The cursor stands on its last character there, which some terminals would erase."""
    terminal = Terminal(10)
    terminal.view.show(step("1234567890"))
    assert "1234567890\n" in terminal.writes.parts[-1]


def test_no_text_can_drive_the_terminal() -> None:
    terminal = Terminal()
    terminal.say("a\x1b[2J\x1b[Hb\x9b31mc\x07[red]d\r", 50)
    assert terminal.finish() == ["$ lade", "a[2J[Hb31mc[red]d"]


@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_the_last_line_is_ended_once(ending: str) -> None:
    terminal = Terminal()
    terminal.say("one\ntwo" + ending, 3)
    terminal.finish()
    terminal.finish()
    assert terminal.lines == ["$ lade", "one", "two"]
    assert terminal.screen.cursor.y == 3 + max(len(ending) - 1, 0)


def test_what_was_held_back_is_shown_at_the_end() -> None:
    terminal = Terminal()
    terminal.show(step("a **"), Ended("length", "\N{REPLACEMENT CHARACTER}"))
    assert terminal.finish()[1:] == ["a **\N{REPLACEMENT CHARACTER}"]


def test_nothing_is_written_where_nothing_came() -> None:
    terminal = Terminal()
    terminal.view.finish()
    assert terminal.writes.parts == []


def test_a_reply_without_text_leaves_nothing() -> None:
    terminal = Terminal()
    terminal.show(Started(0, 10), Ended("eos"))
    assert terminal.finish() == ["$ lade"]
    assert terminal.screen.cursor.y == 1


# The cursor.


def test_the_cursor_is_hidden_meanwhile_and_restored() -> None:
    terminal = Terminal()
    terminal.say("text")
    assert terminal.screen.cursor.hidden
    assert terminal.screen.cursor.x == 0, "where what is typed does no harm"
    terminal.finish()
    assert not terminal.screen.cursor.hidden


def test_the_cursor_is_restored_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    terminal.say("text")

    def broken(*_args: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(terminal.view.renderer, "feed", broken)
    terminal.clock.now += 10
    with pytest.raises(RuntimeError):
        terminal.view.show(step("y"))
    with pytest.raises(RuntimeError):
        terminal.view.finish()
    terminal._update()
    assert not terminal.screen.cursor.hidden


# Switches and sizes.


def test_a_switch_in_the_middle_changes_the_row_that_grows() -> None:
    terminal = Terminal()
    terminal.say("**bold** is\nnow **bold**, ", 50, "context")
    assert terminal.screen.buffer[2][8].bold
    assert terminal.screen.buffer[2][8].fg == "default"
    terminal.view.renderer.markdown, terminal.view.renderer.colours = False, True
    terminal.redraw()
    assert not terminal.screen.buffer[2][8].bold
    assert terminal.screen.buffer[2][8].fg == "cyan"
    assert terminal.screen.buffer[1][4].bold, "what is complete stays as it was"
    assert terminal.finish()[1:] == ["**bold** is", "now **bold**,"]


def words(lines: Iterable[str]) -> list[str]:
    return " ".join(lines).split()


@pytest.mark.parametrize("size", [3, 11])
@pytest.mark.parametrize("to", [25, 31, 60, 100])
def test_a_resize_in_the_middle_loses_no_text(size: int, to: int) -> None:
    terminal = Terminal(40)
    third = len(PROSE) // 3
    terminal.say(PROSE[:third], size)
    terminal.resize(to)
    terminal.redraw()
    terminal.say(PROSE[third : 2 * third], size)
    terminal.resize(40)
    terminal.say(PROSE[2 * third :], size)
    assert words(terminal.finish()[1:]) == words([PROSE])


@pytest.mark.parametrize("cut", range(300, 420, 17))
@pytest.mark.parametrize("to", [13, 25, 60, 100])
def test_a_terminal_that_breaks_lines_anew_keeps_all_text(cut: int, to: int) -> None:
    terminal = Terminal(40)
    terminal.say(PROSE[:cut], 50)
    terminal.reflow(to)
    terminal.redraw()
    terminal.say(PROSE[cut:], 50)
    shown, said = "".join(words(terminal.finish()[1:])), "".join(words([PROSE]))
    # What is left over is at most the row that grew, in one place; nothing is missing.
    assert len(shown) <= len(said) + (40 if to < 40 else 0)
    assert any(
        shown.startswith(said[:at]) and shown.endswith(said[at:]) for at in range(len(said) + 1)
    )


def test_a_resize_in_a_folded_line_of_code_overwrites_nothing() -> None:
    """The terminal may have joined the folded rows; then the last of them is not ours alone."""
    terminal = Terminal(20)
    terminal.say("```\n" + "x" * 30, 9)
    assert terminal.lines[2:4] == ["x" * 20, "x" * 10]
    # What a terminal does that breaks rows anew: the two are one, and the figures follow.
    terminal.resize(40)
    for at in range(30):
        terminal.screen.buffer[2][at] = terminal.screen.buffer[2][0]
    terminal.screen.cursor_position(4, 1)
    terminal.redraw()
    terminal.say("y\n", 2)
    assert terminal.finish()[2] == "x" * 30


# Colours.


def test_sources_have_their_colours_and_the_figures_a_legend() -> None:
    terminal = Terminal(80, colours=True)
    terminal.say("guessed", 10, "context")
    terminal.say(" said", 10)
    row = terminal.screen.buffer[1]
    assert (row[0].fg, row[9].fg) == ("cyan", "default")
    assert terminal.lines[-1].endswith("· context")


def test_without_colours_attributes_remain() -> None:
    terminal = Terminal(60, no_color=True, colours=True)
    terminal.say("**bold**", 10, "context")
    colours = {
        cell.fg for row in terminal.screen.buffer.values() for cell in row.values() if cell.data
    }
    assert colours == {"default"}
    assert terminal.screen.buffer[1][3].bold
    assert "context" not in terminal.lines[-1]


def test_reasoning_is_shown() -> None:
    terminal = Terminal(40, thinking=True)
    terminal.say("Hm</think>\nYes", 3)
    assert terminal.finish()[1:] == ["Hm</think>", "Yes"]


# How often, and at what cost.


def test_one_write_for_each_refresh() -> None:
    terminal = Terminal()
    terminal.view.show(step("first"))
    assert len(terminal.writes.parts) == 1
    terminal.clock.now += 10
    terminal.view.show(step(" second\n" * 5))
    assert len(terminal.writes.parts) == 2


def refreshes(terminal: Terminal, events: Iterable[TextEvent], seconds: float) -> int:
    """How often the view draws, if an event comes every so many seconds."""
    for event in events:
        terminal.clock.now += seconds
        terminal.view.show(event)
    return len(terminal.writes.parts)


def test_the_first_text_is_drawn_at_once_and_then_20_times_a_second() -> None:
    terminal = Terminal()
    terminal.view.show(Started(0, 10))
    assert refreshes(terminal, [step("")], 1e-6) == 1
    assert refreshes(terminal, [step("first")], 1e-6) == 2
    assert refreshes(terminal, [step("x ")] * 1000, 1e-3) == pytest.approx(2 + 20, abs=2)


def test_drawing_takes_a_fiftieth_of_the_time() -> None:
    terminal = Terminal()
    terminal.clock.reading = 0.002  # each reading of the clock, two for a refresh
    drawn = refreshes(terminal, [step("x ")] * 5000, 1e-3)
    assert drawn * 0.002 == pytest.approx(0.02 * terminal.clock.now, rel=0.2)


def test_one_slow_refresh_does_not_stop_the_view() -> None:
    terminal = Terminal()
    refreshes(terminal, [step("x ")] * 200, 1e-2)
    terminal.clock.reading = 0.5
    terminal.redraw()
    terminal.clock.reading = 0.0
    before = len(terminal.writes.parts)
    assert refreshes(terminal, [step("x ")] * 10, 1e-2) > before


def test_the_cost_of_an_event_does_not_grow() -> None:
    terminal = Terminal(80)
    words = "Some **words** of a `reply`, that goes on.\n\n- and on,\n```python\nx = 1\n```\n"
    times = []
    for number in range(20_000):
        at = number * 4 % len(words)
        event = step(words[at : at + 4], "context", 1)
        began = time.perf_counter()
        terminal.view.show(event)
        # Between those that count, what takes long is left out of most.
        if not 1000 <= number < 19_000 or number % 10 == 0:
            terminal.view.redraw()
            times.append(time.perf_counter() - began)
        terminal.writes.parts.clear()
    first, last = statistics.median(times[:1000]), statistics.median(times[-1000:])
    assert last < 2 * first, f"{first * 1e6:.0f} to {last * 1e6:.0f} microseconds"
