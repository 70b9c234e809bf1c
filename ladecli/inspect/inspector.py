"""One step of a recorded generation as a screen: its text, window, n-grams and candidates."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from ..cells import cropped, section, styled, visible, wrapped
from ..decoder.events import Detail
from ..events import TextStep
from ..metrics import Tally
from ..visualize import counted, printable, style_of
from .trace import Header, Trace
from .tree_lines import tree_lines
from .window_lines import ngram_lines, window_lines

_TEXT_LINES = 5
"""The most lines of the text so far; a step changes the last one."""


def inspect_step(trace: Trace, number: int, width: int, height: int | None = None) -> Text:
    """What step `number` saw, tried and yielded.

    Args:
        trace: the recorded generation.
        number: of the step; the first is 1.
        width: of the screen in cells, at least 20.
        height: the most lines; None for as many as there are.  The tree is cut first.

    Raises:
        IndexError: there is no such step.
    """
    steps = trace.steps
    if not 0 < number <= len(steps):
        raise IndexError(f"step {number} of {len(steps)}")
    step = steps[number - 1]
    rows = height or 1000
    title = _title(trace.header, number, len(steps), width)
    figures = _figures(trace, number, width)[: max(rows // 3, 1)]
    middle: list[Text] = []
    if step.detail is None:
        middle.append(styled("this trace does not say what the step tried", "dim"))
    else:
        middle += window_lines(trace, number, width)
        middle += ngram_lines(step.detail, trace.spell, width, 2)
    left = rows - 1 - len(figures) - len(middle)
    # Of a low screen the text takes a third, so that some of the tree is in sight.
    text = _text(trace, number, width, max(1, min(_TEXT_LINES, left // 3)))
    left -= len(text)
    tree = [] if step.detail is None else _tree(step, step.detail, trace.spell, width, left)
    body = [*text, *middle, *tree][: max(rows - 1 - len(figures), 1)]
    return Text("\n").join([title, *body, *figures])


def _title(header: Header, number: int, count: int, width: int) -> Text:
    settings = header.settings
    parts = [header.model, str(settings.get("strategy", ""))]
    if "window" in settings:
        names = {"W": "window", "N": "ngram", "G": "guesses"}
        parts.append(" ".join(f"{letter}={settings.get(names[letter])}" for letter in names))
        sources = settings.get("sources")
        parts.append("+".join(map(str, sources)) if isinstance(sources, list) else "")
    # On one line, and nothing in it that a terminal could take for a command.
    about = visible(" · ".join(filter(None, parts))).replace("␣", " ")
    line = styled(f" step {number} of {count} ", "reverse bold")
    return cropped(line.append(f" {about}", "dim"), width)


def _text(trace: Trace, number: int, width: int, height: int) -> list[Text]:
    """The last lines of the text, with this step's tokens marked."""
    before, answer = styled(printable(trace.header.prompt), "dim"), Text()
    for step in trace.steps[: number - 1]:
        for piece in step.pieces:
            answer.append(printable(piece.text))
    new = styled("▸", "bold")
    for piece in trace.steps[number - 1].pieces:
        for line, part in enumerate(piece.text.split("\n")):
            # The line break is drawn, and made.
            new.append("⏎\n" if line else "", f"bold {style_of(piece.source)}")
            new.append(visible(part) if part else "", f"bold underline {style_of(piece.source)}")
    known = before + answer
    # A screen shows no more than this; wrapping a book for every key would take its time.
    # Whole lines, so that they break where they did a step before.
    start = known.plain.rfind("\n", 0, max(len(known) - width * (height + 1), 0)) + 1
    known = known[start:] if start else known
    known.expand_tabs(4)
    return wrapped(known + new, width)[-height:]


def _tree(
    step: TextStep, detail: Detail, spell: Callable[[int], str], width: int, height: int
) -> list[Text]:
    about = "none in this step"
    if detail.tree:
        about = f"{len(detail.tree)} proposed, {len(detail.accepted)} accepted"
    lines = tree_lines(step, detail, spell, width, max(height - 1, 2))
    return [section("draft", about, width), *lines]


def _figures(trace: Trace, number: int, width: int) -> list[Text]:
    """What the step yielded and cost, and how the answer does so far."""
    tally = Tally()
    step = trace.steps[number - 1]
    for event in trace.events:
        tally.add(event)
        if event is step:
            break
    parts = [
        styled(counted(len(step.token_ids), "token"), "bold"),
        Text(f"width {step.width}"),
        Text(f"{step.seconds * 1000:.1f} ms"),
        Text(f"{tally.tokens_per_step:.2f} tokens per step so far"),
    ]
    plain = trace.header.plain_step
    if plain and (speedup := tally.speedup(plain)):
        parts.append(Text(f"{speedup:.1f}× plain"))
    lines = [Text()]
    for part in parts:
        if len(lines[-1]) and lines[-1].cell_len + 3 + len(part) > width:
            lines.append(Text())
        lines[-1] += (styled(" · ", "dim") if len(lines[-1]) else Text()) + part
    return [cropped(line, width) for line in lines]
