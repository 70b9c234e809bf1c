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
from .metrics import RECENT, Tally

# Of the 256 colours that no theme changes: legible on black and on white, and far apart also for
# people who see no red or no green.
SOURCE_STYLES = {
    "trajectory": "spring_green4",
    "context": "cornflower_blue",
    "recycled": "dark_goldenrod",
    "jacobi": "medium_orchid3",
}
OTHER_SOURCE_STYLE = "underline"

SEPARATOR = " · "
REASONING, ANSWER = "Reasoning:", "Answer:"
"""Labels of the two parts of a reasoning model's answer."""
BARS = "▁▂▃▄▅▆▇█"


def style_of(source: str | None) -> str:
    """The style of a token from `source`; the model's own tokens are plain."""
    return "" if source is None else SOURCE_STYLES.get(source, OTHER_SOURCE_STYLE)


# Views of an answer.


class Span(NamedTuple):
    """Text of an answer in one style: its draft source, and whether it is dim."""

    text: str
    source: str | None = None
    dim: bool = False

    @property
    def style(self) -> str:
        """For Rich."""
        return f"{style_of(self.source)} dim".lstrip() if self.dim else style_of(self.source)


class Sections:
    """Makes one text of an answer and its reasoning, dim and each below a label.

    Args:
        reasoning: whether that is shown; an answer alone has no label.
    """

    def __init__(self, reasoning: bool) -> None:
        self._shows = reasoning
        self._reasoning = False

    def of(self, piece: Piece) -> Iterator[Span]:
        """What a piece adds."""
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
    """Show one answer in several views, whose events are folded here and nowhere else.

    They are finished with the block, the first one first, also when one cannot be written.

    Args:
        tally: takes every event before the views do, which show it.
        views: each takes every event, in this order.

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
        stream: where to.
        safe: whether to leave out control characters, as a terminal needs.
        colors: with which to show the source of each token; None for plain text.
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
    """How many times as fast as plain decoding; "≈" says that this is estimated."""
    return f"{'' if tally.measured else '≈'}{factor:.1f}×"


def figures(tally: Tally) -> list[Text]:
    """What an answer's tokens took, each figure by itself."""
    parts = [_tokens_per_step(tally), _tokens_per_second(tally)]
    if tally.speedup:
        parts.append(Text(f"{speed_up(tally, tally.speedup)} plain", "bold"))
    if tally.accepted:
        counts = [
            Text(f"{source} {count}", style_of(source))
            for source, count in sorted(tally.accepted.items())
        ]
        parts.append(Text("accepted: ").append_text(Text(", ").join(counts)))
    return parts


def live_figures(tally: Tally) -> list[Text]:
    """The same while the answer comes, the most wanted first: what its colours mean before how
    many tokens have each, and what the last steps gained."""
    parts = [_tokens_per_step(tally)]
    if tally.speedup:
        now = f"now {tally.speedup_of_last(RECENT):.1f}×"
        parts.append(Text(f"{speed_up(tally, tally.speedup)} plain, {now}", "bold"))
    if tally.accepted:
        names = (Text(source, style_of(source)) for source in sorted(tally.accepted))
        parts.append(Text(" ").join(names))
    return [*parts, _tokens_per_second(tally)]


def _tokens_per_step(tally: Tally) -> Text:
    return Text(f"{tally.tokens_per_step:.2f} tokens per step", "bold")


def _tokens_per_second(tally: Tally) -> Text:
    return Text(f"{tally.tokens_per_second:.1f} tok/s")


def statistics_line(tally: Tally, width: int) -> Text:
    """One line about an answer; it breaks between figures where a screen is not `width` wide."""
    first = Text(f"{counted(tally.tokens, 'token')} in {counted(tally.steps, 'step')}")
    return Text("\n").join(_in_lines([first, *figures(tally)], width))


def _in_lines(parts: Iterable[Text], width: int) -> list[Text]:
    """Parts in lines of at most `width` cells; a longer part has a line of its own."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(SEPARATOR) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], (SEPARATOR, "dim"), part)
        else:
            lines.append(part)
    return lines


def status_line(tally: Tally, width: int, max_context: int) -> Text:
    """One row about an unfinished reply, never wider than the screen.

    Figures that do not fit are left out from the end.  Bars of the last steps take the room left:
    one token is the lowest, eight or more are the highest.

    Args:
        tally: of the reply so far.
        width: of the screen, in cells.
        max_context: the most tokens of prompt and reply together; 0 if unknown.
    """
    if tally.prompt and not tally.steps:
        progress = f"{tally.read}/{tally.prompt}"
        full = f"reading the prompt {progress}"
        return Text(full if len(full) <= width else progress[:width])
    parts = live_figures(tally)
    if max_context:
        parts.append(Text(f"{tally.prompt + tally.tokens}/{max_context}"))
    line = _in_lines(parts, width - 2)[0]  # at least one bar
    bars = "".join(BARS[min(max(step.tokens, 1), len(BARS)) - 1] for step in tally.recent)
    line.append(f" {bars[-max(width - line.cell_len - 1, 1) :]}")
    line.truncate(width)
    line.rstrip()
    return line


def remarks(tally: Tally, max_context: int, *, of_length: bool = True) -> list[str]:
    """Lines about an answer that was cut short, or that has no text.

    Args:
        tally: of the answer.
        max_context: the most tokens of prompt and answer together.
        of_length: whether a limit of new tokens is worth a line.
    """
    length = f"cut at {counted(tally.tokens, 'token')}; max-new-tokens sets another limit"
    ends = {
        "length": length if of_length else None,
        "context": f"cut: the context of {max_context} tokens is full",
        "interrupted": "stopped",
    }
    lines = [ends.get(tally.reason or ""), tally.out_of_memory]
    if tally.unanswered:
        lines.append("it ended inside its reasoning, before an answer")
    elif tally.ended_well and not tally.text.strip():
        lines.append("the answer is empty")
    return [*filter(None, lines)]
