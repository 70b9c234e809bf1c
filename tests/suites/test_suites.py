"""The builtin suite, and parts of suites."""

from __future__ import annotations

from collections import Counter

import pytest

from ladecli import suites
from ladecli.suites import Row


def test_the_builtin_suite_is_whole() -> None:
    rows = suites.load("builtin").rows
    assert len({row.id for row in rows}) == len(rows) == 18
    categories = ("chat", "code", "maths", "summary", "translation", "retrieval")
    assert Counter(row.category for row in rows) == dict.fromkeys(categories, 3)
    assert {len(row.turns) for row in rows} == {1, 2}


def row(name: str) -> Row:
    return Row(name, name[0], ("text",))


ROWS = tuple(row(name) for name in ("b1", "b2", "a1", "b3", "c1", "a2"))


@pytest.mark.parametrize(
    ("limit", "names"),
    [
        (1, "b1"),
        (2, "b1 a1"),
        (3, "b1 a1 c1"),
        (5, "b1 a1 c1 b2 a2"),
        (6, "b1 a1 c1 b2 a2 b3"),
        (99, "b1 a1 c1 b2 a2 b3"),
        (None, "b1 b2 a1 b3 c1 a2"),
    ],
)
def test_a_part_has_something_of_every_category(limit: int | None, names: str) -> None:
    assert " ".join(found.id for found in suites.some(ROWS, limit)) == names
