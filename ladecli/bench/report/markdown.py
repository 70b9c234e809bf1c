"""A report in GitHub's Markdown: text and tables, whatever names have in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...table import Table
from .document import Document, Section, document
from .shades import best, text_of
from .summary import Summary
from .sweeps import Grid

# Whatever means something to Markdown, to its HTML or to GitHub's mentions, wherever it stands.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&@])")
_LIST = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+])(?=\s|$)")


def markdown(summary: Summary) -> str:
    """The whole text."""
    return "\n".join(_lines(document(summary))) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    marked = _SPECIAL.sub(r"\\\1", text)
    # Addresses become links without any brackets.
    marked = re.sub(r"(?i)(https?|ftp)(:)//", r"\1\\\2//", marked).replace("www.", "www\\.")
    return _LIST.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", marked)


def _lines(report: Document) -> Iterator[str]:
    yield f"# {escaped(report.title)}"
    for sentence in report.verdict:
        yield from ("", f"**{escaped(sentence)}**")
    for doubt in report.doubts:
        yield from ("", f"> Note: {escaped(doubt)}")
    for section in report.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield from ("", f"## {escaped(section.title)}")
    for text in section.text:
        yield from ("", escaped(text))
    for grid in section.grids:
        yield from ("", f"### {escaped(grid.title)}", "")
        yield from _heat_map(grid)
    for table in section.tables:
        if table.title != section.title:
            yield from ("", f"### {escaped(table.title)}")
        yield ""
        yield from _table(table)
        for note in table.footnotes:
            yield from ("", escaped(note))
    if section.details:
        yield from ("", "<details><summary>All figures</summary>")
        for table in section.details:
            yield from ("", f"### {escaped(table.title)}", "")
            yield from _table(table)
        yield from ("", "</details>")


def _table(table: Table) -> Iterator[str]:
    yield _row([escaped(column.title) for column in table.columns])
    yield _row(["---:" if column.number else "---" for column in table.columns])
    for row in table.rows:
        yield _row([escaped(cell) for cell in row])


def _heat_map(grid: Grid) -> Iterator[str]:
    """A grid whose highest figure is bold."""
    top = best(grid)
    yield _row([escaped(f"{grid.down} \\ {grid.across}"), *(escaped(c) for c in grid.columns)])
    yield _row(["---", *("---:" for _ in grid.columns)])
    for name, cells in zip(grid.rows, grid.cells, strict=True):
        shown = (
            f"**{text_of(cell, grid)}**" if cell == top else escaped(text_of(cell, grid))
            for cell in cells
        )
        yield _row([escaped(name), *shown])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
