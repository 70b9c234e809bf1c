"""What a person sees: golden screens at a fixed width, figures, and text made safe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ladecli.decoder.events import Started
from ladecli.events import Ended, Piece, PromptRead, TextEvent, TextStep
from ladecli.metrics import Tally, step_speedup
from ladecli.visualize import (
    BARS,
    ColourWriter,
    PlainWriter,
    ViewState,
    fold,
    legend,
    printable,
    sparkline,
    statistics_line,
    status_line,
    style_of,
)


def step(*pieces: tuple[str, str | None], width: int = 9, seconds: float = 0.5) -> TextStep:
    made = tuple(Piece(text, source) for text, source in pieces)
    return TextStep(made, tuple(range(len(made))), width, len(made) - 1, seconds)


ANSWER: list[TextEvent] = [
    PromptRead(512, 600, 0.25),
    step(("Once", None)),
    step((" upon", "trajectory"), (" a", "context"), (" time", None)),
    step(("\x1b[31m[red]", "recycled"), ("\n", None)),
    Ended("length", "\N{REPLACEMENT CHARACTER}"),
]


def console(width: int = 40, colour: bool = True) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_tokens_have_the_colours_of_their_sources() -> None:
    screen = console()
    writer = ColourWriter(screen)
    for event in ANSWER:
        writer.show(event)
    writer.finish()
    assert shown(screen) == (
        "Once"
        "\x1b[32m upon\x1b[0m\x1b[36m a\x1b[0m time"
        "\x1b[34m[31m[red]\x1b[0m\n"
        "\N{REPLACEMENT CHARACTER}\n"
    )


def test_every_source_can_be_told_from_the_others() -> None:
    sources = (None, "trajectory", "context", "recycled", "jacobi", "something new")
    assert len({style_of(source) for source in sources}) == len(sources)


@pytest.mark.parametrize("safe", [True, False])
def test_plain_text_is_faithful_in_files_and_safe_on_terminals(safe: bool) -> None:
    stream = io.StringIO()
    writer = PlainWriter(stream, safe)
    for event in ANSWER:
        writer.show(event)
    writer.finish()
    escape = "" if safe else "\x1b"
    expected = f"Once upon a time{escape}[31m[red]\n\N{REPLACEMENT CHARACTER}\n"
    assert stream.getvalue() == expected


def test_no_line_break_is_added_where_there_is_one() -> None:
    stream = io.StringIO()
    writer = PlainWriter(stream, safe=False)
    writer.show(step(("a\n", None)))
    writer.finish()
    assert stream.getvalue() == "a\n"


def test_printable_keeps_text_and_drops_commands() -> None:
    assert printable("a\tb\nc 你 😀 é") == "a\tb\nc 你 😀 é"
    assert printable("a\u202eb\u2066c\u200fd") == "abc\u200fd"
    assert printable("\x1b[2J\x07\x08\r\x9b31m\x7f\x00") == "[2J31m"


def tally_of(events: list[TextEvent]) -> Tally:
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally


def test_figures() -> None:
    tally = tally_of(ANSWER)
    assert (tally.tokens, tally.steps) == (6, 3)
    assert tally.tokens_per_step == 2.0
    assert tally.step_width == 9.0
    assert tally.accepted == {"trajectory": 1, "context": 1, "recycled": 1}
    assert tally.prefill_seconds == 0.75
    assert tally.decode_seconds == 1.0
    assert tally.tokens_per_second == 5.0
    assert tally.reason == "length"


def test_figures_of_short_answers() -> None:
    assert tally_of([Ended("length")]).tokens_per_step == 0.0
    assert tally_of([Ended("length")]).tokens_per_second == 0.0
    assert tally_of(ANSWER[1:2]).tokens_per_second == 2.0


def test_statistics_line_at_two_widths() -> None:
    wide = console(width=120, colour=False)
    wide.print(statistics_line(tally_of(ANSWER), 120))
    assert shown(wide) == (
        "6 tokens in 3 steps · 2.00 tokens per step · 5.0 tok/s"
        " · accepted: context 1, recycled 1, trajectory 1\n"
    )
    narrow = console(width=40, colour=False)
    narrow.print(statistics_line(tally_of(ANSWER[1:2]), 40))
    assert shown(narrow) == "1 token in 1 step · 1.00 tokens per step\n2.0 tok/s\n"


def test_statistics_line_with_the_speedup_over_a_measured_plain_step() -> None:
    line = statistics_line(tally_of(ANSWER), 120, plain_step=0.3)
    assert line.plain == (
        "6 tokens in 3 steps · 2.00 tokens per step · 5.0 tok/s · 1.5× plain"
        " · accepted: context 1, recycled 1, trajectory 1"
    )
    one_step = statistics_line(tally_of(ANSWER[1:2]), 120, plain_step=0.3)
    assert one_step.plain == "1 token in 1 step · 1.00 tokens per step · 2.0 tok/s"


def test_speedups() -> None:
    assert step_speedup(3, 0.02, 0.01, drafted=True) == 1.5
    assert step_speedup(3, 0.0, 0.01, drafted=True) == 0.0
    # Five tokens after the first step, in one second.
    assert tally_of(ANSWER).speedup(0.25) == 1.25
    assert tally_of(ANSWER[:2]).speedup(0.25) == 0.0


def test_plain_steps_are_not_faster_than_plain_steps() -> None:
    answer: list[TextEvent] = [step(("a", None), seconds=0.5)] * 3
    tally = tally_of(answer)
    assert [tally.speedup(plain) for plain in (0.25, 0.5, 0.55)] == [0.5, 1.0, 1.0]
    assert "1.0× plain · step 1.0×" in status_line(state_of(answer, plain_step=0.55), 120).plain
    # What drafts made faster may be told, and so may the step that they did it in.
    drafted = state_of([*answer, step(("b", "context"), ("c", None))], plain_step=0.55)
    assert "1.5× plain · step 2.2×" in status_line(drafted, 120).plain


def state_of(events: list[TextEvent], **options: float) -> ViewState:
    state = ViewState(**options)
    for event in events:
        state = fold(state, event)
    return state


def test_the_state_of_a_view() -> None:
    state = state_of([Started(40, 600)])
    assert (state.reading, state.cached, state.used) == ((40, 600), 40, 600)
    state = fold(state, PromptRead(512, 600, 0.1))
    assert state.reading == (512, 600)
    for event in ANSWER[1:]:
        state = fold(state, event)
    assert state.reading is None
    assert list(state.counts) == [1, 3, 2]
    assert state.last == ANSWER[3]
    assert state.used == 606
    assert state.tally.reason == "length"
    for _ in range(100):
        fold(state, ANSWER[1])
    assert len(state.counts) == 24


def test_sparkline() -> None:
    assert sparkline([1, 2, 3, 8], 10) == "▁▂▃█"
    assert sparkline(range(1, 9), 8) == BARS
    assert sparkline([1, 8, 15, 29], 10) == "▁▂▄█"
    assert sparkline([1, 2, 3], 2) == "▂▃"
    assert sparkline([1, 2, 3], 0) == sparkline([], 5) == ""
    assert sparkline([1, 5, 12], 5, unicode=False) == "159"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (10, "5.0 tok/s"),
        (30, "5.0 tok/s · 2.00 tok/step ▁▃▂"),
        (40, "5.0 tok/s · 2.00 tok/step ▁▃▂"),
        (50, "5.0 tok/s · 2.00 tok/step ▁▃▂ · 1.2× plain"),
        (
            120,
            "5.0 tok/s · 2.00 tok/step ▁▃▂ · 1.2× plain · step 1.0× · width 9 · 606/2048"
            " · context recycled trajectory",
        ),
    ],
)
def test_status_line(width: int, line: str) -> None:
    state = state_of([Started(0, 600), *ANSWER], plain_step=0.25, max_context=2048)
    assert status_line(state, width, colours=True).plain == line


def test_status_line_without_a_plain_step_or_unicode() -> None:
    state = state_of([Started(0, 600), *ANSWER], max_context=2048)
    assert status_line(state, 80, unicode=False).plain == (
        "5.0 tok/s | 2.00 tok/step 132 | width 9 | 606/2048"
    )


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (10, "512/600"),
        (20, "prompt 512/600"),
        (27, "reading the prompt 512/600"),
        (50, "reading the prompt 512/600 (40 kept)"),
    ],
)
def test_status_line_while_the_prompt_is_read(width: int, line: str) -> None:
    state = state_of([Started(40, 600), PromptRead(512, 600, 0.1)])
    assert status_line(state, width).plain == line


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("colours", [True, False])
def test_the_status_line_fits_every_screen(unicode: bool, colours: bool) -> None:
    events: list[TextEvent] = [Started(1000, 123_456), PromptRead(123_000, 123_456, 1.0)]
    fast = step(*[("x", "trajectory"), ("y", "context")] * 9, width=120, seconds=1e-5)
    for events_so_far in (events, events + ANSWER[1:3], [*events, *[fast] * 40]):
        state = state_of(events_so_far, plain_step=0.25, max_context=131_072)
        for width in range(10, 160):
            line = status_line(state, width, unicode=unicode, colours=colours)
            assert line.cell_len <= width
            assert line.plain.isascii() or unicode
            assert line.plain.strip()


def test_the_bars_take_the_room_that_is_left() -> None:
    state = state_of([step(*[("x", None)] * 3)] * 30)
    for width in range(32, 120):
        line = status_line(state, width).plain
        assert line.count("▃") == 24 or (line.count("▃") >= 6 and len(line) == width)


def test_legend() -> None:
    line = legend(["recycled", "context"])
    assert line.plain == "context recycled"
    assert {str(span.style) for span in line.spans} == {"cyan", "blue", "dim"}
