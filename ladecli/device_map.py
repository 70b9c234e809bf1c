"""What `--device-map` may be: a word of transformers, or a device for each part of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from .errors import UsageError

WORDS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways in which transformers spreads a model by itself, as it calls them."""


def parse(text: str) -> str | dict[str, int | str]:
    """One of `WORDS`, or the device of every part that is named.

    Args:
        text: a word, a JSON object from names of modules to devices, or a file that holds one.
            A device is the number of a GPU, "cuda:N", "cpu", or "disk".

    Raises:
        UsageError: it is none of these.
    """
    if text in WORDS:
        return text
    if re.fullmatch(r"cpu|mps|cuda(:\d+)?", text):
        raise UsageError(f"--device-map {text} names one device; use --device {text}")
    if not text.lstrip().startswith("{"):
        path = Path(text).expanduser()
        if path.suffix != ".json":
            raise UsageError(
                f"unknown device map {text!r}; use one of {', '.join(WORDS)}, or a .json file that"
                " names a device for each part of the model"
            )
        text = _content(path)
    try:
        given = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the device map is no JSON: {error}") from error
    if not isinstance(given, dict) or not given:
        raise UsageError('the device map names no part of the model; {"": 0} puts all on one GPU')
    return {name: _device(name, value) for name, value in given.items()}


def uncovered(parts: Iterable[str], modules: Iterable[str], weights: Iterable[str]) -> str | None:
    """What is wrong with a map for a model, or None.

    Args:
        parts: what the map names.
        modules: names of all of the model's modules, itself as "".
        weights: names of all of its weights.
    """
    parts, weights = [*parts], [*weights]
    known = {*modules, *weights}
    for part in parts:
        if part not in known:
            return f"has no part {part!r} that the device map could place"
    for each in weights:
        if not any(not part or f"{each}.".startswith(f"{part}.") for part in parts):
            return f"has {each}, for which the device map names no device"
    return None


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"cannot read the device map {path}: {why}") from error


def _device(name: str, value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch(r"cpu|disk|cuda:\d+", value):
        return int(value[5:]) if value.startswith("cuda:") else value
    raise UsageError(
        f"the device map puts {name!r} on {value!r}; a device is the number of a GPU, cuda:N, cpu"
        " or disk"
    )
