"""Steps of a recorded generation on the screen: figures, text, window, n-grams, candidates."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout, Window
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.rule import Rule
from rich.text import Text
from rich.tree import Tree

from ..decoder.events import Detail
from ..events import TextStep
from ..metrics import Tally
from ..visualize import counted, printable, style_of
from .format import Trace

ROOT = -1
"""The parent of the tree's first level: the current token."""
_CELL = 12
"""Columns of the screen that a token of the window takes at most."""
_TEXT_LINES = 3
"""Lines of the text so far that are shown."""
_NGRAM_STYLE = style_of("trajectory")
_NAMED = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"
"""They have no width of their own, but what they join would fall apart without them."""


def visible(spelling: str) -> str:
    """One token's text with every character in sight: ␣ for a space, ⏎ for a line break.

    Nothing of it can drive a terminal or change the direction of the text around it.
    """
    characters = spelling.translate(_NAMED)
    shown = (c if c.isprintable() or c in _JOINERS else "·" for c in characters)
    return "".join(shown) or "∅"


@dataclass(frozen=True, slots=True)
class StepView:
    """What a step saw, tried and yielded, to be printed by Rich.

    Attributes:
        trace: the recorded generation.
        number: of the step; the first is 1.
    """

    trace: Trace
    number: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The parts of the screen, the most important first."""
        width, detail = options.max_width, self._step.detail
        yield self._title()
        yield self._figures()
        yield from self._text(width).wrap(console, width, tab_size=4)[-_TEXT_LINES:]
        if detail is None:
            yield Text("this trace does not have what the step tried", "dim")
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
        header = self.trace.header
        about = [header.model, str(header.settings.get("strategy", ""))]
        if "window" in header.settings:
            names = {"W": "window", "N": "ngram", "G": "guesses"}
            about.append(" ".join(f"{key}={header.settings.get(names[key])}" for key in names))
            about.append(self._sources())
        # On one line, and without control characters.
        words = visible(" · ".join(filter(None, about))).replace("␣", " ")
        line = _line(f" step {self.number} of {len(self.trace.steps)} ", "reverse bold")
        return line.append(f" {words}", "dim")

    def _sources(self) -> str:
        sources = self.trace.header.settings.get("sources")
        return "+".join(map(str, sources)) if isinstance(sources, list) else ""

    def _figures(self) -> Text:
        """What the step yielded and cost, and the whole answer so far."""
        tally = Tally(plain_before=self.trace.header.plain_step)
        step = self._step
        for event in self.trace.events:
            tally.add(event)
            if event is step:
                break
        line = _line(counted(len(step.token_ids), "token"), "bold")
        line.append(f" · width {step.width} · {step.seconds * 1000:.1f} ms")
        line.append(f" · {tally.tokens_per_step:.2f} tokens per step so far")
        if tally.speedup:
            line.append(f" · {tally.speedup:.1f}× plain")
        return line

    def _text(self, width: int) -> Text:
        """The end of the text so far, with this step's tokens marked."""
        *before, step = self.trace.steps[: self.number]
        earlier = "".join(printable(piece.text) for step in before for piece in step.pieces)
        text = Text(tab_size=4, overflow="fold")
        text.append(printable(self.trace.header.prompt), "dim").append(earlier)
        # Wrapping a book for every key would take its time: keep whole lines at its end.
        text = text[text.plain.rfind("\n", 0, max(len(text) - 6 * width, 0)) + 1 :]
        text.append("▸", "bold")
        for piece in step.pieces:
            style = style_of(piece.source)
            for number, part in enumerate(piece.text.split("\n")):
                text.append("⏎\n" if number else "", f"bold {style}")
                text.append(visible(part) if part else "", f"bold underline {style}")
        return text

    def _window(self, detail: Detail) -> list[RenderableType]:
        """The rows of the lookahead window, and the outputs after its last row."""
        if not detail.window:
            about = "none in this step"
            lookahead = self.trace.header.settings.get("strategy") == "lookahead"
            if lookahead and not any(s.detail and s.detail.window for s in self.trace.steps):
                about = "none in this trace; record with --sources trajectory to see one"
            return [_heading("window", about)]
        about = f"{counted(len(detail.outputs), 'column')}; "
        if detail.closed:
            about += "the outputs are the last row of the next step"
        else:
            about += f"filling, {counted(len(detail.window), 'row')} so far"
        rows = [list(map(self._word, row)) for row in (*detail.window, detail.outputs)]
        widths = [min(max(map(cell_len, column)), _CELL) for column in zip(*rows, strict=True)]
        lines = []
        for number, row in enumerate(rows):
            outputs = number == len(rows) - 1
            lines.append(_line("outputs  " if outputs else f"row {number:<5}", "dim"))
            for word, width in zip(row, widths, strict=True):
                cell = Text(word, _NGRAM_STYLE if outputs else "")
                cell.truncate(width, overflow="ellipsis", pad=True)
                lines[-1].append_text(cell).append("  ")
        lines[0].stylize("bold reverse", 9, 9 + len(rows[0][0]))
        return [_heading("window", about), *lines]

    def _ngrams(self, detail: Detail) -> Text:
        line = _line()
        for ngram in detail.ngrams:
            line.append(" · " if line else "", "dim")
            line.append(" ".join(map(self._word, ngram)), _NGRAM_STYLE)
        return line

    def _draft(self, detail: Detail) -> list[RenderableType]:
        """The candidate tree below its heading."""
        step = self._step
        about = "none in this step"
        if detail.tree:
            counts = f"{len(detail.tree)} proposed, {len(detail.accepted)} accepted"
            about = f"{counts} ✓; → the model's own token"
        elif self._sources() == "trajectory":
            about += ": no n-gram in the pool begins with this token"
        elif self._sources():
            about += ": none was likely enough to pay for a wider step"
        end = detail.accepted[-1] if detail.accepted else ROOT
        style = f"bold {style_of(step.pieces[-1].source)}"
        choice = Text.assemble((" → ", "dim"), (self._word(step.token_ids[-1]), style))
        root = _line(self._word(detail.current), "bold")
        tree = Tree(root.append_text(choice) if end == ROOT else root, guide_style="dim")
        branches = {ROOT: tree}
        for parent, nodes in _chains(detail):
            label = _line()
            for node in nodes:
                accepted, color = node in detail.accepted, style_of(detail.sources[node])
                word = self._word(detail.tree[node]) + " ✓" * accepted
                label.append(" " if label else "")
                label.append(word, f"bold {color}" if accepted else f"dim {color}")
            if nodes[-1] == end:
                label.append_text(choice)
            names = ", ".join(dict.fromkeys(detail.sources[node] for node in nodes))
            label.append(f"  {names}", f"dim {style_of(detail.sources[nodes[0]])}")
            branches[nodes[-1]] = branches[parent].add(label)
        return [_heading("draft", about), tree]


def _chains(detail: Detail) -> Iterator[tuple[int, list[int]]]:
    """Nodes that share a line, each the only child of the one before, after the first's parent.

    Parents are before their children, and accepted nodes before their siblings.
    """
    accepted = set(detail.accepted)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(detail.parents):
        children.setdefault(parent, []).append(node)
    parents = [ROOT]
    while parents:
        parent = parents.pop()
        for node in sorted(children.get(parent, []), key=lambda node: node not in accepted):
            nodes = [node]
            while len(following := children.get(nodes[-1], [])) == 1 and (
                (following[0] in accepted) == (node in accepted)
            ):
                nodes += following
            yield parent, nodes
            parents.append(nodes[-1])


def _line(text: str = "", style: str = "") -> Text:
    """Text that Rich crops with an ellipsis instead of wrapping it."""
    return Text(no_wrap=True, overflow="ellipsis").append(text, style)


def _heading(name: str, about: str) -> Rule:
    """The line above a part of the screen."""
    title = Text.assemble((f"{name} ", "bold"), (about, "dim"))
    return Rule(title, align="left", style="dim")


KEYS = " ← → step · PgUp PgDn ten steps · g G first, last · q leave"


class Browser:
    """The steps of a trace, one at a time on the whole screen, with keys to walk among them.

    Args:
        trace: with at least one step.
        colored: whether the screen has colors.
    """

    def __init__(self, trace: Trace, *, colored: bool) -> None:
        self._trace = trace
        self._colored = colored
        self._number = 1
        body = Window(FormattedTextControl(self._body, show_cursor=False))
        footer = Window(FormattedTextControl(KEYS), height=1, style="reverse")
        self._app: Application[None] = Application(
            Layout(HSplit([body, footer])), key_bindings=self._bindings(), full_screen=True
        )
        # Seconds that Esc waits for the rest of a key that starts with it.
        self._app.ttimeoutlen = 0.05

    def run(self) -> None:
        """Show steps until the user leaves."""
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            self._app.run()

    def _body(self) -> ANSI:
        size = self._app.output.get_size()
        console = Console(
            file=io.StringIO(),
            width=max(size.columns, 20),
            force_terminal=True,
            color_system="standard",
            no_color=not self._colored,
            legacy_windows=False,
        )
        with console.capture() as capture:
            console.print(StepView(self._trace, self._number), end="")
        lines, height = capture.get().splitlines(), max(size.rows - 1, 1)
        if len(lines) > height:
            lines[height - 1 :] = [f"… {len(lines) - height + 1} more lines"]
        return ANSI("\n".join(lines))

    def _bindings(self) -> KeyBindings:
        bindings, last = KeyBindings(), len(self._trace.steps)

        def walk(steps: int, *keys: str) -> None:
            def go(_event: KeyPressEvent) -> None:
                self._number = min(max(self._number + steps, 1), last)

            for key in keys:
                bindings.add(key)(go)

        walk(1, "right", "down", "space", "enter", "n", "j")
        walk(-1, "left", "up", "backspace", "p", "b", "k")
        walk(10, "pagedown")
        walk(-10, "pageup")
        walk(-last, "home", "g")
        walk(last, "end", "G")
        # Pasted color codes are taken for a mouse's, and break prompt_toolkit's handler of those.
        bindings.add(Keys.Vt100MouseEvent)(lambda _event: None)
        for key in ("q", "escape", "c-c", "c-d"):
            bindings.add(key)(lambda event: event.app.exit())
        return bindings
