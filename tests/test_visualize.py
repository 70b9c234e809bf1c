"""What a person sees: golden screens at a fixed width, figures, and text made safe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ladecli.events import Ended, Piece, PromptRead, TextEvent, TextStep
from ladecli.metrics import Tally
from ladecli.visualize import ColourWriter, PlainWriter, printable, statistics_line, style_of


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
