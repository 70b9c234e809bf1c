"""Events of an answer as coloured text, and the line of its statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TextIO

from rich.color import ColorSystem
from rich.style import Style
from rich.text import Text

from .errors import counted, printable
from .events import Piece, TextEvent, pieces_of
from .metrics import Tally

# Of the 256 colours that no theme changes: legible on black and on white, and far apart also for
# people who see no red or no green.
SOURCE_STYLES = {
    "trajectory": "spring_green4",
    "context": "dodger_blue2",
    "recycled": "dark_goldenrod",
    "jacobi": "medium_orchid3",
    "forced": "light_slate_blue",
}
MEANINGS = {
    "context": "copied from a text",
    "recycled": "the model's earlier guesses",
    "trajectory": "the lookahead window",
}
"""The sources of drafts, in words."""
FIGURES = {"plain": "the speed of one token a step", "bars": "tokens of the last steps"}
"""Other words and signs beside an answer."""
LEAST_GAIN = 1.05
"""A speed-up below this one is shown as none."""
GAINS_MOST = "edits and code gain most: hand over the text with --draft-text"
"""What the figures of an answer without a speed-up end with."""
OTHER_SOURCE_STYLE = "underline"

SEPARATOR = " · "
REASONING, ANSWER = "Reasoning:", "Answer:"
"""Labels of the two parts of a reasoning model's answer."""
BARS = "▁▂▃▄▅▆▇█"


def style_of(source: str | None) -> str:
    """Return the style of a token from `source`; the model's own tokens are plain."""
    return "" if source is None else SOURCE_STYLES.get(source, OTHER_SOURCE_STYLE)


# Views of an answer.


class Span(NamedTuple):
    """Text of an answer in one style: its draft source, and whether it is dim."""

    text: str
    source: str | None = None
    dim: bool = False

    @property
    def style(self) -> str:
        """The style for Rich."""
        return f"{style_of(self.source)} dim".lstrip() if self.dim else style_of(self.source)


class Sections:
    """Turns an answer and its reasoning, which is dim, into one text with labels.

    Args:
        reasoning: whether that is shown; an answer alone has no label.
    """

    def __init__(self, reasoning: bool) -> None:
        self._shows = reasoning
        self._reasoning = False

    def of(self, piece: Piece) -> Iterator[Span]:
        """Yield the text that a piece adds."""
        if piece.reasoning and self._shows:
            if not self._reasoning:
                yield Span(f"{REASONING}\n", dim=True)
            self._reasoning = True
            yield Span(piece.reasoning, piece.source, dim=True)
        if piece.text:
            if self._reasoning:
                yield Span(f"\n\n{ANSWER}\n", dim=True)
            self._reasoning = False
            yield Span(piece.text, piece.source)


class View(Protocol):
    """Something that shows an answer, or keeps it."""

    def show(self, event: TextEvent) -> None:
        """Take one more event."""

    def finish(self) -> None:
        """The answer is over, or broken off: leave terminal and files in order."""


@contextlib.contextmanager
def together(tally: Tally, *views: View) -> Iterator[Callable[[TextEvent], None]]:
    """Show one answer in several views, and count its events.

    They are finished with the block, the first one first, also when one cannot be written.

    Args:
        tally: takes every event before the views do, which show it.
        views: take every event, in this order.

    Yields:
        A function that takes one more event.

    Raises:
        LadeError: a view failed; of several the last one.
    """

    def show(event: TextEvent) -> None:
        tally.add(event)
        for view in views:
            view.show(event)

    with contextlib.ExitStack() as stack:
        for view in reversed(views):
            stack.callback(view.finish)
        yield show


class Writer:
    """Writes an answer as it comes, for pipes, files and terminals that cannot redraw.

    Lines are left to the terminal to wrap: it alone knows where they start.

    Args:
        stream: takes the text.
        safe: whether to leave out control characters, as a terminal needs.
        colors: those that sources are shown with; None for plain text.
        reasoning: whether it is written, too.
    """

    def __init__(
        self,
        stream: TextIO,
        safe: bool,
        colors: ColorSystem | None = None,
        reasoning: bool = False,
    ) -> None:
        self._sections = Sections(reasoning)
        self._stream = stream
        self._safe = safe
        self._colors = colors
        self._ended_line = True

    def show(self, event: TextEvent) -> None:
        """Write what the event adds, at once."""
        for piece in pieces_of(event):
            for span in self._sections.of(piece):
                if text := printable(span.text) if self._safe else span.text:
                    self._ended_line = text.endswith("\n")
                    style = Style.parse(span.style)
                    self._stream.write(style.render(text, color_system=self._colors))
        self._stream.flush()

    def finish(self) -> None:
        """End the last line."""
        if not self._ended_line:
            self._stream.write("\n")
            self._stream.flush()


# Figures.


def speed_up(tally: Tally, factor: float) -> str:
    """Return how many times as fast as plain decoding it was; "≈" stands for an estimate."""
    return f"{'' if tally.measured else '≈'}{factor:.1f}×"


def figures(tally: Tally, colours: bool = True) -> list[Text]:
    """Return what an answer's tokens took, the most important figure first.

    Args:
        tally: of the answer.
        colours: whether sources have the colours that their tokens have.
    """
    parts = [Text(f"{tally.tokens_per_step:.2f} tokens per step", "bold")]
    if tally.speedup:
        gain = "" if tally.speedup >= LEAST_GAIN else ", no gain"
        parts.append(Text(f"{speed_up(tally, tally.speedup)} plain{gain}", "bold"))
    if tally.accepted:
        counts = [
            Text(f"{source} {count}", style_of(source) if colours else "")
            for source, count in sorted(tally.accepted.items())
        ]
        parts.append(Text("accepted: ").append_text(Text(", ").join(counts)))
    return [*parts, Text(f"{tally.tokens_per_second:.1f} tok/s")]


def legend(sources: Iterable[str], width: int, colours: bool = True) -> Text:
    """Return what the words beside an answer's figures mean; other arguments as for
    `statistics_line`.

    Args:
        sources: of drafts, as far as they are used.
        width: of the screen, in cells.
        colours: whether tokens have those of their sources.
    """
    parts = [
        Text(f"{name}: {meaning}", "dim") for name, meaning in MEANINGS.items() if name in sources
    ]
    for part in parts if colours else ():
        name = part.plain.partition(":")[0]
        part.stylize(f"not dim {style_of(name)}", 0, len(name))
    parts += [Text(f"{name}: {meaning}", "dim") for name, meaning in FIGURES.items()]
    return Text("\n").join(_in_lines(parts, width))


def statistics_line(tally: Tally, width: int, colours: bool = True) -> Text:
    """Return one line about an answer; it breaks between figures if a screen has not its width."""
    first = Text(f"{counted(tally.tokens, 'token')} in {counted(tally.steps, 'step')}")
    parts = [first, *figures(tally, colours)]
    if tally.speedup and tally.speedup < LEAST_GAIN:
        parts.append(Text(GAINS_MOST, "dim"))
    return Text("\n").join(_in_lines(parts, width))


def _in_lines(parts: Iterable[Text], width: int) -> list[Text]:
    """Return parts in lines of at most `width` cells; a longer part has a line of its own."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(SEPARATOR) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], (SEPARATOR, "dim"), part)
        else:
            lines.append(part)
    return lines


def status_line(tally: Tally, width: int, max_context: int, colours: bool = True) -> Text:
    """Return one row about an unfinished reply, never wider than the screen.

    Figures that do not fit are left out from the end.  Bars of the last steps take the room left:
    one token is the lowest, eight or more are the highest.

    Args:
        tally: of the reply so far.
        width: of the screen, in cells.
        max_context: the most tokens of prompt and reply together; 0 if unknown.
        colours: whether tokens have those of their sources.
    """
    if tally.prompt and not tally.steps:
        progress = f"{tally.read}/{tally.prompt}"
        full = f"reading the prompt {progress}"
        return Text(full if len(full) <= width else progress[:width])
    parts = [Text("reasoning", "dim")] if tally.unanswered else []
    parts += figures(tally, colours)
    if max_context:
        parts.append(Text(f"{tally.prompt + tally.tokens}/{max_context}"))
    line = _in_lines(parts, width - 2)[0]  # at least one bar
    bars = "".join(BARS[min(max(tokens, 1), len(BARS)) - 1] for tokens in tally.recent)
    line.append(f" {bars[-max(width - line.cell_len - 1, 1) :]}")
    line.truncate(width)
    line.rstrip()
    return line


RAISE_LIMIT = "max-new-tokens sets another limit"
"""A hint for an answer that reached its limit."""


def remarks(tally: Tally, max_context: int, limit: str | None = None) -> list[str]:
    """Return lines about an answer that was cut short, or that has no text.

    Args:
        tally: of the answer.
        max_context: the most tokens of prompt and answer together.
        limit: how to set another limit of new tokens; None if a cut there is worth no line.
    """
    ends = {
        "length": limit and f"cut at {counted(tally.tokens, 'token')}; {limit}",
        "context": f"cut: the context of {max_context} tokens is full",
        "interrupted": "stopped" if tally.steps else "interrupted while reading the prompt",
    }
    lines = [ends.get(tally.reason or ""), tally.out_of_memory]
    if tally.unanswered:
        lines.append("it ended inside its reasoning, before an answer")
    elif tally.ended_well and not tally.text.strip():
        lines.append("the answer is empty")
    return [*filter(None, lines)]
