"""What `--device-map` may be: a word of transformers, or a device for each part of a model."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from .errors import UsageError

WORDS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways in which transformers spreads a model by itself, as it calls them."""
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def parse(text: str) -> str | dict[str, int | str]:
    """One of `WORDS`, or the device of every part that is named.

    Args:
        text: a word, a JSON object from names of modules to devices, or a .json file that holds
            one.  A device is the number of a GPU, "cuda:N", "cpu", or "disk".

    Raises:
        UsageError: it is none of these.
    """
    if text in WORDS:
        return text
    if re.fullmatch(r"cpu|mps|cuda(:\d+)?", text):
        raise UsageError(f"--device-map {text} names one device; use --device {text}")
    path = Path(text).expanduser()
    try:
        given = json.loads(path.read_text("utf-8") if text.endswith(".json") else text)
    except OSError as error:
        raise UsageError(f"cannot read the device map {text}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(
            f"unknown device map {text!r}; use one of {', '.join(WORDS)}, or JSON that names a"
            f" device for each part of the model ({error})"
        ) from error
    if not isinstance(given, dict) or not given:
        raise UsageError('the device map names no part of the model; {"": 0} puts all on one GPU')
    devices: dict[str, int | str] = {}
    for part, device in given.items():
        if not re.fullmatch(r"\d+|cuda:\d+|cpu|disk", str(device)):
            raise UsageError(
                f"the device map puts {part!r} on {device!r}; a device is the number of a GPU,"
                " cuda:N, cpu or disk"
            )
        index = str(device).removeprefix("cuda:")
        devices[part] = int(index) if index.isdecimal() else index
    return devices


def offload_folder() -> str:
    """A new empty folder for weights that memory has no room for."""
    folder = tempfile.TemporaryDirectory(prefix="lade-", ignore_cleanup_errors=True)
    _FOLDERS.append(folder)
    return folder.name


def remove_offloaded() -> None:
    """Remove these folders, of many gigabytes: before a program ends that skips Python's exit."""
    while _FOLDERS:
        _FOLDERS.pop().cleanup()
