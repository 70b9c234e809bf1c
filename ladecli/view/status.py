"""The row of figures below an unfinished reply."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.text import Text

from ..decoder.events import Started
from ..events import PromptRead, TextEvent, TextStep
from ..metrics import Tally, speedup
from ..visualize import LOOP, legend, repeats

BARS = "▁▂▃▄▅▆▇█"
REMEMBERED_STEPS = 24
"""Steps that are drawn as bars."""
NOW_STEPS = 8
"""The last steps, of which the row shows the speed."""


@dataclass(slots=True)
class ViewState:
    """What the status row of an unfinished reply shows.

    Attributes:
        plain_step: seconds of a plain step, for as long as the reply has too few of its own;
            None if unknown.
        max_context: the most tokens of prompt and reply together; 0 if unknown.
        tally: the counts so far.
        recent: tokens and seconds of the last steps, the newest last.
        reading: tokens done and in total while the prompt is read, else None.
        tail: the newest characters of the text.
    """

    plain_step: float | None = None
    max_context: int = 0
    tally: Tally = field(default_factory=Tally)
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))
    reading: tuple[int, int] | None = None
    tail: str = ""

    def add(self, event: TextEvent) -> None:
        """Fold one more event in, at a cost that does not grow."""
        self.tally.add(event)
        match event:
            case Started():
                self.reading = event.cached, event.total
            case PromptRead():
                self.reading = event.done, event.total
            case TextStep():
                self.reading = None
                self.recent.append((len(event.token_ids), event.seconds))
                text = self.tail + "".join(piece.text for piece in event.pieces)
                self.tail = text[-4 * LOOP :]


def sparkline(counts: Iterable[int], columns: int) -> str:
    """The newest counts as bars: one token is the lowest; the highest one is at least eight.

    Args:
        counts: of tokens, the newest last.
        columns: the most bars.
    """
    shown = list(counts)[-columns:] if columns > 0 else []
    top = len(BARS) - 1
    peak = max([top, *(count - 1 for count in shown)])
    return "".join(BARS[max(count - 1, 0) * top // peak] for count in shown)


def status_line(
    state: ViewState, width: int, *, unicode: bool = True, colours: bool = False
) -> Text:
    """One row about an unfinished reply, never wider than the screen.

    Figures that do not fit are left out from the end; bars of the last steps take the room left.

    Args:
        state: of the reply.
        width: of the screen, in cells.
        unicode: whether the screen has more than ASCII.
        colours: whether tokens have the colours of their sources, which a legend explains.
    """
    if state.reading is not None and not state.tally.steps:
        progress = "{}/{}".format(*state.reading)
        full = f"reading the prompt {progress}"
        return Text(full if len(full) <= width else progress[:width])
    separator, times = (" · ", "×") if unicode else (" | ", "x")
    line, *others = _figures(state, times, colours)
    for part in others:
        if line.cell_len + len(separator) + part.cell_len > width - 2:  # at least one bar
            break
        line = Text.assemble(line, (separator, "dim"), part)
    if unicode:
        counts = (count for count, _ in state.recent)
        line.append(f" {sparkline(counts, width - line.cell_len - 1)}")
    line.rstrip()
    line.truncate(width)
    return line


def _figures(state: ViewState, times: str, colours: bool) -> list[Text]:
    """The figures of a reply, the most important first, their units dim."""
    tally = state.tally
    plain = tally.plain_step or state.plain_step or 0.0
    faster = tally.speedup(plain)
    parts = [
        Text.assemble(f"{tally.tokens_per_second:.1f}", (" tok/s", "dim")),
        Text.assemble(f"{tally.tokens_per_step:.2f}", (" tok/step", "dim")),
        Text.assemble(f"{faster:.1f}{times}" if faster else "-", (" plain", "dim")),
    ]
    if repeats(state.tail):
        parts.insert(1, Text("repeats itself: Ctrl-C stops it", "yellow"))
    if colours and tally.accepted:
        parts.append(Text.assemble(("from ", "dim"), legend(tally.accepted)))
    if faster and tally.steps > NOW_STEPS:
        last = list(state.recent)[-NOW_STEPS:]
        now = speedup(sum(count for count, _ in last), sum(time for _, time in last), plain)
        parts.append(Text.assemble(("now ", "dim"), f"{now:.1f}{times}"))
    if state.max_context:
        used = tally.prompt + tally.tokens
        parts.append(Text.assemble(f"{used}", (f"/{state.max_context}", "dim")))
    return parts
