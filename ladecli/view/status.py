"""The row of figures below an unfinished reply."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from ..metrics import Tally
from ..visualize import legend, repeats

BARS = "▁▂▃▄▅▆▇█"


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
    tally: Tally,
    width: int,
    *,
    max_context: int = 0,
    unicode: bool = True,
    colours: bool = False,
) -> Text:
    """One row about an unfinished reply, never wider than the screen.

    Figures that do not fit are left out from the end; bars of the last steps take the room left.

    Args:
        tally: of the reply so far.
        width: of the screen, in cells.
        max_context: the most tokens of prompt and reply together; 0 if unknown.
        unicode: whether the screen has more than ASCII.
        colours: whether tokens have the colours of their sources, which a legend explains.
    """
    if tally.prompt and not tally.steps:
        progress = f"{tally.read}/{tally.prompt}"
        full = f"reading the prompt {progress}"
        return Text(full if len(full) <= width else progress[:width])
    separator, times = (" · ", "×") if unicode else (" | ", "x")
    line, *others = _figures(tally, max_context, times, colours)
    for part in others:
        if line.cell_len + len(separator) + part.cell_len > width - 2:  # at least one bar
            break
        line = Text.assemble(line, (separator, "dim"), part)
    if unicode:
        counts = (count for count, _ in tally.recent)
        line.append(f" {sparkline(counts, width - line.cell_len - 1)}")
    line.rstrip()
    line.truncate(width)
    return line


def _figures(tally: Tally, max_context: int, times: str, colours: bool) -> list[Text]:
    """The figures of a reply, the most important first, their units dim."""
    faster = f"{tally.speedup:.1f}{times}" if tally.speedup else "-"
    parts = [Text.assemble(f"{tally.tokens_per_second:.1f}", (" tok/s", "dim"))]
    if repeats(tally.text):
        parts.append(Text("repeats itself: Ctrl-C stops it", "yellow"))
    parts.append(Text.assemble(f"{tally.tokens_per_step:.2f}", (" tok/step", "dim")))
    parts.append(Text.assemble(faster, (" plain", "dim")))
    if colours and tally.accepted:
        parts.append(Text.assemble(("from ", "dim"), legend(tally.accepted)))
    if now := tally.speedup_now:
        parts.append(Text.assemble(("now ", "dim"), f"{now:.1f}{times}"))
    if max_context:
        used = tally.prompt + tally.tokens
        parts.append(Text.assemble(f"{used}", (f"/{max_context}", "dim")))
    return parts
