"""Which methods a request names: strategies, or the cells of a sweep over their settings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..decoder.config import SOURCES, SamplingConfig
from ..decoder.errors import ConfigError
from ..errors import UsageError
from ..session import opening
from .result import FOREIGN, PLAIN, STOCK, STOCK_COMPILED, Failure, Method, lookahead_shown

if TYPE_CHECKING:
    from ..options.commands import BenchRequest
    from ..profiles import Choice
    from ..session.session import Settings

STRATEGIES = (PLAIN, "jacobi", "prompt-lookup", "paper", "lookahead", *FOREIGN)
"""In the order of reports."""
DEFAULT = (PLAIN, "prompt-lookup", "lookahead", STOCK)
"""Without --strategies."""
ON_LONG_TEXTS = (PLAIN, "paper", "lookahead")
"""The default of a sweep over contexts, where every method takes long."""

NUMBERS = {"W": ("window", 1), "N": ("ngram", 2), "G": ("guesses", 0), "budget": ("budget", 1)}
"""The option of each axis that has whole numbers, and the least of them."""
AXES = (*NUMBERS, "sources", "context")

Sweep: TypeAlias = Mapping[str, tuple[str, ...]]
"""Values by axis: numbers in digits, sources joined by + or "all", or the name of another axis."""
Chosen: TypeAlias = "tuple[Method, Settings]"
"""A method, and how it decodes."""


def check(request: BenchRequest) -> Sweep:
    """The sweep, checked as far as that needs no model.

    A value of an axis comes before that of an option.

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
) -> tuple[list[Chosen], list[Failure]]:
    """The methods, and the cells of a sweep whose settings are invalid; if all are, `UsageError`.

    `sampling` holds where the request says nothing.
    """
    # The same random numbers for all methods, and in every benchmark.
    request = replace(request, seed=request.seed or 0)
    grid = {axis: values for axis, values in swept.items() if axis != "context"}
    if grid:
        return _cells(request, choice, sampling, grid)
    names = (
        ON_LONG_TEXTS if swept and not request.strategies else _parse_strategies(request.strategies)
    )
    chosen = []
    for name in names:
        if name in FOREIGN and request.parallel_mode == "tensor":
            continue
        wanted = request
        if name == "paper":
            wanted = replace(request, sources="trajectory", budget=None)
        settings = opening.settings_of(wanted, choice, sampling)
        shown = lookahead_shown(settings.lookahead) if name in ("paper", "lookahead") else {}
        chosen.append((Method(name, name, shown), settings))
    return chosen, []


def _parse_strategies(text: str | None) -> tuple[str, ...]:
    """The strategies of a comma list; `DEFAULT` without one."""
    if text is None:
        return DEFAULT
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in names:
        if name not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {name!r} in --strategies; use some of {known}")
    return names


def _parse_sweep(texts: Sequence[str]) -> Sweep:
    """Values by axis of texts such as "W=5,10,15 N=3,5 G=W", in the order of typing."""
    found: dict[str, list[str]] = {}
    for word in " ".join(texts).split() or [""] * len(texts):
        axis, _, listed = word.partition("=")
        values = [value for value in listed.split(",") if value]
        if axis not in AXES or axis in found or not values:
            raise UsageError(
                f"--sweep {word!r}: give AXIS=VALUE,VALUE with each axis of {', '.join(AXES)} once"
            )
        found[axis] = values
    # One value may be written in several ways: 4k and 4096.
    return {
        axis: tuple(dict.fromkeys(_value(axis, each, found) for each in values))
        for axis, values in found.items()
    }


def _value(axis: str, value: str, swept: Mapping[str, Sequence[str]]) -> str:
    """A value of an axis as results name it."""
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


def _cells(
    request: BenchRequest, choice: Choice, sampling: SamplingConfig, grid: Sweep
) -> tuple[list[Chosen], list[Failure]]:
    """Plain decoding, and lookahead with the settings of each cell; as `choose`."""
    chosen = [(Method(PLAIN, PLAIN), opening.settings_of(request, choice, sampling))]
    refused = []
    for combination in itertools.product(*grid.values()):
        cell = dict(zip(grid, combination, strict=True))
        values = {axis: cell.get(value, value) for axis, value in cell.items()}
        name = "lookahead " + " ".join(f"{axis}={value}" for axis, value in values.items())
        options: dict[str, Any] = {
            NUMBERS[axis][0]: int(value) for axis, value in values.items() if axis in NUMBERS
        }
        if sources := values.get("sources"):
            options["sources"] = sources
        try:
            settings = opening.settings_of(replace(request, **options), choice, sampling)
        except ConfigError as error:
            refused.append(Failure(name, "", str(error)))
            continue
        shown = lookahead_shown(settings.lookahead)
        chosen.append((Method(name, "lookahead", shown), settings))
    if len(chosen) == 1:
        raise UsageError(f"no cell of the sweep can run: {refused[0].error}")
    return chosen, refused
