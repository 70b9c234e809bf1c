"""A comparison on the terminal: the page, and screens that have no room for it."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from ladecli.bench.comparing.compare import compare
from ladecli.bench.comparing.report import show
from ladecli.bench.result import Result
from tests.bench.comparing.test_compare import SPEEDS, changed, slowed
from tests.bench.makers import MACHINE, MODEL, result


class Screen(io.StringIO):
    """A stream that has a width."""

    def isatty(self) -> bool:
        return True


def shown(a: Result, b: Result, width: int = 100, *, stream: io.StringIO | None = None) -> str:
    stream = stream or Screen()
    show(compare(a, b), Console(file=stream, width=width, color_system=None))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def without_noise(factors: Mapping[str, float] | None = None) -> Result:
    """Times that are exact, with some contenders slowed down."""
    return slowed(result(SPEEDS, noise=0.0), factors or {})


def an_eventful_night() -> Result:
    """A slower machine, slower lookahead, and an answer of paper's with other tokens."""
    after = without_noise({**dict.fromkeys(SPEEDS, 1.12), "lookahead": 1.12 * 1.1})
    after = changed(after, "paper", "row-2", digest="other", peak_memory=400 << 20)
    machine = dataclasses.replace(MACHINE, device="Another processor @ 3.00 GHz", threads=2)
    return dataclasses.replace(after, machine=machine)


def test_the_page() -> None:
    assert (
        shown(without_noise(), an_eventful_night())
        == """
Not the same
                  A         B
────────────────────────────────────────────────────────
machine: device   Test CPU  Another processor @ 3.00 GHz
machine: threads  1         2

Time per token
                           ms/token  by the clock   change               95 %  verdict
────────────────────────────────────────────────────────────────────────────────────────
plain decoding          3.05 → 3.42       +12.0 %   +0.0 %   -5.2 % to +5.5 %  equal
paper                   3.81 → 4.27       +12.0 %   +0.0 %   -5.2 % to +5.5 %  equal
lookahead               2.03 → 2.51       +23.2 %  +10.0 %  +3.9 % to +16.5 %  slower
transformers' generate  3.81 → 4.27       +12.0 %        -                  -  yardstick
ms/token: behind the first step, all answers together, so a change is not quite B/A; by the clock:
the change as it was measured; change: of an answer's time over the yardstick's (transformers'
generate) in the same round, the middle of all answers; 95 %: where the true change lies, with that
confidence

Beside that
                        tok/step  other text      ms/step  first token           memory
───────────────────────────────────────────────────────────────────────────────────────
plain decoding             1.000     0 of 27  3.00 → 3.36       +0.0 %           315 MB
paper                      1.000     3 of 27  3.75 → 4.20       +0.0 %  315 MB → 419 MB
lookahead                  1.477     0 of 27  3.04 → 3.74       +0.0 %           315 MB
transformers' generate     1.000     0 of 27  3.75 → 4.20            -           315 MB
other text: answers with other tokens; ms/step: the median; first token: change of the time to it,
over the yardstick's; memory: the peak

note: the machine is not the same: changes can come from that, too
note: transformers' generate, not our code, takes 12 % more time per token in B: machine, load or
torch changed
note: "equal": a change of 5.5 % or more would have shown
lookahead is slower in B: compared with transformers' generate, it takes 10 % more time per token
than in A (+3.9 % to +16.5 %)
paper: 3 of 27 answers have other tokens, first row-2 in turn 1
paper: peak memory 315 MB → 419 MB"""
    )


def test_a_phone_has_the_verdicts() -> None:
    """Columns go by their weight, and lines break between words."""
    assert (
        shown(without_noise(), an_eventful_night(), width=40)
        == """
Not the same
machine: device: Test CPU in A, Another
processor @ 3.00 GHz in B
machine: threads: 1 in A, 2 in B

Time per token
                       change  verdict
────────────────────────────────────────
plain decoding         +0.0 %  equal
paper                  +0.0 %  equal
lookahead             +10.0 %  slower
transformers'               -  yardstick
generate
change: of an answer's time over the
yardstick's (transformers' generate) in
the same round, the middle of all
answers

Beside that
                    tok/step  other text
────────────────────────────────────────
plain decoding         1.000     0 of 27
paper                  1.000     3 of 27
lookahead              1.477     0 of 27
transformers'          1.000     0 of 27
generate
other text: answers with other tokens

without room here: 95 %, by the clock,
first token, memory, ms/step, ms/token;
a wider screen or --json has them
note: the machine is not the same:
changes can come from that, too
note: transformers' generate, not our
code, takes 12 % more time per token in
B: machine, load or torch changed
note: "equal": a change of 5.5 % or more
would have shown
lookahead is slower in B: compared with
transformers' generate, it takes 10 %
more time per token than in A (+3.9 % to
+16.5 %)
paper: 3 of 27 answers have other
tokens, first row-2 in turn 1
paper: peak memory 315 MB → 419 MB"""
    )


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_screen_cuts_a_figure(width: int) -> None:
    page = shown(without_noise(), an_eventful_night(), width)
    for line in page.splitlines():
        assert len(line) <= width
        assert "…" not in line
    assert ("without room here: " in page) == (width < 100)


def test_a_pipe_has_everything_however_wide() -> None:
    page = shown(without_noise(), an_eventful_night(), 40, stream=io.StringIO())
    assert "without room" not in page
    assert "  by the clock   change               95 %  verdict\n" in page


def test_other_work_has_no_verdict() -> None:
    other = dataclasses.replace(MODEL, name="stories260K", parameters=2.6e5)
    factors = {**dict.fromkeys(SPEEDS, 0.46), "lookahead": 0.53}
    page = shown(without_noise(), dataclasses.replace(without_noise(factors), model=other))
    assert (
        "lookahead               2.03 → 1.08       -47.0 %  +15.2 %  +8.8 % to +22.0 %  -\n" in page
    )
    assert "tok/step" not in page
    assert "slower" not in page.replace("nothing is called slower or faster", "")


def test_differences_are_a_table_where_it_has_room() -> None:
    pages = [shown(without_noise(), an_eventful_night(), width) for width in (56, 55)]
    assert ["machine: threads  1         2\n" in page for page in pages] == [True, False]
    assert ["machine: threads: 1 in A, 2 in B\n" in page for page in pages] == [False, True]


def test_without_a_yardstick_a_change_is_shown_once() -> None:
    plain = {"autoregressive": 1.0}
    page = shown(result(plain, noise=0.0), result(plain, noise=0.0, drift=1.5))
    assert "\n                   ms/token   change                95 %  verdict\n" in page
    assert "by the clock" not in page
    assert "yardstick" not in page
