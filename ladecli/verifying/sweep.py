"""Cells of a sweep as requests, and the model for each of them."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .. import launch, ways
from ..bench import axes
from ..errors import UsageError

if TYPE_CHECKING:
    from ..session import Session
    from ..settings import VerifyRequest
    from ..terminal import Terminal

AXES = ("dtype", "attention", "strategy", "sources", *axes.NUMBERS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of values.

    Attributes:
        request: what was asked for, with these values in it.
        values: by axis, as typed; empty where nothing is swept.
    """

    request: VerifyRequest
    values: Mapping[str, str] = field(default_factory=dict)


def cells(request: VerifyRequest) -> list[Cell]:
    """Every combination of the swept values, those of one dtype together.

    Raises:
        UsageError, ConfigError: there is no such axis, or no such value.
    """
    found = axes.parse(request.sweep or [], AXES)
    for axis, values in found.items():
        for value in values:
            if value not in found or value == axis:
                _changed(request, {axis: value}).check()
    # Loading takes longest, so each dtype is loaded once.
    ordered = dict(sorted(found.items(), key=lambda item: item[0] != "dtype"))
    combined = [{axis: cell[axis] for axis in found} for cell in axes.cells(ordered)]
    return [
        Cell(
            _changed(request, {axis: cell.get(value, value) for axis, value in cell.items()}), cell
        )
        for cell in combined
    ]


def _changed(request: VerifyRequest, values: Mapping[str, str]) -> VerifyRequest:
    for axis, value in values.items():
        if axis in axes.NUMBERS and not value.isdecimal():
            raise UsageError(
                f"--sweep {axis}={value}: needs a whole number, or the name of another axis"
            )
    return replace(request, **axes.options(values))


class Models:
    """The model at work: loaded again only where another dtype asks for it.

    Args:
        terminal: where the user sees what happens.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._dtype: str | None = None
        self._attention: str | None = None
        self._session: Session | None = None

    def session(self, request: VerifyRequest) -> Session:
        """A session for a request; an earlier one is over then.

        Raises:
            LadeError, DecoderError: it cannot be loaded; the message says why.
        """
        if self._session is None or request.dtype != self._dtype:
            # Both models at once may be more than fits.
            self._session = None
            gc.collect()
            self._session = launch.open_session(request, self._terminal)
            self._dtype, self._attention = request.dtype, request.attention
        elif request.attention != self._attention:
            from ..session import Session

            before = self._session
            before.decoder.forget()
            loaded = before.loaded
            ways.check(request, loaded.device, loaded.part)
            self._session = Session(
                loaded,
                attention=ways.attention_of(request, loaded.device, loaded.part).name,
                max_context=before.decoder.max_context,
                graphs=ways.no_graphs(request, loaded.device) is None,
                compiled=request.compile,
                kernels=request.kernels,
            )
            self._attention = request.attention
        return self._session

    def hush(self) -> None:
        """Load without a word from now on: a bar is being drawn."""
        self._terminal = replace(self._terminal, quiet=True)
