"""Lines of a trace: events to JSON objects and back, every value checked on the way in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from ..decoder.events import Detail, Started, StepNarrowed
from ..events import Ended, Piece, PromptRead, Reason, TextEvent, TextStep
from ..visualize import printable

_T = TypeVar("_T")
_REASONS = get_args(Reason)


class LineError(ValueError):
    """A line that no trace has; the message says what is wrong with it."""


def as_line(values: Mapping[str, Any]) -> str:
    """A JSON object on one line."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n"


def ids_of(event: TextEvent) -> list[int]:
    """Every token id that an event holds, each once."""
    if not isinstance(event, TextStep):
        return []
    ids = dict.fromkeys(event.token_ids)
    if detail := event.detail:
        rows = ((detail.current,), detail.tree, *detail.window, detail.outputs)
        ids |= dict.fromkeys(token for row in rows for token in row)
    return list(ids)


def as_object(event: TextEvent, spelled: Mapping[int, str]) -> dict[str, Any]:
    """An event, and the text of token ids that appear for the first time."""
    match event:
        case Started():
            return {"event": "started", "cached": event.cached, "total": event.total}
        case PromptRead():
            return {
                "event": "prompt_read",
                "done": event.done,
                "total": event.total,
                "seconds": event.seconds,
            }
        case TextStep():
            values = {
                "event": "step",
                "pieces": [piece.text for piece in event.pieces],
                "sources": [piece.source for piece in event.pieces],
                "ids": event.token_ids,
                "width": event.width,
                "proposed": event.proposed,
                "seconds": event.seconds,
                "detail": _detail_object(event.detail) if event.detail else None,
            }
            return values | ({"spelled": spelled} if spelled else {})
        case StepNarrowed():
            return {"event": "squeezed", "width": event.width, "seconds": event.seconds}
        case Ended():
            return {"event": "ended", "reason": event.reason, "rest": event.rest}


def _detail_object(detail: Detail) -> dict[str, Any]:
    return {name: getattr(detail, name) for name in Detail.__slots__}


def spelled_of(values: Mapping[str, Any]) -> dict[int, str]:
    """The token texts of a line; none for a line without any.

    Raises:
        LineError: they are not what a trace has.
    """
    found = values.get("spelled", {})
    if not isinstance(found, dict):
        raise LineError("'spelled' must be an object")
    try:
        return {int(token): _text(text) for token, text in found.items()}
    except (ValueError, TypeError):
        raise LineError("'spelled' must hold texts by token id") from None


def event_of(values: Mapping[str, Any]) -> TextEvent:
    """The event of a line.

    Raises:
        LineError: something is missing, or is not what a trace has.
    """
    match values.get("event"):
        case "started":
            return Started(_get(values, "cached", _count), _get(values, "total", _count))
        case "prompt_read":
            return PromptRead(
                _get(values, "done", _count),
                _get(values, "total", _count),
                _get(values, "seconds", _seconds),
            )
        case "step":
            return _step(values)
        case "squeezed":
            return StepNarrowed(_get(values, "width", _count), _get(values, "seconds", _seconds))
        case "ended":
            return Ended(_get(values, "reason", _reason), _get(values, "rest", _text))
        case other:
            raise LineError(f"unknown event {other!r}")


def _step(values: Mapping[str, Any]) -> TextStep:
    pieces = _get(values, "pieces", _tuple(_text))
    sources = _get(values, "sources", _tuple(_source))
    ids = _get(values, "ids", _tuple(_count))
    if not len(pieces) == len(sources) == len(ids):
        raise LineError("'pieces', 'sources' and 'ids' differ in length")
    if not ids:
        raise LineError("a step has no token")
    detail = values.get("detail")
    if detail is not None and not isinstance(detail, dict):
        raise LineError("'detail' must be an object or null")
    return TextStep(
        tuple(map(Piece, pieces, sources)),
        ids,
        _get(values, "width", _count),
        _get(values, "proposed", _count),
        _get(values, "seconds", _seconds),
        None if detail is None else _detail(detail),
    )


def _detail(values: Mapping[str, Any]) -> Detail:
    detail = Detail(
        _get(values, "current", _count),
        _get(values, "tree", _tuple(_count)),
        _get(values, "parents", _tuple(_parent)),
        _get(values, "sources", _tuple(_name)),
        _get(values, "accepted", _tuple(_count)),
        _get(values, "window", _tuple(_tuple(_count))),
        _get(values, "outputs", _tuple(_count)),
        _get(values, "closed", _flag),
    )
    if not len(detail.tree) == len(detail.parents) == len(detail.sources):
        raise LineError("'tree', 'parents' and 'sources' differ in length")
    if any(parent >= node for node, parent in enumerate(detail.parents)):
        raise LineError("a node of the tree stands before its parent")
    if any(node >= len(detail.tree) for node in detail.accepted):
        raise LineError("'accepted' names a node that the tree does not have")
    if any(len(row) != len(detail.outputs) for row in detail.window):
        raise LineError("rows of the window differ in length")
    if detail.window and not detail.outputs:
        raise LineError("the window has no columns")
    return detail


def _get(values: Mapping[str, Any], name: str, kind: Callable[[Any], _T]) -> _T:
    if name not in values:
        raise LineError(f"lacks {name!r}")
    try:
        return kind(values[name])
    except (TypeError, OverflowError):
        raise LineError(f"{name!r} has a value of a wrong kind") from None


# Each of these returns a value that is what its name says, or raises TypeError.


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _parent(value: Any) -> int:
    return -1 if value == -1 else _count(value)


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise TypeError
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _name(value: Any) -> str:
    """A name that is shown as it is, and must not drive the terminal."""
    return printable(_text(value))


def _source(value: Any) -> str | None:
    return None if value is None else _name(value)


def _reason(value: Any) -> Reason:
    if value not in _REASONS:
        raise TypeError
    reason: Reason = value
    return reason


def _tuple(kind: Callable[[Any], _T]) -> Callable[[Any], tuple[_T, ...]]:
    def read(value: Any) -> tuple[_T, ...]:
        if not isinstance(value, list):
            raise TypeError
        return tuple(map(kind, value))

    return read
