"""Show the steps of a recorded generation: figures, text, window, n-grams, candidates."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.rule import Rule
from rich.text import Text
from rich.tree import Tree

from ..decoder.events import Detail
from ..errors import counted, printable
from ..events import Piece, TextStep
from ..metrics import Tally
from ..visualize import speed_up, style_of
from .format import Trace

ROOT = -1
"""The parent of the tree's first level: the current token."""
_CELL = 12
"""The greatest width of a token in the window, in cells."""
_TEXT_LINES = 3
"""The number of lines of the text so far."""
_NGRAM_STYLE = style_of("trajectory")
_NAMED = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"
"""Characters without width, which join others."""


def visible(spelling: str) -> str:
    """Return a token's text with visible characters only: ␣ for a space, ⏎ for a line break.

    It has no characters that control a terminal or change the direction of text.
    """
    characters = spelling.translate(_NAMED)
    replaced = (c if c.isprintable() or c in _JOINERS else "·" for c in characters)
    return "".join(replaced) or "∅"


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of a trace, to be printed by Rich."""

    trace: Trace
    number: int  # of the step; the first is 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the sections of the screen, the most important first."""
        width, detail = options.max_width, self._step.detail
        yield self._title()
        yield self._figures()
        yield from self._text(width).wrap(console, width, tab_size=4)[-_TEXT_LINES:]
        if detail is None:
            yield Text("this trace does not record the candidates of the step", "dim")
            return
        yield from self._window(detail)
        if detail.closed:
            yield _heading("n-grams", f"{len(detail.ngrams)} closed, the window's columns")
            yield self._ngrams(detail)
        yield from self._draft(detail)

    @property
    def _step(self) -> TextStep:
        return self.trace.steps[self.number - 1]

    def _word(self, token: int) -> str:
        return visible(self.trace.spell(token))

    def _title(self) -> Text:
        header, sizes = self.trace.header, {"W": "window", "N": "ngram", "G": "guesses"}
        about = [header.model, str(header.settings.get("strategy", ""))]
        if header.settings.get("window"):
            sources = header.settings.get("sources")
            sources = sources if isinstance(sources, list) else []
            if "trajectory" in sources:  # else there is no window
                about.append(" ".join(f"{k}={header.settings.get(n)}" for k, n in sizes.items()))
            about.append("+".join(map(str, sources)))
        # In one line, without control characters.
        words = visible(" · ".join(filter(None, about))).replace("␣", " ")
        line = _line(f" step {self.number} of {len(self.trace.steps)} ", "reverse bold")
        return line.append(f" {words}", "dim")

    def _figures(self) -> Text:
        """Return the figures of the step and of the answer so far."""
        tally = Tally()
        step = self._step
        for event in self.trace.events:
            tally.add(event)
            if event is step:
                break
        line = _line(counted(len(step.token_ids), "token"), "bold")
        line.append(f" · width {step.width} · {step.seconds * 1000:.1f} ms")
        if self.number > 1 and step.cost:
            line.append(f" · {speed_up(tally, len(step.token_ids) / step.cost)} plain")
        line.append(f" · so far {tally.tokens_per_step:.2f} tokens per step")
        return line.append(f", {speed_up(tally, tally.speedup)}" if tally.speedup else "")

    def _text(self, width: int) -> Text:
        """Return the end of the text so far, with this step's tokens marked."""
        *before, step = self.trace.steps[: self.number]
        earlier = "".join(printable(_whole(piece)) for step in before for piece in step.pieces)
        text = Text(tab_size=4, overflow="fold")
        text.append(printable(self.trace.header.prompt), "dim").append(earlier)
        # Only the last lines are kept, since wrapping a long text for every key press is slow.
        text = text[text.plain.rfind("\n", 0, max(len(text) - 6 * width, 0)) + 1 :]
        text.append("▸", "bold")
        for piece in step.pieces:
            style = style_of(piece.source)
            for number, part in enumerate(_whole(piece).split("\n")):
                text.append("⏎\n" if number else "", f"bold {style}")
                text.append(visible(part) if part else "", f"bold underline {style}")
        return text

    def _window(self, detail: Detail) -> list[RenderableType]:
        """Return the rows of the lookahead window, and the outputs after its last row."""
        if not detail.window:
            return [_heading("window", "none in this step; --sources trajectory records one")]
        about = f"{counted(len(detail.outputs), 'column')}; "
        if detail.closed:
            about += "the outputs are the last row of the next step"
        else:
            about += f"filling, {counted(len(detail.window), 'row')} so far"
        rows = [list(map(self._word, row)) for row in (*detail.window, detail.outputs)]
        widths = [min(max(map(cell_len, column)), _CELL) for column in zip(*rows, strict=True)]
        lines = []
        for number, row in enumerate(rows):
            cells = "  ".join(map(set_cell_size, row, widths))
            outputs = number == len(rows) - 1
            lines.append(_line("outputs  " if outputs else f"row {number:<5}", "dim"))
            lines[-1].append(cells, _NGRAM_STYLE if outputs else "")
        lines[0].stylize("bold reverse", 9, 9 + len(rows[0][0]))
        return [_heading("window", about), *lines]

    def _ngrams(self, detail: Detail) -> Text:
        spelled = (" ".join(map(self._word, ngram)) for ngram in detail.ngrams)
        return _line(" · ".join(spelled), _NGRAM_STYLE)

    def _draft(self, detail: Detail) -> list[RenderableType]:
        """Return a heading and the candidate tree, accepted nodes first.

        An only child is on the line of its parent, unless just one of the two was accepted.
        """
        accepted, step = set(detail.accepted), self._step
        about = "none in this step"
        if detail.tree:
            about = f"{len(detail.tree)} proposed, {len(accepted)} accepted ✓; → the model's own"
        lines = {ROOT: _line(f"{self._word(detail.current)} ", "bold")}
        branches = {ROOT: Tree(lines[ROOT], guide_style="dim")}
        children = Counter(detail.parents)
        for node in sorted(range(len(detail.tree)), key=lambda node: node not in accepted):
            parent, source = detail.parents[node], detail.sources[node]
            lines[node], branches[node] = lines[parent], branches[parent]
            alike = parent != ROOT and (parent in accepted) == (node in accepted)
            if not alike or children[parent] > 1:
                lines[node] = _line()
                branches[node] = branches[parent].add(lines[node])
            if not lines[node] or detail.sources[parent] != source:
                lines[node].append(f"{source}: ", f"dim {style_of(source)}")
            word = self._word(detail.tree[node]) + " ✓" * (node in accepted) + " "
            looks = "bold" if node in accepted else "dim"
            lines[node].append(word, f"{looks} {style_of(source)}")
        end = detail.accepted[-1] if accepted else ROOT
        choice = self._word(step.token_ids[-1])
        lines[end].append("→ ", "dim").append(choice, f"bold {style_of(step.pieces[-1].source)}")
        return [_heading("draft", about), branches[ROOT]]


def _line(text: str = "", style: str = "") -> Text:
    """Return text that Rich crops with an ellipsis instead of wrapping it."""
    return Text(no_wrap=True, overflow="ellipsis").append(text, style)


def _heading(name: str, about: str) -> Rule:
    """Return the line above a section of the screen."""
    title = Text.assemble((f"{name} ", "bold"), (about, "dim"))
    return Rule(title, align="left", style="dim")


KEYS = " q leave · ← → step · PgUp PgDn ten steps · g G first, last"
_MOVES = {
    **dict.fromkeys(("right", "down", " ", "enter", "n", "j"), 1),
    **dict.fromkeys(("left", "up", "backspace", "p", "b", "k"), -1),
    **{"pagedown": 10, "pageup": -10, "g": -sys.maxsize, "G": sys.maxsize},
}
"""The number of steps to move, by prompt-toolkit's names of keys."""
_LEAVE = ("q", "escape", "c-c", "c-d")


def browse(trace: Trace, console: Console) -> None:
    """Show the steps of a trace, one at a time on the whole screen, until the user leaves."""
    number, keys = 1, KeyBindings()

    def shown() -> ANSI:
        with console.capture() as capture:
            console.print(StepView(trace, number))
        return ANSI(capture.get())

    def move(steps: int, _: object) -> None:
        nonlocal number
        number = min(max(number + steps, 1), len(trace.steps))

    for key, steps in _MOVES.items():
        keys.add(key)(partial(move, steps))
    for key in _LEAVE:
        keys.add(key)(lambda event: event.app.exit())
    step = Window(FormattedTextControl(shown))
    key_line = Window(FormattedTextControl(KEYS), height=1, style="reverse")
    Application[None](Layout(HSplit([step, key_line])), key_bindings=keys, full_screen=True).run()


def _whole(piece: Piece) -> str:
    """Return the text of a piece, with its reasoning."""
    return piece.reasoning + piece.text
