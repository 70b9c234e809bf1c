"""A console that records what is printed, and what it recorded as a picture or as a page."""

from __future__ import annotations

import io
import re
from html import escape, unescape

from rich.cells import cell_len
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
{stylesheet}
STYLE
</style>
<pre>{code}</pre>
</html>
"""
# Braces are doubled: Rich fills the page in by `str.format`.
_TERMINAL_STYLE = """\
body {{ color: {foreground}; background: {background}; margin: 0 auto; max-width: 52rem; }}
pre {{ padding: 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }}"""
_PAPER_STYLE = """\
:root {{ color-scheme: light dark; }}
body {{ margin: 0 auto; width: fit-content; max-width: 100%; }}
pre {{ padding: 1rem; margin: 0; overflow-x: auto; font: .9rem/1.4 ui-monospace, monospace; }}"""


def recording_console(columns: int) -> Console:
    """A console that prints nothing and records all."""
    return Console(
        width=columns,
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        legacy_windows=False,
        highlight=False,
    )


def as_html(console: Console, title: str, *, tables: bool = False) -> str:
    """The record of a console as a page without scripts, which loads nothing.

    Text looks as in a dark terminal, and lines are wrapped.  A page of `tables` is light or dark as
    its reader has it, and its lines are whole.
    """
    theme, style = SVG_EXPORT_THEME, _TERMINAL_STYLE
    if tables:
        theme, style = DEFAULT_TERMINAL_THEME, _PAPER_STYLE
    page = console.export_html(code_format=_PAGE.replace("STYLE", style), theme=theme)
    return page.replace("TITLE", escape(title), 1)


def as_svg(console: Console, title: str) -> str:
    """The record of a console as a picture of a terminal."""
    svg = console.export_svg(title=title, theme=SVG_EXPORT_THEME, unique_id="lade")
    # No web fonts: a file must not ask another host for anything.
    svg = re.sub(r"<!--.*?-->|@font-face \{.*?\}", "", svg, count=3, flags=re.DOTALL)

    def in_cells(run: re.Match[str]) -> str:
        # Rich counts characters: wide ones, which take two cells, would be pressed together.
        length = 12.2 * cell_len(unescape(run["text"]))
        return f'textLength="{length:g}"{run["rest"]}>{run["text"]}<'

    return re.sub(r'textLength="[^"]*"(?P<rest>[^>]*)>(?P<text>[^<]+)<', in_cells, svg)
