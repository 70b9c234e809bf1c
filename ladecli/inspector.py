"""Steps of a recorded generation on the screen: text, window, n-grams, candidates, figures."""

from __future__ import annotations

import io
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout, Window
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from .decoder.events import Detail
from .metrics import Tally
from .trace import Trace
from .visualize import counted, printable, style_of, styled

ROOT = -1
"""The parent of the tree's first level: the current token."""
_TEXT_LINES = 5
"""The most lines of the text so far; a step changes the last one."""
_NGRAM_LINES = 2
_CELLS = 14
"""The most cells of a token in the window; where columns are many, at least half of it."""
_NGRAM_STYLE = style_of("trajectory")
_PICTURES = {" ": "␣", "\n": "⏎", "\t": "⇥", "\x7f": "␡"}
# These have no width of their own, but what they join would fall apart without them.
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"


@lru_cache(maxsize=4096)
def visible(token: str) -> str:
    """A token's text with a picture of every invisible character: ␣ for a space, ⏎ for a newline.

    Nothing of it can drive a terminal or change the direction of the text around it.
    """
    return "".join(map(_visible_character, token)) or "∅"


def _visible_character(character: str) -> str:
    if character in _PICTURES:
        return _PICTURES[character]
    if character < " ":
        return chr(0x2400 + ord(character))  # Unicode's picture of this control character
    category = unicodedata.category(character)
    if category == "Zs":
        return "␣"
    return "·" if category[0] in "CZ" and character not in _JOINERS else character


@dataclass(frozen=True, slots=True)
class StepView:
    """What a step saw, tried and yielded, to be printed by Rich.

    With a height (`console.print(view, height=23)`) text, tree and window are cut to fit.

    Attributes:
        trace: the recorded generation.
        number: of the step; the first is 1.
    """

    trace: Trace
    number: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the screen, none wider than it."""
        width, height = options.max_width, options.height or 1000

        def lines_of(*parts: RenderableType) -> list[list[Segment]]:
            plain = options.update(height=None, width=width)
            made = [line for part in parts for line in console.render_lines(part, plain, pad=False)]
            return [Segment.adjust_line_length(line, width, pad=False) for line in made]

        figures = lines_of(self._figures())[: max(height // 3, 1)]
        room = height - 1 - len(figures)
        detail = self.trace.steps[self.number - 1].detail
        middle: list[list[Segment]] = []
        if detail is None:
            middle = lines_of(Text("this trace does not say what the step tried", "dim"))
        else:
            middle = lines_of(*self._window(detail, width))
            if detail.window:
                head, *ngrams = self._ngrams(detail)
                middle += lines_of(head) + lines_of(*ngrams)[:_NGRAM_LINES]
        # On a low screen the text gets a third, so that some of the tree is in sight.
        text = lines_of(self._text(width))
        text = text[-max(1, min(_TEXT_LINES, (room - len(middle)) // 3)) :]
        body = text + middle
        if detail is not None:
            body += lines_of(*self._draft(detail, max(room - len(body) - 1, 2)))
        for line in [*lines_of(self._title()), *body[: max(room, 1)], *figures]:
            yield from line
            yield Segment.line()

    def _title(self) -> Text:
        header = self.trace.header
        settings = header.settings
        parts = [header.model, str(settings.get("strategy", ""))]
        if "window" in settings:
            names = {"W": "window", "N": "ngram", "G": "guesses"}
            parts.append(" ".join(f"{letter}={settings.get(names[letter])}" for letter in names))
            sources = settings.get("sources")
            parts.append("+".join(map(str, sources)) if isinstance(sources, list) else "")
        # On one line, and without control characters.
        about = visible(" · ".join(filter(None, parts))).replace("␣", " ")
        line = _line(f" step {self.number} of {len(self.trace.steps)} ", "reverse bold")
        return line.append(f" {about}", "dim")

    def _text(self, width: int) -> Text:
        """The end of the text so far, with this step's tokens marked."""
        *before, step = self.trace.steps[: self.number]
        known = styled(printable(self.trace.header.prompt), "dim")
        known.append("".join(printable(p.text) for earlier in before for p in earlier.pieces))
        # Wrapping a book for every key would take its time: keep whole lines at its end.
        start = known.plain.rfind("\n", 0, max(len(known) - width * (_TEXT_LINES + 1), 0)) + 1
        known = known[start:] if start else known
        known.append("▸", "bold")
        for piece in step.pieces:
            style = style_of(piece.source)
            for number, part in enumerate(piece.text.split("\n")):
                known.append("⏎\n" if number else "", f"bold {style}")
                known.append(visible(part) if part else "", f"bold underline {style}")
        known.tab_size, known.overflow = 4, "fold"
        return known

    def _window(self, detail: Detail, width: int) -> list[RenderableType]:
        """The rows of the lookahead window, and their outputs below."""
        if not detail.window:
            about = "none in this step"
            lookahead = self.trace.header.settings.get("strategy") == "lookahead"
            if lookahead and not any(s.detail and s.detail.window for s in self.trace.steps):
                about = "none in this trace; record with --sources trajectory to see one"
            return [_section("window", about)]
        columns = counted(len(detail.outputs), "column")
        about = f"{columns}; every row is what a step put out, and moves up"
        if not detail.closed:
            about = (
                f"filling: {counted(len(detail.window), 'row')} so far, one more with every step"
            )
        labels = [
            f"↑ step {made}" if made else "↑ start" for made in origins(self.trace, self.number)
        ]
        labels.append(f"= step {self.number}")
        rows = [[visible(self.trace.spell(token)) for token in row] for row in detail.window]
        rows.append([visible(self.trace.spell(token)) for token in detail.outputs])
        # As many columns as have room at half of the full width; Rich shrinks the widest.
        left = width - max(map(len, labels)) - 2
        shown = 0
        for column in zip(*rows, strict=True):
            left -= min(max(map(cell_len, column)), _CELLS // 2) + 2
            if shown and left < 0:
                break
            shown += 1
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        for _ in range(shown):
            table.add_column(max_width=_CELLS, overflow="ellipsis")
        for label, row in zip(labels, rows, strict=True):
            style = _NGRAM_STYLE if row is rows[-1] else ""
            cells = [Text(cell, style) for cell in row[:shown]]
            if row is rows[0]:
                cells[0].stylize("bold reverse")
            table.add_row(label, *cells, *["…"][: len(row) - shown])
        return [_section("window", about), table]

    def _ngrams(self, detail: Detail) -> list[RenderableType]:
        """The n-grams that the step closed, under their heading."""
        if not detail.closed:
            return [_section("n-grams", "none yet: the window is not full")]
        words = [" ".join(visible(self.trace.spell(token)) for token in n) for n in detail.ngrams]
        ngrams = Text(" · ", "dim").join(styled(each, _NGRAM_STYLE) for each in words)
        return [_section("n-grams", f"{len(words)} closed, the window's columns"), ngrams]

    def _draft(self, detail: Detail, height: int) -> list[RenderableType]:
        """The candidate tree in at most `height` lines below its heading."""
        step, spell = self.trace.steps[self.number - 1], self.trace.spell
        about = "none in this step"
        if detail.tree:
            about = f"{len(detail.tree)} proposed, {len(detail.accepted)} accepted"
        end = detail.accepted[-1] if detail.accepted else ROOT
        choice = styled(" → ", "dim").append(
            visible(spell(step.token_ids[-1])), f"bold {style_of(step.pieces[-1].source)}"
        )
        root = _line(visible(spell(detail.current)), "bold")
        tree = Tree(root.append_text(choice) if end == ROOT else root, guide_style="dim")
        chains, left_out = _fitting(detail, height - 1)
        branches = {ROOT: tree}
        for parent, nodes in chains:
            label = _chain_label(detail, nodes, spell)
            if nodes[-1] == end:
                label.append_text(choice)
            names = ", ".join(dict.fromkeys(detail.sources[node] for node in nodes))
            label.append(f"  {names}", f"dim {style_of(detail.sources[nodes[0]])}")
            branches[nodes[-1]] = branches[parent].add(label)
        more = [Text(f"… and {left_out} more", "dim")] if left_out else []
        return [_section("draft", about), tree, *more]

    def _figures(self) -> Text:
        """What the step yielded and cost, and the whole answer so far."""
        tally = Tally()
        step = self.trace.steps[self.number - 1]
        for event in self.trace.events:
            tally.add(event)
            if event is step:
                break
        parts = [
            styled(counted(len(step.token_ids), "token"), "bold"),
            Text(f"width {step.width}"),
            Text(f"{step.seconds * 1000:.1f} ms"),
            Text(f"{tally.tokens_per_step:.2f} tokens per step so far"),
        ]
        plain = self.trace.header.plain_step
        if plain and (speedup := tally.speedup(plain)):
            parts.append(Text(f"{speedup:.1f}× plain"))
        return Text(" · ", "dim").join(parts)


def origins(trace: Trace, number: int) -> list[int | None]:
    """For each row of a step's window the step whose outputs it is; None for its first row."""
    made: list[int] = []
    rows = columns = 0
    for place, step in enumerate(trace.steps[:number], start=1):
        if step.detail is None or not step.detail.window:
            continue
        detail = step.detail
        if len(detail.window) < rows or len(detail.outputs) > columns:
            made = []  # a window loses columns only, and rows never: this is a new one
        rows, columns = len(detail.window), len(detail.outputs)
        made.append(place)
    earlier = made[:-1][-rows:] if rows else []
    return [*[None] * (rows - len(earlier)), *earlier]


_Chain = tuple[int, list[int]]
"""Nodes that share a line, each the only child of the one before, and the first one's parent."""


def _chains(detail: Detail, count: int) -> list[_Chain]:
    """The tree's first `count` nodes and the accepted ones, accepted siblings first."""
    accepted = set(detail.accepted)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(detail.parents):
        if node < count or node in accepted:
            children.setdefault(parent, []).append(node)
    chains = []
    parents = [ROOT]
    while parents:
        parent = parents.pop()
        for node in sorted(children.get(parent, []), key=lambda node: node not in accepted):
            nodes = [node]
            while len(below := children.get(nodes[-1], [])) == 1 and (
                (below[0] in accepted) == (node in accepted)
            ):
                nodes.append(below[0])
            chains.append((parent, nodes))
            parents.append(nodes[-1])
    return chains


def _fitting(detail: Detail, height: int) -> tuple[list[_Chain], int]:
    """The nodes that fit in `height` lines, those first that were proposed first.

    Accepted nodes are always there.

    Returns:
        The lines, and how many nodes are left out; their count takes one of the lines.
    """
    total = len(detail.tree)
    chains = _chains(detail, total)
    if len(chains) <= height:
        return chains, 0
    counts = range(total + 1)
    fits = bisect_right(counts, height - 1, key=lambda count: len(_chains(detail, count))) - 1
    chains = _chains(detail, max(fits, 0))
    return chains, total - sum(len(nodes) for _, nodes in chains)


def _chain_label(detail: Detail, nodes: list[int], spell: Callable[[int], str]) -> Text:
    """The tokens of a line of the tree; accepted ones have a check mark."""
    label = _line()
    for node in nodes:
        style = style_of(detail.sources[node])
        label.append(" " if len(label) else "")
        word = visible(spell(detail.tree[node]))
        if node in detail.accepted:
            label.append(f"{word} ✓", f"bold {style}")
        else:
            label.append(word, f"dim {style}")
    return label


def _line(text: str = "", style: str = "") -> Text:
    """Text that Rich crops with an ellipsis instead of wrapping it."""
    return Text(no_wrap=True, overflow="ellipsis").append(text, style)


def _section(name: str, about: str) -> Rule:
    """The line above a part of the screen."""
    return Rule(styled(f"{name} ", "bold").append(about, "dim"), align="left", style="dim")


HELP = """\
→  Space  Enter  n   the next step
←  p  b              the step before
PgDn  PgUp           ten steps on, ten back
Home  g   End  G     the first step, the last
?                    this help, and back
q  Esc  Ctrl-C       leave

The tokens of a step stand after ▸ in the text, in the color of
the source that proposed them; those of the model itself are plain.
window   cell (0, 0) is the current token; every row is what an
         earlier step put out, and moves up with each step
n-grams  the columns of the window, closed by the newest row
draft    what was verified: ✓ is accepted, → is the model's choice"""
_KEYS = (" ← → step · PgUp PgDn ten · g G ends · ? help · q leave", " ← → · ? help · q leave", "")


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
        self._helping = False
        body = Window(FormattedTextControl(self._body, show_cursor=False))
        footer = Window(FormattedTextControl(self._footer), height=1, style="reverse")
        self._app: Application[None] = Application(
            Layout(HSplit([body, footer])), key_bindings=self._bindings(), full_screen=True
        )
        # Seconds that Esc waits for the rest of a key that starts with it.
        self._app.ttimeoutlen = 0.05

    def run(self) -> None:
        """Show steps until the user leaves."""
        try:
            self._app.run()
        except (EOFError, KeyboardInterrupt):
            return

    def _body(self) -> ANSI | str:
        if self._helping:
            return HELP
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
            view = StepView(self._trace, self._number)
            console.print(view, height=max(size.rows - 1, 1), end="")
        return ANSI(capture.get())

    def _footer(self) -> StyleAndTextTuples:
        width = self._app.output.get_size().columns
        place = f"step {self._number} of {len(self._trace.steps)} "
        keys = next(keys for keys in _KEYS if not keys or len(keys) + len(place) < width)
        return [("", keys + place.rjust(width - len(keys)))]

    def _go(self, number: int) -> None:
        self._number = min(max(number, 1), len(self._trace.steps))
        self._helping = False

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        def walk(steps: int, *keys: str) -> None:
            for key in keys:
                bindings.add(key)(lambda _event: self._go(self._number + steps))

        walk(1, "right", "down", "space", "enter", "n", "j")
        walk(-1, "left", "up", "backspace", "p", "b", "k")
        walk(10, "pagedown")
        walk(-10, "pageup")
        walk(-len(self._trace.steps), "home", "g")
        walk(len(self._trace.steps), "end", "G")

        def toggle_help(_event: Any) -> None:
            self._helping = not self._helping

        for key in ("?", "h"):
            bindings.add(key)(toggle_help)
        # Pasted color codes are taken for a mouse's, and break prompt_toolkit's handler of those.
        bindings.add(Keys.Vt100MouseEvent)(lambda _event: None)
        for key in ("q", "escape", "c-c", "c-d"):
            bindings.add(key)(lambda event: event.app.exit())
        return bindings
