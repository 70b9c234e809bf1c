"""The methods of a request: strategies, or the cells of a sweep over their settings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..decoder.config import SOURCES, SamplingConfig
from ..decoder.errors import ConfigError
from ..errors import UsageError
from ..session import opening
from .result import FOREIGN, PLAIN, STOCK, STOCK_COMPILED, Method, lookahead_shown

if TYPE_CHECKING:
    from ..options.commands import BenchRequest
    from ..profiles import Choice
    from ..session.session import Settings

STRATEGIES = (PLAIN, "jacobi", "prompt-lookup", "paper", "lookahead", *FOREIGN)
"""All strategies, in the order of reports."""
DEFAULT = (PLAIN, "prompt-lookup", "lookahead", STOCK)
"""The strategies without --strategies."""

NUMBERS = {"W": ("window", 1), "N": ("ngram", 2), "G": ("guesses", 0), "budget": ("budget", 1)}
"""The option and the least value of each axis of whole numbers."""
AXES = (*NUMBERS, "sources", "context")

Sweep: TypeAlias = Mapping[str, tuple[str, ...]]
"""Values by axis: numbers in digits, sources joined by + or "all", or the name of another axis."""
Chosen: TypeAlias = "tuple[Method, Settings]"
"""A method and its settings."""
_MethodOptions: TypeAlias = tuple[str, str, dict[str, Any]]
"""The name of a method, its strategy, and its options."""


def check(request: BenchRequest) -> Sweep:
    """Return the sweep, checked as far as that needs no model.

    The value of an axis overrides that of an option.

    Raises:
        UsageError: an unknown strategy or axis, an invalid value, or options that contradict
            each other.
    """
    names, swept = _parse_strategies(request.strategies), _parse_sweep(request.sweep or [])
    if request.strategies and request.parallel_mode == "tensor" and {*names} & {*FOREIGN}:
        raise UsageError(
            "transformers' own generate does not run on a model that ranks share; leave"
            f" {', '.join(FOREIGN)} out of --strategies"
        )
    if "context" in swept and "prompts" in request.origins:
        raise UsageError("--sweep context cuts prompts of its own; leave --prompts out")
    if swept.keys() - {"context"} and request.strategies and names != (PLAIN, "lookahead"):
        raise UsageError(
            "--sweep over settings compares lookahead with itself and plain decoding; leave"
            " --strategies out"
        )
    if STOCK_COMPILED in names and len(swept.get("context", ())) > 1:
        raise UsageError(
            f"{STOCK_COMPILED} has a cache of one length; sweep one context at a time with it"
        )
    return swept


def choose(
    request: BenchRequest, choice: Choice, sampling: SamplingConfig, swept: Sweep
) -> list[Chosen]:
    """Return the methods of a request; `sampling` has the defaults.

    Raises:
        UsageError: the settings of a cell contradict each other.
    """
    # The same random numbers for all methods, and in every benchmark.
    request = replace(request, seed=request.seed or 0)
    grid = {axis: values for axis, values in swept.items() if axis != "context"}
    chosen = []
    for name, strategy, options in _cells(grid) if grid else _named(request):
        try:
            settings = opening.settings_of(replace(request, **options), choice, sampling)
        except ConfigError as error:
            raise UsageError(f"{name} cannot run: {error}") from error
        shown = lookahead_shown(settings.lookahead) if strategy in ("paper", "lookahead") else {}
        chosen.append((Method(name, strategy, shown), settings))
    return chosen


def _named(request: BenchRequest) -> Iterator[_MethodOptions]:
    for name in _parse_strategies(request.strategies):
        if name not in FOREIGN or request.parallel_mode != "tensor":
            paper = {"sources": "trajectory", "budget": None} if name == "paper" else {}
            yield name, name, paper


def _cells(grid: Sweep) -> Iterator[_MethodOptions]:
    """Yield plain decoding, and lookahead for each cell of a grid."""
    yield PLAIN, PLAIN, {}
    for combination in itertools.product(*grid.values()):
        cell = dict(zip(grid, combination, strict=True))
        values = {axis: cell.get(value, value) for axis, value in cell.items()}
        name = "lookahead " + " ".join(f"{axis}={value}" for axis, value in values.items())
        options = {
            NUMBERS[axis][0] if axis in NUMBERS else axis: int(value) if axis in NUMBERS else value
            for axis, value in values.items()
        }
        yield name, "lookahead", options


def _parse_strategies(text: str | None) -> tuple[str, ...]:
    """Return the strategies of a comma list; `DEFAULT` without one."""
    if text is None:
        return DEFAULT
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in names:
        if name not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {name!r} in --strategies; use some of {known}")
    return names


def _parse_sweep(texts: Sequence[str]) -> Sweep:
    """Parse texts such as "W=5,10,15 N=3,5 G=W" into values by axis, in the order of typing."""
    typed: dict[str, list[str]] = {}
    for word in " ".join(texts).split() or [""] * len(texts):
        axis, _, listed = word.partition("=")
        values = [value for value in listed.split(",") if value]
        if axis not in AXES or axis in typed or not values:
            raise UsageError(
                f"--sweep {word!r}: give AXIS=VALUE,VALUE with each axis of {', '.join(AXES)} once"
            )
        typed[axis] = values
    # The same value can have several spellings: 4k and 4096.
    return {
        axis: tuple(dict.fromkeys(_value(axis, value, typed) for value in values))
        for axis, values in typed.items()
    }


def _value(axis: str, value: str, swept: Mapping[str, Sequence[str]]) -> str:
    """Return the name of a value in results."""
    if axis == "context":
        if match := re.fullmatch(r"0*([1-9]\d*)(k?)", value.lower()):
            return str(int(match[1]) * (1024 if match[2] else 1))
        needed = "a number of tokens, 4096 or 4k"
    elif axis == "sources":
        if value == "all" or {*value.split("+")} <= {*SOURCES}:
            return value
        needed = f"some of {', '.join(SOURCES)} joined by + as in context+recycled, or all"
    else:
        _, least = NUMBERS[axis]
        if value.isdecimal() and int(value) >= least:
            return str(int(value))
        if value != axis and all(number.isdecimal() for number in swept.get(value, ["-"])):
            return value
        needed = f"a number from {least} on, or the name of another axis that has numbers"
    raise UsageError(f"--sweep {axis}={value}: needs {needed}")
