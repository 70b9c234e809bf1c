"""The axes of a sweep, as they are typed: "W=5,10,15 N=3,5 G=W"."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..decoder.config import SOURCES
from ..errors import UsageError

LONG = {"window": "W", "ngram": "N", "guesses": "G"}
"""Other names that axes go by: those of the options that they stand for."""
NUMBERS = {**{letter: name for name, letter in LONG.items()}, "budget": "budget"}
"""Axes that are options with a whole number."""
ALL_SOURCES = "all"
"""The value of the axis `sources` that stands for all of them."""


def parse(texts: Sequence[str], known: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values by axis, in the order in which they were typed.

    Args:
        texts: each with one axis or several, "W=5,10 N=3,5"; lists have commas.
        known: names of the axes that there may be.

    Raises:
        UsageError: the message says what is wrong with which axis.
    """
    found: dict[str, tuple[str, ...]] = {}
    if texts and not any(text.split() for text in texts):
        raise UsageError("--sweep is empty; give axes, such as 'W=5,10 N=3', or leave it out")
    for word in itertools.chain.from_iterable(text.split() for text in texts):
        name, equals, listed = word.partition("=")
        name = LONG.get(name, name)
        if not equals or name not in known:
            raise UsageError(
                f"--sweep {word}: an axis is NAME=VALUE,VALUE with a name of {', '.join(known)}"
            )
        values = tuple(dict.fromkeys(value for value in listed.split(",") if value))
        if not values:
            raise UsageError(f"--sweep {word}: {name} has no values")
        if name in found:
            raise UsageError(f"--sweep has {name} twice; give all its values in one list")
        found[name] = values
    return found


def cells(axes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Every combination of the values, the last axis fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def options(values: Mapping[str, str]) -> dict[str, Any]:
    """The options of a request that stand for a cell.

    Args:
        values: by axis; numbers in digits, several sources joined by +.
    """
    found: dict[str, Any] = {}
    for axis, value in values.items():
        if axis in NUMBERS:
            found[NUMBERS[axis]] = int(value)
        elif axis == "sources":
            found[axis] = ",".join(SOURCES) if value == ALL_SOURCES else value.replace("+", ",")
        else:
            found[axis] = value
    return found
