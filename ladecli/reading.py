"""Files that a user names as texts: read whole, but none that has no end."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO

LIMIT = 100_000_000
"""Bytes of the largest file that is taken for a text: what a person says is far smaller."""


def read(path: Path) -> bytes:
    """All that a file, or a named pipe, holds.

    Raises:
        OSError: it cannot be read, or it is too large; `strerror` says so.
        ValueError: the path is no name of a file.
    """
    with path.open("rb") as file:
        return whole(file)


def whole(file: BinaryIO) -> bytes:
    """All that an open file holds.

    Raises:
        OSError: it is too large, as a device without an end is; `strerror` says so.
    """
    data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise OSError(errno.EFBIG, f"it holds more than {LIMIT // 1_000_000} MB")
    return data
