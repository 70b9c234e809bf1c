"""Reports of a benchmark: on the terminal, as a page, as Markdown, as a picture, for programs.

`summary.py` computes every figure once; `document.py` says what is told in which order, with
`verdict.py`, `doubts.py`, `tables.py`, `time_tables.py`, `conditions.py` and `sweeps.py` for its
parts;
`terminal.py`, `markdown.py`, `page.py` and `picture.py` show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ... import outputs
from ...errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from ..result import Result

OPTION = "--report"
SUFFIXES = (".html", ".md", ".svg", ".json")
"""Formats of files, by the end of their names."""


def check(path: Path) -> None:
    """Refuse a file that could not be written, before a model is loaded.

    Raises:
        UsageError: its name ends in none of `SUFFIXES`, or nothing can be written there.
    """
    _check_name(path)
    outputs.check(path, OPTION)


def _check_name(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{OPTION} {path}: the name of a report ends in {', '.join(SUFFIXES[:-1])} or"
            f" {SUFFIXES[-1]}"
        )


def show(result: Result, console: Console) -> None:
    """Print a result: as wide as the screen, or on a pipe as wide as it is."""
    from .summary import summarise
    from .terminal import print_report

    print_report(summarise(result), console)


def write(result: Result, path: Path) -> None:
    """Write a result as its file's name says; the same result gives the same bytes.

    Raises:
        UsageError: the name ends in none of `SUFFIXES`.
        LadeError: the file cannot be written.
    """
    outputs.write_whole(path, as_text(result, path), OPTION)


def as_text(result: Result, path: Path) -> str:
    """What a report of that name holds.

    Raises:
        UsageError: the name ends in none of `SUFFIXES`.
    """
    _check_name(path)
    return _FORMATS[path.suffix.lower()](result)


def _html(result: Result) -> str:
    from .page import html
    from .summary import summarise

    return html(summarise(result))


def _markdown(result: Result) -> str:
    from .markdown import markdown
    from .summary import summarise

    return markdown(summarise(result))


def _svg(result: Result) -> str:
    from .picture import svg
    from .summary import summarise

    return svg(summarise(result))


def _json(result: Result) -> str:
    from ..record import text

    return text(result) + "\n"


_FORMATS: Mapping[str, Callable[[Result], str]] = {
    ".html": _html,
    ".md": _markdown,
    ".svg": _svg,
    ".json": _json,
}
