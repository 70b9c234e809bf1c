"""A table as a value: what every format of a report shows, and what it can do without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

NONE = "-"
"""What stands where there is no figure."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: at its head.
        number: whether it holds numbers, which end at its right side.
        weight: the greatest is left out first where there is no room; 0 always stays.
        note: what it holds, for the footnote of tables that have it.
    """

    title: str
    number: bool = True
    weight: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows and columns; nothing in it is escaped.

    Attributes:
        title: above it.
        columns: the first one names the row.
        rows: as many cells in each as there are columns.
        notes: below it, each a line of its own.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Below it: what its columns hold, and its own notes."""
        explained = "; ".join(column.note for column in self.columns if column.note)
        return (explained, *self.notes) if explained else self.notes

    def of_columns(self, kept: Sequence[int]) -> Table:
        """The table with some columns only, by number."""
        return replace(
            self,
            columns=tuple(self.columns[number] for number in kept),
            rows=tuple(tuple(row[number] for number in kept) for row in self.rows),
        )

    def without_empty(self) -> Table:
        """The table without columns in which no row has anything; those of weight 0 stay."""
        kept = [
            number
            for number, column in enumerate(self.columns)
            if not column.weight or any(row[number] != NONE for row in self.rows)
        ]
        return self.of_columns(kept)
