"""Checksums, by which ranks notice that they do not do the same."""

from __future__ import annotations

import zlib
from collections.abc import Iterable


def checksum(parts: Iterable[object]) -> int:
    """A checksum of numbers and texts that fits into 32 bits with a sign (CRC-32).

    Floats count to the last bit, as their shortest decimal form does.
    """
    value = zlib.crc32(repr(list(parts)).encode())
    return value - (1 << 32) if value >= 1 << 31 else value
