"""Suites of prompts: the builtin one, the field's own from the hub, and files of the user's.

The builtin suite was written for this program: chat, code, maths, summary, translation, retrieval.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from .. import files
from ..errors import UsageError
from . import hub

BUILTIN = "builtin"
NAMES = (BUILTIN, *hub.NAMES)
"""All suites that have a name."""
STDIN = "-"
"""The name of standard input."""


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation of a suite.

    Attributes:
        id: its name within the suite.
        category: what it is an example of.
        turns: the user's texts; at least one, none of them blank.
    """

    id: str
    category: str
    turns: tuple[str, ...]


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
        UsageError: there is no such suite or file, or a row of it is invalid.
        LadeError: a suite cannot be fetched.
    """
    if name == BUILTIN:
        text = resources.files(__name__).joinpath("builtin.jsonl").read_text(encoding="utf-8")
        return Suite(name, tuple(_parse(text, name).values()))
    if name in hub.NAMES:
        found = hub.fetch(name, offline=offline, progress=progress)
        return Suite(name, tuple(Row(*each) for each in found))
    looks_like_a_path = "/" in name or os.sep in name or name.endswith((".jsonl", ".json"))
    if name != STDIN and not looks_like_a_path and not (name and os.path.exists(name)):
        near = difflib.get_close_matches(name.lower().replace("_", "-"), NAMES, n=1)
        if near:
            raise UsageError(f"there is no suite {name!r}; did you mean {near[0]}?")
        raise UsageError(
            f"there is neither a suite nor a prompt file {name!r}; suites are {', '.join(NAMES)},"
            " and files end in .jsonl"
        )
    rows, where = read_rows(name), _short(name)
    lines: dict[str, int] = {}
    for number, row in rows.items():
        if row.id in lines:
            raise UsageError(
                f"{where}, lines {lines[row.id]} and {number}: both rows have the id {row.id!r};"
                " give each its own"
            )
        lines[row.id] = number
    return Suite(where, tuple(rows.values()))


def some(rows: Sequence[Row], limit: int | None) -> tuple[Row, ...]:
    """At most `limit` rows: the first of every category, then the second of each, and so on."""
    if limit is None:
        return tuple(rows)
    categories = list(dict.fromkeys(row.category for row in rows))
    ranks = dict.fromkeys(categories, 0)
    order = []
    for index, row in enumerate(rows):
        order.append((ranks[row.category], categories.index(row.category), index))
        ranks[row.category] += 1
    return tuple(rows[index] for _, _, index in sorted(order)[:limit])


def spoken(name: str) -> str:
    """A file of prompts, or standard input, in an error message."""
    return "standard input" if name == STDIN else f"the prompt file {name}"


def name_of(line: int) -> str:
    """The id of a row that has none of its own."""
    return f"line-{line}"


def read_text(name: str) -> str:
    """The text of a file, or of standard input.

    Raises:
        UsageError: it cannot be read, or holds no text; the message names it and the fix.
    """
    if name == STDIN and sys.stdin is None:
        raise UsageError("standard input is closed; name a file in place of -")
    try:
        if name == STDIN:
            data = files.read_stream(sys.stdin.buffer)
        else:
            data = files.read(Path(name).expanduser())
    except FileNotFoundError:
        raise UsageError(f"there is no prompt file {name}; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"the prompt file {name} is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{spoken(name)} cannot be read: {reason}") from error
    if b"\0" in data:
        raise UsageError(f"{spoken(name)} is binary (a zero byte); give a text file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{spoken(name)} is not UTF-8 (byte {error.start}); convert it, for example with"
            " iconv -f latin1 -t utf-8"
        ) from None


def read_rows(name: str) -> dict[int, Row]:
    """The rows of a JSONL file, or of standard input, by the numbers of their lines.

    Raises:
        UsageError: it cannot be read, a row is invalid, or there is none.
    """
    text = read_text(name)
    rows = _parse(text, _short(name))
    if not rows:
        problem = "holds no prompts" if text else "is empty"
        raise UsageError(f'{spoken(name)} {problem}; write rows like {{"prompt": "Hello"}}')
    return rows


def _short(name: str) -> str:
    return "standard input" if name == STDIN else name


def _parse(text: str, where: str) -> dict[int, Row]:
    """The rows of a text of JSON lines, by the numbers of their lines, from 1 on.

    Args:
        text: a JSON object a line; unknown keys and blank lines are ignored.
        where: the name of the text in messages.

    Raises:
        UsageError: a row is invalid.
    """
    from .line import invalid, parse

    rows: dict[int, Row] = {}
    # Strings of JSON may contain other line separators than this one.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found = parse(line)
        except ValueError as error:
            raise UsageError(f"{where}, line {number}: {invalid(error)}") from None
        turns = found.turns or [] if found.prompt is None else [found.prompt]
        rows[number] = Row(found.id or name_of(number), found.category or "all", tuple(turns))
    return rows
