"""Files that the user names: checked before the work starts, read and written as a whole."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

from .errors import LadeError, UsageError

if sys.version_info >= (3, 11):
    import tomllib as toml
else:
    import tomli as toml

LIMIT = 100_000_000
"""The most bytes of a file, which also limits devices without an end."""
CONVERT = "save it as UTF-8, or convert it, for example with iconv -f latin1 -t utf-8"
"""The fix for a text in another encoding."""


def read(path: Path, *, pipes: bool = False) -> bytes:
    """Return the content of a file.

    Args:
        pipes: True if it may be a pipe or a device, for which the reader may have to wait.

    Raises:
        OSError: it cannot be read, is too large, or is a pipe; `strerror` has the reason.
        ValueError: the path is not the name of a file.
    """
    mode = path.stat().st_mode
    if not (pipes or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as file:
        return read_stream(file)


def read_stream(file: BinaryIO) -> bytes:
    """Return the content of an open file.

    Raises:
        OSError: it is too large; `strerror` says so.
    """
    data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise OSError(errno.EFBIG, f"it holds more than {LIMIT // 1_000_000} MB")
    return data


def read_text(name: str, kind: str = "file") -> str:
    """Return the text of a file; see `read_named`.

    Raises:
        UsageError: it cannot be read, or is not text; the message names the file and the fix.
    """
    return decode(read_named(name, kind), f"the {kind} {name}")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        ValueError: it is not TOML.
    """
    try:
        content: dict[str, Any] = toml.loads(text)
        return content
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def expanded(name: str) -> Path:
    """Return a path with ~ replaced by the home folder, as a shell does."""
    return Path(os.path.expanduser(name))


def read_named(name: str, kind: str, *, pipes: bool = True) -> bytes:
    """Return the content of a file, whose name may begin with ~; `kind` describes it in messages.

    `pipes` is as in `read`.

    Raises:
        UsageError: it cannot be read; the message names it and the fix.
    """
    called = f"the {kind} {name}"
    try:
        return read(expanded(name), pipes=pipes)
    except FileNotFoundError:
        raise UsageError(f"there is no {kind} {name}; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"{called} is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{called} cannot be read: {reason}") from error


def decode(data: bytes, name: str) -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark, to text with "\\n" at the ends of lines.

    `name` is for messages.

    Raises:
        UsageError: the data have another encoding or are binary.
    """
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        # Binary files are recognised before decoding fails; UTF-32 looks like UTF-16 at the start.
        text = data.decode(encoding) if encoding == "utf-16" or b"\0" not in data else "\0"
    except UnicodeDecodeError as error:
        kind = encoding.removesuffix("-sig").upper()
        raise UsageError(f"{name} is not {kind} (byte {error.start}); {CONVERT}") from None
    if "\0" in text:
        raise UsageError(f"{name} is binary (a zero byte); give a text file in UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check(path: Path, option: str) -> None:
    """Check that a file can be written, before a model is loaded.

    Messages begin with the option that names the file.

    Raises:
        UsageError: it is a folder, or its folder does not exist or cannot be written to.
    """
    if str(path) == "-":
        raise UsageError(f"{option} -: this cannot go to stdout; name a file")
    try:
        if path.is_dir():
            raise UsageError(f"{option} {path} is a folder; name a file in it")
        folder = path.resolve().parent
        if not folder.is_dir():
            raise UsageError(f"{option} {path}: the folder {folder} does not exist")
        if not is_device(path):  # writing creates a temporary file in the folder
            fresh = _fresh(path.resolve())
            fresh.touch(exist_ok=False)
            fresh.unlink()
    except (OSError, RuntimeError, ValueError) as error:
        # RuntimeError: a loop of links, until Python 3.13; ValueError: a name with a zero byte.
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{option} {path} cannot be written ({reason}); choose another") from error


def check_new(path: Path, option: str) -> None:
    """Check the same as `check`, and that the file does not exist."""
    check(path, option)
    if path.exists() and not is_device(path):
        raise UsageError(f"{path} exists; name another file, or delete it first")


def is_device(path: Path) -> bool:
    """Return True if a path is a device or a pipe, which must not be replaced by a file."""
    return path.exists() and not path.is_file()


def _fresh(path: Path) -> Path:
    """Return a random name in the folder of a path, so that nobody can plant a link there."""
    return path.with_name(f".{secrets.token_hex(8)}.tmp")


def guarded(path: str, flags: int) -> int:
    """Open a file with permissions that, if it is new, let only the user read it."""
    return os.open(path, flags, 0o600)


def write(path: Path, content: str | bytes, option: str, *, private: bool = False) -> None:
    """Write a text as UTF-8, or bytes, atomically; an existing file keeps its permissions.

    Args:
        path, content: of the file.
        option: the option that names the file, for messages.
        private: True if only the user may read a new file.

    Raises:
        LadeError: the file cannot be written; its old content is unchanged.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
        if is_device(path):
            path.write_bytes(data)
            return
        target = path.resolve()
        temporary = _fresh(target)
        try:
            with open(temporary, "xb", opener=guarded if private else None) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LadeError(f"{option} {path} cannot be written: {reason}") from error
