"""Events to what a person sees: pure functions, and one writer for each kind of stream."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from .decoder.events import Started
from .events import Ended, Piece, PromptRead, TextEvent, TextStep
from .metrics import Tally, step_speedup

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

SOURCE_STYLES = {
    "trajectory": "green",
    "context": "cyan",
    "recycled": "blue",
    "jacobi": "magenta",
}
OTHER_SOURCE_STYLE = "yellow"

BARS = "▁▂▃▄▅▆▇█"
REMEMBERED_STEPS = 24
"""So many of the last steps are drawn."""
_FEWEST_BARS = 6  # fewer tell nothing

# Everything that a terminal could take for a command: C0 but tab and newline, DEL, C1; and what
# could make text read in another order than it was said.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """`text` without control characters, so that no output can drive the terminal."""
    return _CONTROL.sub("", text)


def style_of(source: str | None) -> str:
    """The style of a token from `source`; the model's own tokens are plain."""
    return "" if source is None else SOURCE_STYLES.get(source, OTHER_SOURCE_STYLE)


def counted(count: int, noun: str) -> str:
    """How many of something: "1 line", "2 lines"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def legend(sources: Iterable[str]) -> Text:
    """The names of draft sources, each in its colour."""
    from rich.text import Text

    line = Text()
    for number, source in enumerate(sorted(sources)):
        line.append(" " if number else "", "dim")
        line.append(source, style_of(source))
    return line


def statistics_line(tally: Tally, width: int, plain_step: float | None = None) -> Text:
    """One line about an answer, with the legend of its colours; several where it is narrow.

    Args:
        tally: of the answer.
        width: of the screen; lines break between figures, not within them.
        plain_step: seconds of a plain step, where it was measured: then the speed-up over
            plain decoding is shown.
    """
    from rich.text import Text

    parts = [
        Text(f"{counted(tally.tokens, 'token')} in {counted(tally.steps, 'step')}"),
        Text(f"{tally.tokens_per_step:.2f} tokens per step", "bold"),
        Text(f"{tally.tokens_per_second:.1f} tok/s"),
    ]
    if plain_step and (speedup := tally.speedup(plain_step)):
        parts.append(Text(f"{speedup:.1f}× plain", "bold"))
    if tally.accepted:
        accepted = Text("accepted: ")
        for number, (source, count) in enumerate(sorted(tally.accepted.items())):
            accepted.append(", " if number else "")
            accepted.append(f"{source} {count}", style_of(source))
        parts.append(accepted)
    line, used = Text(), 0
    for part in parts:
        if used and used + 3 + len(part) > width:
            line.append("\n")
            used = 0
        elif used:
            line.append(" · ", "dim")
            used += 3
        line.append_text(part)
        used += len(part)
    return line


def memory_line(tally: Tally) -> str | None:
    """What is to be said of memory under an answer; None if there was enough."""
    if tally.reason == "memory":
        context = counted(tally.prompt + tally.tokens, "token")
        return (
            f"out of memory after {context} of context; a smaller --max-context, --quantize 4bit"
            " or a smaller model helps"
        )
    if tally.squeezed is not None:
        return (
            f"out of memory: steps have at most {counted(tally.squeezed, 'token')} now; a smaller"
            " --budget avoids this"
        )
    return None


@dataclass(slots=True)
class ViewState:
    """What is to be seen of a reply that is on its way.

    Attributes:
        plain_step: seconds of a plain step, measured on this model; None if it was not.
        max_context: the most tokens of prompt and reply together; 0 if it is not known.
        tally: the counts so far.
        counts: tokens of the last steps, the newest last.
        last: the last step.
        reading: tokens done and in total while the prompt is read, else None.
    """

    plain_step: float | None = None
    max_context: int = 0
    tally: Tally = field(default_factory=Tally)
    counts: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))
    last: TextStep | None = None
    reading: tuple[int, int] | None = None

    @property
    def cached(self) -> int:
        """Tokens of the prompt that were in the cache already."""
        return self.tally.cached

    @property
    def used(self) -> int:
        """Tokens of prompt and reply."""
        return self.tally.prompt + self.tally.tokens


def fold(state: ViewState, event: TextEvent) -> ViewState:
    """The state after one more event; it is changed in place, at a cost that does not grow."""
    state.tally.add(event)
    match event:
        case Started():
            state.reading = event.cached, event.total
        case PromptRead():
            state.reading = event.done, event.total
        case TextStep():
            state.reading = None
            state.last = event
            state.counts.append(len(event.token_ids))
    return state


def sparkline(counts: Iterable[int], columns: int, unicode: bool = True) -> str:
    """The newest counts as bars: one token is the lowest; the highest one is at least eight.

    Args:
        counts: of tokens, the newest last.
        columns: at most so many.
        unicode: whether the screen has bars; digits do otherwise, 9 for more.
    """
    shown = list(counts)[-columns:] if columns > 0 else []
    if not unicode:
        return "".join(str(min(count, 9)) for count in shown)
    top = len(BARS) - 1
    peak = max([top, *(count - 1 for count in shown)])
    return "".join(BARS[max(count - 1, 0) * top // peak] for count in shown)


def status_line(
    state: ViewState, width: int, *, unicode: bool = True, colours: bool = False
) -> Text:
    """One row about a reply on its way, never wider than the screen.

    What matters least is left out first: legend, cache, width, the last step's speed-up, that of
    the whole reply, tokens per step.

    Args:
        state: of the reply.
        width: of the screen, in cells.
        unicode: whether the screen has more than ASCII.
        colours: whether text has its sources' colours, so that a legend helps.
    """
    if state.reading is not None and not state.tally.steps:
        line = _reading(state, width)
    else:
        line = _progress(state, width, unicode, legend(state.tally.accepted) if colours else None)
    line.truncate(width)
    return line


def _figure(value: str, unit: str) -> Text:
    """A readable figure with a modest unit, which stands before it or behind."""
    from rich.text import Text

    if unit.endswith(" "):
        return Text.assemble((unit, "dim"), value)
    return Text.assemble(value, (unit, "dim"))


def _reading(state: ViewState, width: int) -> Text:
    assert state.reading is not None
    done, total = state.reading
    for label in ("reading the prompt ", "prompt ", ""):
        line = _figure(f"{done}/{total}", label)
        if len(line) <= width:
            break
    if state.cached and len(line) + len(cached := f" ({state.cached} kept)") <= width:
        line.append(cached, "dim")
    return line


def _progress(state: ViewState, width: int, unicode: bool, colours: Text | None) -> Text:
    """Figures as far as they fit, then as many bars as there is room for."""
    from rich.text import Text

    tally, plain, last = state.tally, state.plain_step, state.last
    times, separator = ("×", " · ") if unicode else ("x", " | ")
    parts = [_figure(f"{tally.tokens_per_second:.1f}", " tok/s")]
    bars = min(len(state.counts), _FEWEST_BARS)
    rate = _figure(f"{tally.tokens_per_step:.2f}", " tok/step")
    parts.append(rate.append(" " * (bars + 1)) if bars else rate)
    if plain and (speedup := tally.speedup(plain)):
        parts.append(_figure(f"{speedup:.1f}{times}", " plain"))
    if last is not None:
        if plain and tally.steps > 1:
            count = len(last.token_ids)
            now = step_speedup(count, last.seconds, plain, drafted=count > 1)
            parts.append(_figure(f"{now:.1f}{times}", "step "))
        parts.append(_figure(str(last.width), "width "))
    if state.max_context:
        parts.append(_figure(str(state.used), f"/{state.max_context}"))
    if colours:
        parts.append(colours)
    length = -len(separator)
    fitting = []
    for part in parts:
        length += len(separator) + len(part)
        if length > width:
            length -= len(separator) + len(part)
            break
        fitting.append(part)
    if len(fitting) > 1 and bars:
        bars += min(max(width - length, 0), len(state.counts) - bars)
        rate.right_crop(rate.plain.count(" ") - 2)
        rate.append(sparkline(state.counts, bars, unicode))
    elif not fitting:
        fitting = [Text(f"{tally.tokens_per_second:.0f}/s")]
    return Text(separator, "dim").join(fitting)


class PlainWriter:
    """Writes an answer as it is, for files and pipes.

    Args:
        stream: where to.
        safe: whether to leave out control characters, for a terminal without colours.
    """

    def __init__(self, stream: TextIO, safe: bool) -> None:
        self._stream = stream
        self._safe = safe
        self._ended_line = True

    def show(self, event: TextEvent) -> None:
        """Write what the event adds, at once."""
        match event:
            case TextStep():
                self._write("".join(piece.text for piece in event.pieces))
            case Ended():
                self._write(event.rest)

    def finish(self) -> None:
        """End the last line."""
        if not self._ended_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        text = printable(text) if self._safe else text
        if text:
            self._stream.write(text)
            self._stream.flush()
            self._ended_line = text.endswith("\n")


class ColourWriter:
    """Writes an answer with every token in the colour of its source.

    Rich gives the colours only: its own printing would expand tabs and wrap lines by where a
    step starts, and the terminal knows better.

    Args:
        console: of Rich; tests give one of fixed colours.
    """

    def __init__(self, console: Console) -> None:
        from rich.console import COLOR_SYSTEMS

        self._stream = console.file
        self._colours = COLOR_SYSTEMS[console.color_system or "standard"]
        self._ended_line = True

    def show(self, event: TextEvent) -> None:
        """Write what the event adds, at once."""
        match event:
            case TextStep():
                self._write(event.pieces)
            case Ended():
                self._write((Piece(event.rest),))

    def finish(self) -> None:
        """End the last line."""
        if not self._ended_line:
            self._stream.write("\n")

    def _write(self, pieces: Sequence[Piece]) -> None:
        from rich.style import Style

        for piece in pieces:
            if text := printable(piece.text):
                style = Style.parse(style_of(piece.source))
                self._stream.write(style.render(text, color_system=self._colours))
                self._ended_line = text.endswith("\n")
        self._stream.flush()
