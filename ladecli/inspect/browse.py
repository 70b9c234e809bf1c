"""The steps of a trace, one at a time on the whole screen, with keys to walk among them."""

from __future__ import annotations

import io
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.output import Output
from rich.console import Console

from .inspector import inspect_step
from .trace import Trace

HELP = """\
→  Space  Enter  n   the next step
←  p  b              the step before
PgDn  PgUp           ten steps on, ten back
Home  g   End  G     the first step, the last
?                    this help, and back
q  Esc  Ctrl-C       leave

The tokens of a step stand behind ▸ in the text, in the colour of
the source that guessed them; those of the model itself are plain.
window   cell (0, 0) is the current token; every row is what an
         earlier step put out, and moves up with each step
n-grams  the columns of the window, closed by the newest row
draft    what was verified: ✓ is accepted, → is the model's choice"""
_FOOTER = (" ← → step · PgUp PgDn ten · g G ends · ? help · q leave", " ← → · ? help · q leave")


class Browser:
    """Which step is shown, and how.

    Args:
        trace: with at least one step.
        coloured: whether the screen has colours.
    """

    def __init__(self, trace: Trace, *, coloured: bool) -> None:
        self._trace = trace
        self._coloured = coloured
        self.number = 1
        self.helping = False

    def go(self, number: int) -> None:
        """Show step `number`, or the nearest that there is."""
        self.number = min(max(number, 1), len(self._trace.steps))
        self.helping = False

    def screen(self, width: int, height: int) -> str:
        """The step, or the help, with escape codes for its colours."""
        if self.helping:
            return HELP
        console = Console(
            file=io.StringIO(),
            width=width,
            force_terminal=True,
            color_system="standard",
            no_color=not self._coloured,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        with console.capture() as capture:
            screen = inspect_step(self._trace, self.number, max(width, 20), height)
            console.print(screen, end="", soft_wrap=True)
        return capture.get()

    def footer(self, width: int) -> str:
        """The keys, and which step of how many it is."""
        place = f"step {self.number} of {len(self._trace.steps)} "
        keys = next((keys for keys in _FOOTER if len(keys) + len(place) < width), "")
        return keys + place.rjust(width - len(keys))


def browse(
    trace: Trace, *, coloured: bool, input: Input | None = None, output: Output | None = None
) -> None:
    """Walk through a trace until the user leaves.

    Args:
        trace: with at least one step.
        coloured: whether the screen has colours.
        input: of prompt_toolkit, for tests.
        output: of prompt_toolkit, for tests.
    """
    browser = Browser(trace, coloured=coloured)

    def body() -> ANSI:
        size = app.output.get_size()
        return ANSI(browser.screen(size.columns, max(size.rows - 1, 1)))

    def footer() -> StyleAndTextTuples:
        return [("class:footer", browser.footer(app.output.get_size().columns))]

    app: Application[None] = Application(
        layout=Layout(
            HSplit(
                [
                    Window(FormattedTextControl(body, show_cursor=False)),
                    Window(FormattedTextControl(footer), height=1, style="reverse"),
                ]
            )
        ),
        key_bindings=_keys(browser),
        full_screen=True,
        input=input,
        output=output,
    )
    # How long an Esc waits for the rest of a key that starts with one.
    app.ttimeoutlen = 0.05
    try:
        app.run()
    except (EOFError, KeyboardInterrupt):
        return


def _keys(browser: Browser) -> KeyBindings:
    keys = KeyBindings()

    def walk(by: int, *names: str) -> None:
        for name in names:
            keys.add(name)(lambda _event: browser.go(browser.number + by))

    walk(1, "right", "down", "space", "enter", "n", "j")
    walk(-1, "left", "up", "backspace", "p", "b", "k")
    walk(10, "pagedown")
    walk(-10, "pageup")
    for name in ("home", "g"):
        keys.add(name)(lambda _event: browser.go(1))
    for name in ("end", "G"):
        keys.add(name)(lambda _event: browser.go(10**9))

    @keys.add("?")
    @keys.add("h")
    def _help(_event: Any) -> None:
        browser.helping = not browser.helping

    # Codes of colours are taken for a mouse's, and break what handles those.
    keys.add(Keys.Vt100MouseEvent)(lambda _event: None)
    for name in ("q", "escape", "c-c", "c-d"):
        # Esc is also the first byte of other keys; those win while more bytes come.
        keys.add(name)(lambda event: event.app.exit())
    return keys
