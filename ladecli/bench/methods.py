"""Which methods a request names: strategies, or the cells of a sweep over their settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import launch
from ..decoder.config import SOURCES, SamplingConfig
from ..decoder.errors import ConfigError
from ..errors import UsageError
from . import axes
from .axes import ALL_SOURCES, LONG, NUMBERS
from .facts import described
from .result import FOREIGN, PLAIN, STOCK_COMPILED, Failure, Method

if TYPE_CHECKING:
    from ..options import BenchRequest
    from ..profiles import Choice
    from ..session import Settings

STRATEGIES = (PLAIN, "jacobi", "prompt-lookup", "paper", "lookahead", *FOREIGN)
"""In the order of reports."""
DEFAULT = tuple(name for name in STRATEGIES if name != STOCK_COMPILED)
"""Without --strategies: compiling may take longer than measuring."""
ON_LONG_TEXTS = (PLAIN, "paper", "lookahead")
"""The default of a sweep over contexts, where every method takes long."""
LEAST = {"N": 2, "G": 0}
"""Lower bounds of axes, where they are not 1."""
AXES = (*NUMBERS, "sources", "context")


@dataclass(frozen=True, slots=True)
class Methods:
    """Methods, each with how it decodes, and cells of a sweep whose settings are invalid."""

    chosen: tuple[tuple[Method, Settings], ...]
    refused: tuple[Failure, ...] = ()


def named(text: str | None) -> tuple[str, ...]:
    """The strategies of a comma list; `DEFAULT` without one.

    Raises:
        UsageError: it names an unknown one, or one twice, or none.
    """
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


def check(request: BenchRequest) -> dict[str, tuple[str, ...]]:
    """The axes of the sweep, checked as far as that needs no model.

    Raises:
        UsageError: an unknown strategy or axis, an invalid value, or options that contradict
            each other.
    """
    names = named(request.strategies)
    if request.strategies and request.parallel_mode == "tensor" and {*names} & {*FOREIGN}:
        raise UsageError(
            "transformers' own generate does not run on a model that ranks share; leave"
            f" {', '.join(FOREIGN)} out of --strategies"
        )
    found = axes.parse(request.sweep or [], AXES)
    for axis, values in found.items():
        for value in values:
            _check_value(axis, value, found)
        if NUMBERS.get(axis, axis) in request.origins:
            raise UsageError(f"--sweep has values of {axis}; leave the option for one value out")
    if "context" in found and "prompts" in request.origins:
        raise UsageError("--sweep context cuts prompts of its own; leave --prompts out")
    if found.keys() - {"context"} and request.strategies and names != (PLAIN, "lookahead"):
        raise UsageError(
            "--sweep over settings compares lookahead with itself and plain decoding; leave"
            " --strategies out"
        )
    # One value may be written in several ways: 4k and 4096.
    swept = {axis: tuple(dict.fromkeys(map(_canonical, values))) for axis, values in found.items()}
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


def _check_value(axis: str, value: str, found: Mapping[str, Sequence[str]]) -> None:
    said, least = f"--sweep {axis}={value}", LEAST.get(axis, 1)
    if axis == "context":
        tokens(value)
    elif axis == "sources":
        if value != ALL_SOURCES and set(value.split("+")) - set(SOURCES):
            known = ", ".join((*SOURCES, ALL_SOURCES))
            raise UsageError(f"{said}: needs some of {known}, joined by + as in context+recycled")
    elif value in NUMBERS:
        if value == axis or value not in found:
            raise UsageError(f"{said}: the sweep has no other axis {value}")
        if not all(number.isdecimal() for number in found[value]):
            raise UsageError(f"{said}: {value} must have numbers then")
    elif not value.isdecimal() or int(value) < least:
        raise UsageError(f"{said}: needs a number from {least} on, or the name of another axis")


def _canonical(value: str) -> str:
    """A number in digits, without leading zeros; another value as it is."""
    if not value.lower().removesuffix("k").isdecimal():
        return value
    return str(tokens(value) if value.lower().endswith("k") else int(value))


def tokens(value: str) -> int:
    """A length of text: "4096" or "4k".

    Raises:
        UsageError: it is none.
    """
    number = value.lower().removesuffix("k")
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(f"--sweep context={value}: needs a number of tokens, 4096 or 4k")
    return int(number) * (1024 if number != value.lower() else 1)


def longest(swept: Mapping[str, Sequence[str]], new_tokens: int) -> int:
    """Tokens of context that a sweep over lengths needs; 0 without one."""
    lengths = [tokens(value) for value in swept.get("context", ())]
    return max(lengths) + new_tokens if lengths else 0


def choose(
    request: BenchRequest,
    choice: Choice,
    greedy: SamplingConfig,
    swept: Mapping[str, Sequence[str]],
) -> Methods:
    """The methods and how they decode.

    Args:
        request: what was asked for.
        choice: the profile's settings.
        greedy: the model's way of choosing the most probable token.
        swept: values by axis.

    Raises:
        ConfigError: settings contradict themselves.
        UsageError: no cell of a sweep has valid settings.
    """
    # The same random numbers for all methods, and in every benchmark.
    request = replace(request, seed=request.seed or 0)
    grid = {axis: values for axis, values in swept.items() if axis != "context"}
    if grid:
        return _cells(request, choice, greedy, grid)
    names: Iterable[str] = named(request.strategies)
    if swept and request.strategies is None:
        names = ON_LONG_TEXTS
    if request.parallel_mode == "tensor":
        names = [name for name in names if name not in FOREIGN]
    chosen = []
    for name in names:
        wanted = request
        if name == "paper":
            wanted = replace(request, sources="trajectory", budget=None)
        settings = launch.settings_of(wanted, choice, greedy)
        shown = described(settings.lookahead) if name in ("paper", "lookahead") else {}
        chosen.append((Method(name, name, shown), settings))
    return Methods(tuple(chosen))


def _cells(
    request: BenchRequest,
    choice: Choice,
    greedy: SamplingConfig,
    grid: Mapping[str, Sequence[str]],
) -> Methods:
    """Plain decoding, and lookahead with the settings of each cell."""
    plain = launch.settings_of(request, choice, greedy)
    chosen, refused = [(Method(PLAIN, PLAIN), plain)], list[Failure]()
    for cell in axes.cells(grid):
        values = {axis: cell.get(value, value) for axis, value in cell.items()}
        name = "lookahead " + " ".join(f"{axis}={value}" for axis, value in values.items())
        try:
            settings = launch.settings_of(replace(request, **axes.options(values)), choice, greedy)
            windowed = [axis for axis in LONG.values() if axis in values]
            if windowed and "trajectory" not in settings.lookahead.sources:
                raise ConfigError(f"{windowed[0]} changes nothing without the source trajectory")
        except ConfigError as error:
            refused.append(Failure(name, "", str(error)))
            continue
        shown = described(settings.lookahead)
        chosen.append((Method(name, "lookahead", shown, cell), settings))
    if len(chosen) == 1:
        raise UsageError(f"no cell of the sweep can run: {refused[0].error}")
    return Methods(tuple(chosen), tuple(refused))
