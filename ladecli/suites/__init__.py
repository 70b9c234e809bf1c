"""Suites of prompts: the builtin one, the field's own from the hub, and files of the user's.

The builtin suite was written for this program: chat, code, maths, summary, translation, retrieval.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Protocol, TypeVar

from ..errors import UsageError
from . import fetched, files
from .rows import Row, parse, refuse_repeated

__all__ = ["BUILTIN", "NAMES", "Row", "Suite", "load", "some"]

BUILTIN = "builtin"
NAMES = (BUILTIN, *fetched.NAMES)
"""All suites that have a name."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Rows that belong together.

    Attributes:
        name: one of `NAMES`, the path of a file as it was typed, or "standard input".
        rows: at least one, each with an id of its own.
    """

    name: str
    rows: tuple[Row, ...]


def load(name: str, *, offline: bool = False, progress: bool = False) -> Suite:
    """A suite by its name, or the rows of a file.

    Args:
        name: one of `NAMES`, the path of a JSONL file, or "-" for standard input; a file that is
            called like a suite is ./NAME.
        offline: whether the hub must not be asked.
        progress: whether a download shows a bar on stderr.

    Raises:
        UsageError: there is no such suite or file, or a row of it makes no sense.
        LadeError: a suite cannot be fetched.
    """
    if name == BUILTIN:
        text = resources.files(__name__).joinpath("builtin.jsonl").read_text(encoding="utf-8")
        return Suite(name, tuple(parse(text, name).values()))
    if name in fetched.NAMES:
        return Suite(name, fetched.fetch(name, offline=offline, progress=progress))
    if not _is_path(name):
        raise UsageError(_unknown(name))
    rows = files.read_rows(name)
    refuse_repeated(rows, files.short(name))
    return Suite(files.short(name), tuple(rows.values()))


class _Categorised(Protocol):
    """Whatever has a category."""

    @property
    def category(self) -> str:
        """Its name."""


_Kind = TypeVar("_Kind", bound=_Categorised)


def some(rows: Sequence[_Kind], limit: int | None) -> tuple[_Kind, ...]:
    """A part of a suite that has something of every category, as far as it goes.

    Args:
        rows: of the suite.
        limit: at most so many, at least 1; None for all of them.

    Returns:
        The first rows of all categories, then the second ones, and so on, categories in the
        order in which they appear; without a limit the rows as they are.
    """
    if limit is None:
        return tuple(rows)
    by_category: dict[str, list[_Kind]] = {}
    ranks = []
    for row in rows:
        alike = by_category.setdefault(row.category, [])
        ranks.append(len(alike))
        alike.append(row)
    order = {category: place for place, category in enumerate(by_category)}
    dealt = sorted(
        zip(ranks, rows, strict=True), key=lambda pair: (pair[0], order[pair[1].category])
    )
    return tuple(row for _, row in dealt[:limit])


def _is_path(name: str) -> bool:
    """Whether a name that no suite has is meant as a file's."""
    looks_it = os.sep in name or "/" in name or name.endswith((".jsonl", ".json"))
    return name == files.STDIN or looks_it or (name != "" and os.path.exists(name))


def _unknown(name: str) -> str:
    """What to say of a name that is neither a suite's nor a file's."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), NAMES, n=1)
    if near:
        return f"there is no suite {name!r}; did you mean {near[0]}?"
    return (
        f"there is neither a suite nor a prompt file {name!r}; suites are {', '.join(NAMES)}, and"
        " files end in .jsonl"
    )
