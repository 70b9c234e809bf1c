"""What races of a CPU's products have shown (`decoder.model.form_races`), beside the profiles.

A result holds for a processor, its number of threads and a version of torch.  A file that cannot be
read, or written, costs some milliseconds of the next load and nothing else.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, TypeAlias

from pydantic import TypeAdapter, ValidationError

from .. import files
from ..errors import LadeError
from ..specs.model_files import version
from . import user

if TYPE_CHECKING:
    from pathlib import Path

    from ..specs.device import Device

Results: TypeAlias = dict[str, dict[str, float]]
"""Microseconds by kind of product and form."""
_FILE: TypeAdapter[dict[str, Results]] = TypeAdapter(dict[str, Results])


def path() -> Path:
    """The file; it may not exist."""
    return user.folder() / "products.json"


def read(device: Device) -> Results:
    """What is known of a device, with this version of torch."""
    return _read_all().get(_key_of(device), {})


def write(device: Device, results: Results) -> None:
    """Keep what was found out, if it can be kept."""
    everything = _read_all() | {_key_of(device): results}
    with contextlib.suppress(LadeError):
        user.make_folder()
        files.write(path(), json.dumps(everything, indent=1) + "\n", "the results of races")


def forget() -> None:
    """Let the next load race anew: another program may have kept the processor busy before."""
    with contextlib.suppress(OSError):
        path().unlink()


def _read_all() -> dict[str, Results]:
    try:
        return _FILE.validate_json(files.read(path()))
    except (OSError, ValidationError):
        return {}


def _key_of(device: Device) -> str:
    return f"{user.key_of(device)}, torch {version('torch')}"
