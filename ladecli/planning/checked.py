"""A table of a TOML file, read with checks: a fault names its place, its key and the fix."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..decoder.errors import ConfigError
from ..errors import UsageError

_NEEDED: Any = object()
_Check = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; every reader raises `UsageError` for a value that is missing or of another type.

    Attributes:
        where: what the table is, for messages: "profile mine, setting 2".
        data: as the TOML reader gave it.
    """

    where: str
    data: dict[str, Any]

    def only(self, *known: str) -> None:
        """Refuse keys that are not among these."""
        for key in self.data:
            if key not in known:
                listed = ", ".join(sorted(known))
                raise UsageError(f"{self.where}: unknown key {key!r}; known: {listed}")

    def text(self, key: str) -> str:
        """A text with something in it."""
        return str(self._value(key, _NEEDED, "a text", lambda v: isinstance(v, str) and v.strip()))

    def number(self, key: str, default: float = _NEEDED) -> float:
        """A number above 0."""
        return float(self._value(key, default, "a number above 0", _is_number))

    def whole(self, key: str) -> int:
        """A whole number."""
        return int(self._value(key, _NEEDED, "a whole number", _is_whole))

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of texts."""
        what = "a list of texts"
        return tuple(self._value(key, default, what, _list_of(lambda v: isinstance(v, str))))

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers above 0, or none."""
        found = self._value(key, (), "a list of numbers above 0", _list_of(_is_number))
        return tuple(map(float, found))

    def wholes(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, or none."""
        return tuple(self._value(key, (), "a list of whole numbers", _list_of(_is_whole)))

    def table(self, key: str) -> Table:
        """A table in this one."""
        found = self._value(key, _NEEDED, "a table", lambda v: isinstance(v, dict))
        return Table(f"{self.where}, {key}", found)

    def tables(self, key: str) -> list[Table]:
        """The tables of a list, numbered from 1; none where the key is missing."""
        is_table = _list_of(lambda v: isinstance(v, dict))
        found = self._value(key, (), f"tables, each under [[{key}]]", is_table)
        return [Table(f"{self.where}, {key} {n}", entry) for n, entry in enumerate(found, start=1)]

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Let a value that the decoder refuses say in which table it stands."""
        try:
            yield
        except ConfigError as error:
            raise UsageError(f"{self.where}: {error}") from error

    def _value(self, key: str, default: Any, what: str, right: _Check) -> Any:
        if key not in self.data:
            if default is _NEEDED:
                raise UsageError(f"{self.where} lacks {key!r}, {what}")
            return default
        value = self.data[key]
        if not right(value):
            raise UsageError(f"{self.where}: {key} must be {what}, not {value!r}")
        return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    # Written as `0 < value < inf` so that NaN is refused too.
    return (_is_whole(value) or isinstance(value, float)) and 0 < value < math.inf


def _list_of(right: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(right, value))
