"""Results as JSON and back: the versioned schema that programs read."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import UsageError
from .result import SCHEMA, Result


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """What turns values of a type into JSON and back."""
    return TypeAdapter(kind)


def as_object(result: Result) -> dict[str, Any]:
    """A result as an object for `json.dumps`; its keys are part of the interface."""
    return {"schema": SCHEMA, **adapter(Result).dump_python(result, mode="json")}


def text(result: Result) -> str:
    """A result as JSON on one line; ASCII, so that no name in it speaks to a terminal."""
    return json.dumps(as_object(result), allow_nan=False)


def read(path: Path) -> Result:
    """The result that a file holds.

    Raises:
        UsageError: it cannot be read, or holds something else; the message says what.
    """
    try:
        # Some editors and shells put a mark of the encoding in front.
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(
            f"{path} is no UTF-8 (older PowerShells write UTF-16 behind >); let --report write it"
        ) from None
    except ValueError as error:  # no JSON
        raise UsageError(
            f"{path} is no result of lade bench ({error}); give one that --json or --report wrote"
        ) from None
    found = data.pop("schema", None) if isinstance(data, dict) else None
    if found != SCHEMA:
        what = f"has schema {found!r}" if found else "has no schema"
        raise UsageError(f"{path} {what}, and this program reads {SCHEMA}; measure again")
    try:
        result: Result = adapter(Result).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path} is damaged: {where}: {first['msg']}") from None
    return result
