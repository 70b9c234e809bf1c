"""Files that a user asked for: refused before the work starts, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from .errors import LadeError, UsageError


def check(path: Path, option: str) -> None:
    """Refuse a file that could not be written, before a model is loaded.

    Args:
        path: where to write.
        option: the flag that named it, for the message.

    Raises:
        UsageError: it is a folder, or its folder does not exist, or nothing can be written.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; name a file in it")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: the folder {folder} does not exist")
    # Files are replaced, which is the folder's affair; devices and pipes are written to.
    place = path if path.exists() and not path.is_file() else folder
    if not os.access(place, os.W_OK):
        raise UsageError(f"{option} {path}: nothing can be written to {place}; choose another")


def check_apart(written: Sequence[tuple[str, Path]], read: Sequence[tuple[str, Path]] = ()) -> None:
    """Refuse to write two things to one file, or over something that is read.

    Args:
        written: flags, and the files that they name.
        read: the same of what must stay as it is.

    Raises:
        UsageError: naming both flags.
    """
    taken = {_identity(path): option for option, path in read}
    for option, path in written:
        if path.exists() and not path.is_file():
            continue  # a device or a pipe takes what it is given, one after the other
        if (place := _identity(path)) in taken:
            first = taken[place]
            raise UsageError(f"{first} and {option} are the same file, {path}; name another")
        taken[place] = option


def _identity(path: Path) -> object:
    """What is the same for all names of a file."""
    try:
        found = path.stat()
    except OSError:
        return path.resolve()
    return found.st_dev, found.st_ino


def numbered(path: Path, number: int) -> Path:
    """The file for answer `number` of several: x.svg, x-2.svg, x-3.svg."""
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def write_whole(path: Path, content: str | bytes, option: str) -> None:
    """Write a file, whole or not at all.

    Args:
        path: the file; who may read it stays as it was.
        content: bytes, or a text that becomes UTF-8.
        option: the flag or command that named it, for the message.

    Raises:
        LadeError: it cannot be written; what was there before is still there.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
        if path.exists() and not path.is_file():
            # A device or a pipe is written to; it must not be replaced by a file.
            path.write_bytes(data)
            return
        target = path.resolve()
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(data)
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # ValueError: no name of a file
        reason = getattr(error, "strerror", None) or error
        raise LadeError(f"{option} {path} cannot be written: {reason}") from error
