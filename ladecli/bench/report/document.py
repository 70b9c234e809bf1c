"""The order in which every format tells a result: headline, doubts, sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...table import Table
from ..wording import clean
from . import conditions, sweeps, tables, time_tables
from .doubts import doubts
from .summary import Summary
from .verdict import verdict

PAPER = (
    "The paper (arXiv 2402.02057, section 4.2) finds that tokens per step grow linearly with the"
    " logarithm of the work per step, if N is large enough."
)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report.

    Attributes:
        key: by which formats with pictures find theirs.
        title: at its head.
        text: paragraphs below it.
        grids: figures over two axes.
        lines: figures along one axis, by title.
        law: the paper's.
        tables: below those.
        details: figures that are looked up rather than read; a terminal leaves them out.
    """

    key: str
    title: str
    text: tuple[str, ...] = ()
    grids: tuple[sweeps.Grid, ...] = ()
    lines: Mapping[str, tuple[sweeps.Series, ...]] = field(default_factory=dict)
    law: sweeps.Law | None = None
    tables: tuple[Table, ...] = ()
    details: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report; nothing in it is escaped.

    Attributes:
        title: model and machine.
        verdict: the answer, in sentences.
        doubts: what speaks against it.
        sections: the rest.
    """

    title: str
    verdict: tuple[str, ...]
    doubts: tuple[str, ...]
    sections: tuple[Section, ...]


def document(summary: Summary) -> Document:
    """What every format shows of a result."""
    result = summary.result
    return Document(
        title=f"{clean(result.model.name)} on {clean(result.machine.device)}",
        verdict=tuple(verdict(summary)),
        doubts=tuple(doubts(summary)),
        sections=tuple(_sections(summary)),
    )


def _sections(summary: Summary) -> Iterator[Section]:
    if summary.overall:
        yield Section("overall", "How fast", tables=(tables.overall(summary),))
    if grids := tuple(sweeps.grids(summary)):
        yield Section("sweep", "The sweep", grids=grids)
    elif lines := sweeps.lines(summary):
        yield Section("sweep", "The sweep", lines=lines)
    if (law := sweeps.law(summary)) is not None:
        text = (PAPER, *(f"{line[:1].upper()}{line[1:]}." for line in sweeps.law_sentences(law)))
        yield Section("law", "The paper's law", text, law=law)
    if by_category := tuple(tables.categories(summary)):
        title = "By length of the context" if summary.of_contexts else "By category"
        details = tuple(tables.by_category(summary))
        lines = sweeps.over_contexts(summary)
        yield Section("categories", title, lines=lines, tables=by_category, details=details)
    spent = tuple(time_tables.tables(summary))
    source = tables.sources(summary)
    if spent:
        details = tuple(time_tables.details(summary))
        yield Section("time", "Where the time goes", tables=spent, details=details)
    if source is not None:
        yield Section("sources", "Where accepted tokens come from", tables=(source,))
    yield Section("conditions", "How it was measured", tables=tuple(conditions.tables(summary)))
