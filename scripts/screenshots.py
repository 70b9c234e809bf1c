"""Make the pictures of the README: the real program's screen in a pseudo-terminal, as SVG.

    python scripts/screenshots.py --model Qwen2.5-Coder-0.5B-Instruct

Needs the packages of the test extra.  Nothing is touched up: what the pictures show was said and
measured while they were made, so the figures differ from run to run.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tempfile
from itertools import dropwhile, takewhile
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import terminal as terminals
from tests.support.terminal import Terminal

terminals.PATIENCE = 1200.0  # a bench of a real model takes minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--model", default="demo")
    parser.add_argument("--only", action="append", choices=PICTURES, help="these pictures alone")
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    for name, take in PICTURES.items():
        if name in (args.only or PICTURES):
            take(args.model, args.out)


RENAMED = """Rename the function area to surface, and write it out whole:
```python
def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("width and height must not be negative")
    return width * height
```"""


def live(model: str, out: Path) -> None:
    """Draw an unfinished reply; meant for a real model, which repeats much of its code."""
    with Terminal("chat", model, RENAMED, "-t", "0", "-n", "120", columns=80, lines=20) as terminal:
        terminal.wait(lambda text: text.count("must not be") == 2)
        draw(terminal.screen, "lade chat", out / "live.svg", since="> Rename")


def chat(model: str, out: Path) -> None:
    """Draw a conversation; meant for a real model, whose second reply repeats much of the first."""
    with Terminal("chat", model, "-t", "0", "-n", "240", columns=88, lines=60) as terminal:
        terminal.wait("Ctrl-T")
        terminal.enter("Write a Python class Stack with the methods push, pop and peek. Only code.")
        terminal.wait("tokens per step")
        again = "Write it again, with the class renamed to Pile."
        terminal.enter(again)
        terminal.wait(lambda text: text.count("tokens per step") == 2)
        terminal.enter("/compare")
        terminal.wait("same text")
        terminal.read(0.5)
        draw(terminal.screen, "lade chat", out / "chat.svg", since=f"> {again}")
        terminal.enter("/exit")
        terminal.close()


def inspector(model: str, out: Path) -> None:
    """Draw one step in the inspector, like the figures of the paper."""
    with tempfile.TemporaryDirectory() as folder:
        trace = f"{folder}/generation.trace"
        options = ["--raw", "-p", "class Queue:", "-n", "120", "--sources", "trajectory"]
        options += ["-W", "6", "-N", "4", "-G", "5", "--trace", trace]
        with Terminal("generate", model, *options) as terminal:
            terminal.close()
        with Terminal("replay", trace, "--step", columns=100, lines=24) as terminal:
            terminal.wait("step 1 of")
            for step in range(2, 60):  # to the first that accepted much
                terminal.send(" ")
                seen = terminal.wait(f"step {step} of")
                if "4 tokens" in seen:
                    break
            draw(terminal.screen, "lade replay --step", out / "inspector.svg")
            terminal.send("q")
            terminal.close()


def bench(model: str, out: Path) -> None:
    """Draw the main table of a benchmark and its headline."""
    methods = "autoregressive,prompt-lookup,paper,lookahead,hf"
    options = ["--color", "always", "--strategies", methods]
    with Terminal("bench", model, *options, columns=104, lines=84) as terminal:
        terminal.close()
        title = f"lade bench {model}"
        draw(terminal.screen, title, out / "bench.svg", since=model, until="Speed-up by")


PICTURES = {"live": live, "chat": chat, "inspector": inspector, "bench": bench}


def draw(
    screen: pyte.Screen, title: str, path: Path, *, since: str = "", until: str | None = None
) -> None:
    """Write rows of a screen as an SVG file, from `since` up to the one before `until`."""
    rows = [row(screen, line) for line in range(screen.lines)]
    rows = [*dropwhile(lambda row: not row.plain.startswith(since), rows)]
    if until is not None:
        rows = [*takewhile(lambda row: not row.plain.startswith(until), rows)]
    while rows and not rows[-1].plain.strip():
        rows.pop()
    console = Console(
        width=screen.columns,
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        legacy_windows=False,
        highlight=False,
    )
    console.print(Text("\n").join(rows), no_wrap=True, crop=True)
    svg = console.export_svg(title=title, theme=SVG_EXPORT_THEME, unique_id="lade")
    # No web fonts, since a picture must not load anything from another host.
    svg = re.sub(r"<!--.*?-->|@font-face \{.*?\}", "", svg, count=3, flags=re.DOTALL)
    path.write_text(svg, encoding="utf-8")
    print(path)


def row(screen: pyte.Screen, line: int) -> Text:
    """Return one row of a screen with its colours."""
    cells = (screen.buffer[line][column] for column in range(screen.columns))
    # The second half of a wide character is empty.
    return Text.assemble(*((cell.data, style_of(cell)) for cell in cells if cell.data))


def style_of(cell: pyte.terminal.Char) -> Style:
    return Style(
        color=colour(cell.fg),
        bgcolor=colour(cell.bg),
        bold=cell.bold,
        italic=cell.italics,
        underline=cell.underscore,
        reverse=cell.reverse,
    )


def colour(name: str) -> str | None:
    """Convert a colour of pyte's to one of Rich's."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-fA-F]{6}", name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


if __name__ == "__main__":
    main()
