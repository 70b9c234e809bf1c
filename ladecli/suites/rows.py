"""Rows of a suite: what a user says, turn by turn, and how a line of JSON says it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

UNNAMED = "all"
"""The category of rows that name none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation of a suite, as far as the user has a say in it.

    Attributes:
        id: its name within the suite.
        category: what it is an example of.
        turns: what the user says, one text a turn; at least one, none of them blank.
    """

    id: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under which a file keeps what makes a row."""

    id: str = "id"
    prompt: str = "prompt"


class _BrokenError(Exception):
    """What is wrong with a row, in a few words."""


def parse(text: str, where: str, keys: Keys | None = None) -> dict[int, Row]:
    """The rows of a text of JSON lines, by the numbers of their lines, from 1 on.

    Blank lines are passed over, and so are keys that are not known.  Without an id a row is
    named after its line, without a category it belongs to `UNNAMED`.

    Args:
        text: a JSON object a line, with `prompt` or `turns`, of which `prompt` comes first.
        where: the name of the text in messages.
        keys: where they are others than "id" and "prompt".

    Raises:
        UsageError: rows are broken; the message says what is wrong with the first, and how
            many more there are.
    """
    rows: dict[int, Row] = {}
    broken: list[str] = []
    # Other line separators than this one may stand within a string of JSON.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows[number] = _row(line, number, keys or Keys())
        except _BrokenError as error:
            broken.append(f"{where}, line {number}: {error}")
    if broken:
        more = len(broken) - 1
        others = f"; {more} more row{' is' if more == 1 else 's are'} broken" if more else ""
        raise UsageError(broken[0] + others)
    return rows


def refuse_repeated(rows: dict[int, Row], where: str) -> None:
    """See to it that results can be told apart by the ids of their rows.

    Args:
        rows: by the numbers of their lines.
        where: the name of the text that they are from.

    Raises:
        UsageError: two rows have one id; the message names both lines.
    """
    first: dict[str, int] = {}
    for number, row in rows.items():
        if row.id in first:
            raise UsageError(
                f"{where}, lines {first[row.id]} and {number}: both rows have the id {row.id!r};"
                " give each its own"
            )
        first[row.id] = number


def _row(line: str, number: int, keys: Keys) -> Row:
    """The row that a line holds."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise _BrokenError(f"no JSON ({error.msg})") from None
    except RecursionError:
        raise _BrokenError("no JSON that can be read (nested too deeply)") from None
    except ValueError:  # Python refuses to read whole numbers of thousands of digits
        raise _BrokenError("no JSON that can be read (a number is too long)") from None
    if not isinstance(found, dict):
        raise _BrokenError(f"must be an object with {keys.prompt!r} or 'turns'")
    return Row(
        id=_label(found, keys.id) or name_of(number),
        category=_label(found, "category") or UNNAMED,
        turns=_turns(found, keys),
    )


def _label(found: dict[str, Any], key: str) -> str:
    """A name, or a number in its place; empty where there is none."""
    value = found.get(key)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _BrokenError(f"the {key} must be a string or a number")
    return _whole(str(value), f"the {key}").strip()


def _turns(found: dict[str, Any], keys: Keys) -> tuple[str, ...]:
    """What the user says."""
    prompt, turns = found.get(keys.prompt), found.get("turns")
    if prompt is not None:
        if not isinstance(prompt, str):
            raise _BrokenError(f"the {keys.prompt} must be a string")
        return (_said(prompt, f"the {keys.prompt}"),)
    if turns is None:
        raise _BrokenError(f"needs {keys.prompt!r} or 'turns'")
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise _BrokenError("the turns must be a list of strings")
    if not turns:
        raise _BrokenError("the list of turns is empty")
    return tuple(_said(turn, f"turn {place}") for place, turn in enumerate(turns, start=1))


def _said(text: str, what: str) -> str:
    if not text.strip():
        raise _BrokenError(f"{what} is empty")
    return _whole(text, what)


def _whole(text: str, what: str) -> str:
    """The text, if all of it is characters: JSON can spell halves of them."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise _BrokenError(f"{what} holds {half}, half of a character") from None
    return text


def name_of(line: int) -> str:
    """The id of a row that has none of its own."""
    return f"line-{line}"
