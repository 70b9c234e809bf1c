"""Show the events of an answer as coloured text, and its statistics as a line."""

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

# Colours that themes do not change, legible on black and on white, and distinct for people with
# red-green colour blindness.
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
"""Explanations of draft sources."""
FIGURES = {"plain": "the speed of one token a step", "bars": "tokens of the last steps"}
"""Explanations of other words beside an answer."""
LEAST_GAIN = 1.05
"""The least speed-up that is shown as a gain."""
GAINS_MOST = "edits and code gain most: hand over the text with --draft-text"
"""The hint after the figures of an answer without a speed-up."""
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
        reasoning: True if reasoning is shown; an answer without reasoning has no label.
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
    """An object that shows or records an answer."""

    def show(self, event: TextEvent) -> None:
        """Add one event."""

    def finish(self) -> None:
        """Clean up the terminal or the file, at the end of the answer or after an error."""


@contextlib.contextmanager
def together(tally: Tally, *views: View) -> Iterator[Callable[[TextEvent], None]]:
    """Show one answer in several views, and count its events.

    All views are finished with the block in their order, even if one fails.

    Args:
        tally: gets every event before the views, which show its figures.
        views: get every event, in this order.

    Yields:
        A function that takes an event.

    Raises:
        LadeError: a view failed; if several did, the error of the last one.
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
    """Writes an answer while it is generated, to pipes, files and terminals that cannot redraw.

    The terminal wraps the lines, since only it knows the column of the cursor.

    Args:
        stream: receives the text.
        safe: True to leave out control characters, for a terminal.
        colors: the color system for sources; None for plain text.
        reasoning: True if reasoning is written, too.
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
        """Write and flush the text of an event."""
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
    """Return a speed-up over plain decoding as text; "≈" marks an estimate."""
    return f"{'' if tally.measured else '≈'}{factor:.1f}×"


def figures(tally: Tally, colours: bool = True) -> list[Text]:
    """Return the figures of an answer, the most important first.

    Args:
        tally: of the answer.
        colours: True if sources have the colours of their tokens.
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
    """Return an explanation of the words beside an answer.

    Args:
        sources: the sources of drafts in use.
        width: of the screen, in cells.
        colours: True if tokens have the colours of their sources.
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
    """Return one line about an answer, broken between figures if it is wider than the screen."""
    first = Text(f"{counted(tally.tokens, 'token')} in {counted(tally.steps, 'step')}")
    parts = [first, *figures(tally, colours)]
    if tally.speedup and tally.speedup < LEAST_GAIN:
        parts.append(Text(GAINS_MOST, "dim"))
    return Text("\n").join(_in_lines(parts, width))


def _in_lines(parts: Iterable[Text], width: int) -> list[Text]:
    """Join parts into lines of at most `width` cells; a longer part has its own line."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(SEPARATOR) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], (SEPARATOR, "dim"), part)
        else:
            lines.append(part)
    return lines


def status_line(tally: Tally, width: int, max_context: int, colours: bool = True) -> Text:
    """Return one row about an unfinished reply, never wider than the screen.

    Figures that do not fit are left out, the last one first.  Bars for the last steps fill the rest
    of the row: the lowest is one token, the highest is eight or more.

    Args:
        tally: of the reply so far.
        width: of the screen, in cells.
        max_context: the most tokens of prompt and reply together; 0 if unknown.
        colours: True if tokens have the colours of their sources.
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
        limit: a hint at the limit of new tokens; None to print nothing if it ended the answer.
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
