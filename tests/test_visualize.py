"""The display of an answer: its tokens, its figures, and its status row at two widths."""

from __future__ import annotations

import io
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from rich.color import Color, ColorSystem
from scipy.spatial.distance import pdist

from ladecli.decoder.events import Started
from ladecli.errors import LadeError, printable
from ladecli.events import Ended, PromptRead, TextEvent, TextStep
from ladecli.metrics import Tally
from ladecli.visualize import (
    SOURCE_STYLES,
    Writer,
    legend,
    remarks,
    statistics_line,
    status_line,
    together,
)
from tests.support.traces import step


def priced(events: list[TextEvent], cost: float) -> list[TextEvent]:
    """Return events whose steps cost a number of plain steps."""
    return [replace(e, cost=cost) if isinstance(e, TextStep) else e for e in events]


ANSWER: list[TextEvent] = [
    PromptRead(512, 600, 0.25),
    step(("Once", None)),
    step((" upon", "trajectory"), (" a", "context"), (" time", None)),
    step(("\x1b[31m[red]", "recycled"), ("\n", None)),
    Ended("length", "\N{REPLACEMENT CHARACTER}"),
]


def tally_of(events: list[TextEvent]) -> Tally:
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally


COLOURED = "Once\x1b[36m upon\x1b[0m\x1b[94m a\x1b[0m time\x1b[33m[31m[red]\x1b[0m\n\ufffd\n"


@pytest.mark.parametrize(
    ("safe", "colors", "expected"),
    [
        (False, None, "Once upon a time\x1b[31m[red]\n\ufffd\n"),
        (True, None, "Once upon a time[31m[red]\n\ufffd\n"),
        (True, ColorSystem.STANDARD, COLOURED),
    ],
    ids=["pipe", "terminal", "colours"],
)
def test_a_streamed_answer(safe: bool, colors: ColorSystem | None, expected: str) -> None:
    stream = io.StringIO()
    writer = Writer(stream, safe, colors)
    for event in ANSWER:
        writer.show(event)
    writer.finish()
    assert stream.getvalue() == expected


def test_printable_keeps_text_and_drops_control_characters() -> None:
    assert printable("a\tb\nc 你 😀 é") == "a\tb\nc 你 😀 é"
    assert printable("a\u202eb\u2066c\u200fd\u200ee\u061cf") == "abcdef"
    assert printable("\x1b[2J\x07\x08\r\x9b31m\x7f\x00") == "[2J31m"


def test_all_views_are_finished_even_if_one_fails() -> None:
    views, tally = [Mock(), Mock()], Tally()
    for view, error in zip(views, ("no room", "no disk"), strict=True):
        view.finish.side_effect = LadeError(error)
    with pytest.raises(LadeError, match=r"^no disk$"), together(tally, *views) as show:
        show(ANSWER[1])
    assert [(view.show.call_count, view.finish.call_count) for view in views] == [(1, 1), (1, 1)]
    assert tally.tokens == 1


def test_figures() -> None:
    tally = tally_of(ANSWER)
    assert (tally.tokens, tally.steps, tally.reason) == (6, 3, "length")
    assert (tally.tokens_per_step, tally.step_width) == (2.0, 9.0)
    assert tally.accepted == {"trajectory": 1, "context": 1, "recycled": 1}
    assert (tally.prefill_seconds, tally.decode_seconds) == (0.75, 1.0)
    assert (tally.tokens_per_second, tally.speedup) == (5.0, 0.0)
    empty = tally_of([Ended("length")])
    assert (empty.tokens_per_step, empty.tokens_per_second, empty.speedup) == (0.0, 0.0, 0.0)
    assert tally_of(ANSWER[1:2]).tokens_per_second == 2.0


def answer_on_a_slow_clock(drafts: bool) -> Tally:
    """Return 400 tokens, each step slower than the one before, with occasional pauses.

    With drafts, two thirds of the tokens come from wider steps, three per step, which take 1.3
    times as long; the others come one by one, as all do without drafts.
    """
    tally, number = Tally(), 0
    tally.add(PromptRead(100, 100, 3.0))
    while tally.tokens < 400:
        number += 1
        many = drafts and number % 3 == 0
        seconds = (0.5 + tally.tokens / 1000) * (1.3 if many else 1.0)
        pause = 5.0 if number % 90 == 7 else 0.0
        pieces = [("x", "context")] * (2 if many else 0) + [("y", None)]
        event = step(*pieces, width=6 if many else 1, seconds=seconds + pause)
        tally.add(replace(event, cost=1.3 if many else 1.0))
    return tally


def test_the_speedup_shown_agrees_with_plain_decoding_of_the_same_text() -> None:
    reply, plain = answer_on_a_slow_clock(drafts=True), answer_on_a_slow_clock(drafts=False)
    measured = reply.tokens_per_second / plain.tokens_per_second
    assert measured == pytest.approx(1.5, rel=0.1)
    assert reply.speedup == pytest.approx(measured, rel=0.1)
    assert plain.speedup == pytest.approx(1.0, rel=0.1)


def test_later_drafts_do_not_change_the_estimate_for_earlier_steps() -> None:
    """Plain steps at the start, then only drafts: plain steps become slower, but not drafts."""
    tally, plain_time = tally_of([PromptRead(100, 100, 3.0), step(("x", None))]), 0.0
    while tally.tokens < 1000:
        pieces = [("x", "context"), ("x", "context"), ("y", None)][-1 if tally.tokens < 30 else 0 :]
        seconds, cost = 0.5 + tally.tokens / 1000, 1.0 if len(pieces) == 1 else 1.5
        plain_time += seconds * len(pieces)
        drafted = step(*pieces, width=2 * len(pieces) - 1, seconds=seconds * cost)
        tally.add(*priced([drafted], cost))
    assert tally.speedup == pytest.approx(plain_time / tally.decode_seconds, rel=0.1)


def test_the_speedup_is_estimated_by_the_cost_of_steps() -> None:
    estimated = tally_of(priced(ANSWER, cost=2.0))
    assert (estimated.speedup, estimated.measured) == (1.25, False)
    assert (estimated.speedup_from, Tally().speedup_from) == ("estimated", None)
    assert tally_of(priced(ANSWER, cost=1.0)).speedup == 2.0, "no more than tokens per step"
    # Steps of half a second that cost two plain ones, and plain steps of 0.3 seconds.
    plain = [step(("x", None), width=1, seconds=0.3)] * 8
    both = tally_of([*priced(ANSWER[:-1], cost=2.0), *plain])
    assert (both.speedup, both.measured) == (pytest.approx(3.65 / 3.4), False)
    alone = tally_of([step(("x", None)), *plain])
    assert (alone.speedup, alone.speedup_from) == (1.0, "measured")


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (120, ["6 tokens in 3 steps · 2.00 tokens per step · ≈1.2× plain"
               " · accepted: context 1, recycled 1, trajectory 1 · 5.0 tok/s"]),
        (80, ["6 tokens in 3 steps · 2.00 tokens per step · ≈1.2× plain",
              "accepted: context 1, recycled 1, trajectory 1 · 5.0 tok/s"]),
        (30, ["6 tokens in 3 steps", "2.00 tokens per step", "≈1.2× plain",
              "accepted: context 1, recycled 1, trajectory 1", "5.0 tok/s"]),
    ],
)  # fmt: skip
def test_statistics(width: int, lines: list[str]) -> None:
    assert statistics_line(tally_of(priced(ANSWER, cost=2.0)), width).plain.split("\n") == lines


REPLY: list[TextEvent] = [Started(0, 600), *ANSWER, *[step(("x", None), width=1)] * 16]
DRAFTED = priced([*REPLY, *[step(*[("x", "context")] * 9, width=9)] * 4], cost=1.0)
READING: list[TextEvent] = [Started(40, 600), PromptRead(512, 600, 0.1)]


@pytest.mark.parametrize(
    ("events", "width", "line"),
    [
        (READING, 10, "512/600"),
        (READING, 30, "reading the prompt 512/600"),
        (DRAFTED, 12, "2.52 tokens"),
        (DRAFTED, 25, "2.52 tokens per step ████"),
        (DRAFTED, 49, "2.52 tokens per step · ≈2.5× plain ▁▁▁▁▁▁▁▁▁▁████"),
        (DRAFTED, 92, "2.52 tokens per step · ≈2.5× plain"
                      " · accepted: context 37, recycled 1, trajectory 1 ▁▁▁▁████"),
        (DRAFTED, 128, "2.52 tokens per step · ≈2.5× plain · accepted: context 37, recycled 1,"
                       " trajectory 1 · 5.2 tok/s · 658/2048 ▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁████"),
        (REPLY[:4], 65, "2.00 tokens per step · accepted: context 1, trajectory 1 ▃"),
        (REPLY[:4], 84, "2.00 tokens per step · accepted: context 1, trajectory 1 · 6.0 tok/s"
                        " · 604/2048 ▃"),
    ],
)  # fmt: skip
def test_status(events: list[TextEvent], width: int, line: str) -> None:
    assert status_line(tally_of(events), width, max_context=2048).plain == line


def test_the_status_fits_every_screen() -> None:
    fast = step(*[("x", "trajectory"), ("y", "context")] * 9, width=120, seconds=1e-5)
    for events in (READING, ANSWER[1:3], [*READING, *[fast] * 40], DRAFTED):
        for width in range(2, 160):
            line = status_line(tally_of(priced(events, 1.5)), width, max_context=131_072)
            assert 0 < line.cell_len <= width


SEEN_BY = {
    "everybody": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "no red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
}
"""Linear RGB as people see it (Machado et al., 2009)."""

TO_XYZ = np.array(((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)))
"""CIE XYZ of linear RGB."""


@pytest.mark.parametrize("who", SEEN_BY)
def test_sources_can_be_told_apart(who: str) -> None:
    styles = (*SOURCE_STYLES.values(), "#c5c8c6")  # and the text
    rgb = np.array([Color.parse(style).get_truecolor() for style in styles]) / 255
    linear = np.where(rgb > 0.04, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    seen = (linear @ np.array(SEEN_BY[who]).T @ TO_XYZ.T).clip(0) / TO_XYZ.sum(axis=1)
    x, y, z = np.cbrt(seen).T
    lab = np.stack([116 * y, 500 * (x - y), 200 * (y - z)], axis=1)
    assert pdist(lab).min() > 25
    luminance = linear[:-1] @ TO_XYZ[1]
    assert (luminance.min() + 0.05) / 0.05 > 3, "legible on black"
    assert (luminance.max() + 0.05) / 0.05 < 21 / 3, "legible on white"


def test_an_answer_without_a_gain_says_so() -> None:
    plain = tally_of([step(("x", None)), *[step(("x", None), width=1)] * 20])
    line = statistics_line(plain, 120).plain
    assert "1.0× plain, no gain · 2.0 tok/s" in line
    assert "--draft-text" in line, "and what would gain"
    gained = statistics_line(tally_of(priced(ANSWER, cost=2.0)), 120).plain
    assert "no gain" not in gained
    assert "--draft-text" not in gained


def test_names_of_sources_have_the_colours_of_tokens_or_none() -> None:
    tally = tally_of(DRAFTED)
    for colours in (True, False):
        texts = (statistics_line(tally, 120, colours), status_line(tally, 120, 2048, colours))
        texts += (legend(tally.accepted, 120, colours),)
        styles = {str(span.style) for text in texts for span in text.spans}
        assert any(SOURCE_STYLES["context"] in style for style in styles) == colours
    for width in (80, 40):
        assert all(len(line) <= width for line in legend(SOURCE_STYLES, width).plain.split("\n"))


def test_answers_without_text() -> None:
    begun = tally_of([*READING, Ended("interrupted")])
    assert remarks(begun, 9) == ["interrupted while reading the prompt"]
    assert remarks(tally_of([Ended("eos")]), 9) == ["the answer is empty"]
