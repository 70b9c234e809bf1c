"""Who takes part: the contenders that a request names, or the cells of its sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import launch
from ..decoder.config import SOURCES, LookaheadConfig, SamplingConfig
from ..decoder.errors import ConfigError
from ..errors import UsageError
from . import axes, contenders
from .axes import ALL_SOURCES, LONG, NUMBERS
from .result import FOREIGN, PLAIN, STOCK_COMPILED, Contender, Failure

if TYPE_CHECKING:
    from ..profiles import Choice
    from ..session import Settings
    from ..settings import BenchRequest

LEAST = {"N": 2, "G": 0}
"""The least number of an axis, where it is not 1."""
AXES = (*NUMBERS, "sources", "context")


@dataclass(frozen=True, slots=True)
class Lineup:
    """Contenders, each with how it decodes, and those that cannot be.

    Attributes:
        contenders: in the order of reports.
        refused: settings that contradict themselves: a budget without room for the window.
    """

    contenders: tuple[tuple[Contender, Settings], ...]
    refused: tuple[Failure, ...] = ()


def check(request: BenchRequest) -> dict[str, tuple[str, ...]]:
    """The axes of the sweep, after all that can be refused without a model was refused.

    Raises:
        UsageError: a strategy or an axis that there is not, or a value that is none.
    """
    names = contenders.named(request.strategies)
    if request.strategies and request.parallel_mode == "tensor" and {*names} & {*FOREIGN}:
        raise UsageError(
            "transformers' own generate does not run on a model that ranks share; leave"
            f" {', '.join(FOREIGN)} out of --strategies"
        )
    found = axes.parse(request.sweep or [], AXES)
    for axis, values in found.items():
        for value in values:
            _check_value(axis, value, found)
    for axis in found:
        if NUMBERS.get(axis, axis) in request.origins:
            raise UsageError(f"--sweep has values of {axis}; leave the option for one value out")
    if "context" in found and "prompts" in request.origins:
        raise UsageError("--sweep context cuts prompts of its own; leave --prompts out")
    if _of_settings(found) and request.strategies and names != (PLAIN, "lookahead"):
        raise UsageError(
            "--sweep over settings compares lookahead with itself and plain decoding; leave"
            " --strategies out"
        )
    # One value may be written in several ways: 4k and 4096.
    swept = {axis: tuple(dict.fromkeys(map(_plainly, values))) for axis, values in found.items()}
    if STOCK_COMPILED in names:
        _check_compiled(request, swept)
    return swept


def _check_compiled(request: BenchRequest, swept: Mapping[str, Sequence[str]]) -> None:
    """Refuse what compiled steps of transformers cannot be measured with."""
    if request.device_map:
        raise UsageError(
            f"{STOCK_COMPILED} runs on one device; leave it out of --strategies, or leave"
            " --device-map out"
        )
    if len(swept.get("context", ())) > 1:
        raise UsageError(
            f"{STOCK_COMPILED} attends to as many tokens as the longest text has; sweep one length"
            " at a time with it"
        )


def _check_value(axis: str, value: str, found: Mapping[str, Sequence[str]]) -> None:
    said = f"--sweep {axis}={value}"
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
    elif not value.isdecimal() or int(value) < LEAST.get(axis, 1):
        least = LEAST.get(axis, 1)
        raise UsageError(f"{said}: needs a number from {least} on, or the name of another axis")


def _plainly(value: str) -> str:
    """A number in digits alone, without zeros in front; another value as it is."""
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


def _of_settings(found: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    return {axis: values for axis, values in found.items() if axis != "context"}


def line_up(
    request: BenchRequest,
    choice: Choice,
    greedy: SamplingConfig,
    swept: Mapping[str, Sequence[str]],
) -> Lineup:
    """Contenders and how they decode.

    Args:
        request: what was asked for.
        choice: the profile's settings.
        greedy: the model's way of choosing the most probable token.
        swept: values by axis.

    Raises:
        ConfigError: settings contradict themselves.
        UsageError: not one cell of a sweep has settings that go together.
    """
    # The same random numbers for all, and whenever the same is measured.
    request = replace(request, seed=request.seed or 0)
    base = launch.settings_of(request, choice, greedy)
    of_settings = _of_settings(swept)
    if of_settings:
        return _cells(request, choice, greedy, of_settings)
    found = []
    for name in contenders.named(request.strategies):
        if swept and request.strategies is None and name not in (PLAIN, "paper", "lookahead"):
            continue  # a long text takes each of them long
        if request.parallel_mode == "tensor" and name in FOREIGN:
            continue  # the leader alone would run it, and wait for the other ranks
        settings = base
        if name == "paper":
            paper = replace(request, sources="trajectory", budget=None)
            settings = launch.settings_of(paper, choice, greedy)
        shown = described(settings.lookahead) if name in ("paper", "lookahead") else {}
        found.append((Contender(name, name, shown), settings))
    return Lineup(tuple(found))


def _cells(
    request: BenchRequest,
    choice: Choice,
    greedy: SamplingConfig,
    swept: Mapping[str, Sequence[str]],
) -> Lineup:
    plain = launch.settings_of(request, choice, greedy)
    found, refused = [(Contender(PLAIN, PLAIN), plain)], list[Failure]()
    for cell in axes.cells(swept):
        values = {axis: cell.get(value, value) for axis, value in cell.items()}
        name = "lookahead " + " ".join(f"{axis}={value}" for axis, value in values.items())
        try:
            settings = launch.settings_of(replace(request, **axes.options(values)), choice, greedy)
            _check_cell(values, settings.lookahead)
        except ConfigError as error:
            refused.append(Failure(name, "", str(error)))
            continue
        shown = described(settings.lookahead)
        found.append((Contender(name, "lookahead", shown, cell), settings))
    if len(found) == 1:
        raise UsageError(f"no cell of the sweep can run: {refused[0].error}")
    return Lineup(tuple(found), tuple(refused))


def _check_cell(values: Mapping[str, str], config: LookaheadConfig) -> None:
    """Refuse a cell that would not be what it is called."""
    windowed = [axis for axis in LONG.values() if axis in values]
    if windowed and "trajectory" not in config.sources:
        raise ConfigError(f"{windowed[0]} changes nothing without the source trajectory")


def described(config: LookaheadConfig) -> dict[str, int | str]:
    """Settings of lookahead as a report names them."""
    window: dict[str, int | str] = {}
    if "trajectory" in config.sources:
        window = {"window": config.window, "ngram": config.ngram, "guesses": config.guesses}
    return {**window, "budget": config.step_limit, "sources": "+".join(config.sources)}
