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
from .result import FOREIGN, PLAIN, STOCK_COMPILED, Failure, Method, lookahead_shown

if TYPE_CHECKING:
    from ..options import BenchRequest
    from ..profiles import Choice
    from ..session.session import Settings

STRATEGIES = (PLAIN, "jacobi", "prompt-lookup", "paper", "lookahead", *FOREIGN)
"""In the order of reports."""
DEFAULT = tuple(name for name in STRATEGIES if name != STOCK_COMPILED)
"""Without --strategies: compiling may take longer than measuring."""
ON_LONG_TEXTS = (PLAIN, "paper", "lookahead")
"""The default of a sweep over contexts, where every method takes long."""

LETTERS = {"window": "W", "ngram": "N", "guesses": "G"}
NUMBERS = {"W": "window", "N": "ngram", "G": "guesses", "budget": "budget"}
"""The option of each axis that has whole numbers."""
MINIMUM = {"W": 1, "N": 2, "G": 0, "budget": 1}
AXES = (*NUMBERS, "sources", "context")

Sweep: TypeAlias = Mapping[str, tuple[str, ...]]
"""Values by axis: numbers in digits, sources joined by + or "all", or the name of another axis."""
Chosen: TypeAlias = "tuple[Method, Settings]"
"""A method, and how it decodes."""


def check(request: BenchRequest) -> Sweep:
    """The sweep, checked as far as that needs no model.

    Raises:
        UsageError: an unknown strategy or axis, an invalid value, or options that contradict
            each other.
    """
    names, swept = _named(request.strategies), _parse(request.sweep or [])
    if request.strategies and request.parallel_mode == "tensor" and {*names} & {*FOREIGN}:
        raise UsageError(
            "transformers' own generate does not run on a model that ranks share; leave"
            f" {', '.join(FOREIGN)} out of --strategies"
        )
    for axis in swept:
        if NUMBERS.get(axis, axis) in request.origins:
            raise UsageError(f"--sweep has values of {axis}; leave the option for one value out")
    if "context" in swept and "prompts" in request.origins:
        raise UsageError("--sweep context cuts prompts of its own; leave --prompts out")
    if swept.keys() - {"context"} and request.strategies and names != (PLAIN, "lookahead"):
        raise UsageError(
            "--sweep over settings compares lookahead with itself and plain decoding; leave"
            " --strategies out"
        )
    if STOCK_COMPILED in names and request.device_map:
        raise UsageError(
            f"{STOCK_COMPILED} runs on one device; leave it out of --strategies, or leave"
            " --device-map out"
        )
    if STOCK_COMPILED in names and len(swept.get("context", ())) > 1:
        raise UsageError(
            f"{STOCK_COMPILED} has a cache of one length; sweep one context at a time with it"
        )
    return swept


def choose(
    request: BenchRequest, choice: Choice, greedy: SamplingConfig, swept: Sweep
) -> tuple[list[Chosen], list[Failure]]:
    """The methods, and the cells of a sweep whose settings are invalid.

    `greedy` has the model's own repetition penalty.

    Raises:
        ConfigError: settings contradict each other.
        UsageError: no cell of a sweep has valid settings.
    """
    # The same random numbers for all methods, and in every benchmark.
    request = replace(request, seed=request.seed or 0)
    grid = {axis: values for axis, values in swept.items() if axis != "context"}
    if grid:
        return _cells(request, choice, greedy, grid)
    names = _named(request.strategies)
    if swept and request.strategies is None:
        names = ON_LONG_TEXTS
    if request.parallel_mode == "tensor":
        names = tuple(name for name in names if name not in FOREIGN)
    chosen = []
    for name in names:
        wanted = request
        if name == "paper":
            wanted = replace(request, sources="trajectory", budget=None)
        settings = opening.settings_of(wanted, choice, greedy)
        shown = lookahead_shown(settings.lookahead) if name in ("paper", "lookahead") else {}
        chosen.append((Method(name, name, shown), settings))
    return chosen, []


def _named(text: str | None) -> tuple[str, ...]:
    """The strategies of a comma list; `DEFAULT` without one."""
    if text is None:
        return DEFAULT
    names = tuple(name for word in text.split(",") if (name := word.strip()))
    for name in names:
        if name not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {name!r} in --strategies; use some of {known}")
    if len(set(names)) < len(names):
        raise UsageError(f"--strategies names one twice: {text}")
    if not names:
        raise UsageError("--strategies is empty; leave it out to measure the usual ones")
    return names


def _parse(texts: Sequence[str]) -> Sweep:
    """Values by axis of texts such as "W=5,10 N=3,5 G=W", in the order of typing."""
    words = [word for text in texts for word in text.split()]
    if texts and not words:
        raise UsageError("--sweep is empty; give axes, such as 'W=5,10 N=3', or leave it out")
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, listed = word.partition("=")
        name = LETTERS.get(name, name)
        if not equals or name not in AXES:
            raise UsageError(
                f"--sweep {word}: an axis is NAME=VALUE,VALUE with a name of {', '.join(AXES)}"
            )
        if name in found:
            raise UsageError(f"--sweep has {name} twice; give all its values in one list")
        found[name] = [value for value in listed.split(",") if value]
        if not found[name]:
            raise UsageError(f"--sweep {word}: {name} has no values")
    # One value may be written in several ways: 4k and 4096.
    return {
        axis: tuple(dict.fromkeys(_value(axis, each, found) for each in values))
        for axis, values in found.items()
    }


def _value(axis: str, value: str, swept: Mapping[str, Sequence[str]]) -> str:
    """A value of an axis as results name it."""
    typed = f"--sweep {axis}={value}"
    if axis == "context":
        if not (match := re.fullmatch(r"0*([1-9]\d*)(k?)", value.lower())):
            raise UsageError(f"{typed}: needs a number of tokens, 4096 or 4k")
        return str(int(match[1]) * (1024 if match[2] else 1))
    if axis == "sources":
        if value != "all" and set(value.split("+")) - set(SOURCES):
            known = ", ".join((*SOURCES, "all"))
            raise UsageError(f"{typed}: needs some of {known}, joined by + as in context+recycled")
        return value
    if value in NUMBERS:
        if value == axis or not all(number.isdecimal() for number in swept.get(value, ["-"])):
            raise UsageError(f"{typed}: the sweep has no other axis {value} with numbers")
        return value
    if not value.isdecimal() or int(value) < MINIMUM[axis]:
        raise UsageError(
            f"{typed}: needs a number from {MINIMUM[axis]} on, or the name of another axis"
        )
    return str(int(value))


def _cells(
    request: BenchRequest, choice: Choice, greedy: SamplingConfig, grid: Sweep
) -> tuple[list[Chosen], list[Failure]]:
    """Plain decoding, and lookahead with the settings of each cell; as `choose`."""
    chosen = [(Method(PLAIN, PLAIN), opening.settings_of(request, choice, greedy))]
    refused = []
    for combination in itertools.product(*grid.values()):
        cell = dict(zip(grid, combination, strict=True))
        values = {axis: cell.get(value, value) for axis, value in cell.items()}
        name = "lookahead " + " ".join(f"{axis}={value}" for axis, value in values.items())
        try:
            settings = opening.settings_of(replace(request, **_options(values)), choice, greedy)
            windowed = [axis for axis in values if axis in LETTERS.values()]
            if windowed and "trajectory" not in settings.lookahead.sources:
                raise ConfigError(f"{windowed[0]} changes nothing without the source trajectory")
        except ConfigError as error:
            refused.append(Failure(name, "", str(error)))
            continue
        shown = lookahead_shown(settings.lookahead)
        chosen.append((Method(name, "lookahead", shown, cell), settings))
    if len(chosen) == 1:
        raise UsageError(f"no cell of the sweep can run: {refused[0].error}")
    return chosen, refused


def _options(values: Mapping[str, str]) -> dict[str, Any]:
    """The options that a cell stands for."""
    found: dict[str, Any] = {
        NUMBERS[axis]: int(value) for axis, value in values.items() if axis in NUMBERS
    }
    if sources := values.get("sources"):
        found["sources"] = ",".join(SOURCES) if sources == "all" else sources.replace("+", ",")
    return found
