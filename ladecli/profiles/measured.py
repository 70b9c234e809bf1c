"""The measured duration of steps on this machine, kept from one load to the next in one file.

A measurement is valid for a device, a version of torch, the shape of a model, the type of its
weights and its backend.  Every load measures a little, and the smaller time of two loads is kept,
so that disturbances by other programs do not last.  The times of products on a GPU are kept in the
same file; `decoder.backends.product_race` names them.  If the file cannot be read or
written, the next load measures again.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_cache_path
from pydantic import TypeAdapter, ValidationError

from .. import files
from ..errors import LadeError
from ..models.model_files import version
from . import user
from .schema import Positive

if TYPE_CHECKING:
    from ..decoder.decoder import Decoder
    from ..models.device import Device
    from ..models.memory import ModelSpec

SHARE, LEAST = 0.1, 0.15
"""The time limit of a measurement: this share of the load's time, but at least so many seconds; a
third of it if all widths are known."""
_FILE: TypeAdapter[dict[str, dict[int, float]]] = TypeAdapter(dict[str, dict[int, Positive]])


def path() -> Path:
    """Return the path of the file; it may not exist."""
    return user_cache_path("lade", appauthor=False) / "step_costs.json"


def key_of(decoder: Decoder, device: Device, spec: ModelSpec) -> str:
    """Return the key of a decoder's steps in the file."""
    executor = decoder.executor
    model = executor.model
    return (
        f"{user.key_of(device)}, torch {version('torch')}: {spec.parameters:.0f} parameters in"
        f" {spec.weights}, {spec.layers} layers of {spec.hidden} and {spec.inner};"
        f" {type(model).__name__} by {model.operations.name}"
        f"{' in graphs' if executor.overlaps else ''}"
    )


def read_all() -> dict[str, dict[int, float]]:
    """Return the seconds of steps by key and width."""
    try:
        return _FILE.validate_json(files.read(path()))
    except (OSError, ValidationError):
        return {}


def keep(key: str, seconds: Mapping[int, float]) -> bool:
    """Write the seconds of steps in place of earlier ones; return False if that fails."""
    return _write({key: dict(sorted(seconds.items()))})


def _write(new: Mapping[str, Mapping[int, float]]) -> bool:
    everything = {**read_all(), **new}
    with contextlib.suppress(LadeError, OSError):
        path().parent.mkdir(parents=True, exist_ok=True)
        files.write(path(), json.dumps(everything, indent=1) + "\n", "step costs")
        return True
    return False


@contextlib.contextmanager
def times_of_products() -> Iterator[dict[str, Mapping[int, float]]]:
    """Have what products take here as measured before, and keep what is added."""
    records = read_all()
    times: dict[str, Mapping[int, float]] = {**records}
    yield times
    if new := times.keys() - records.keys():
        _write({name: times[name] for name in new})


def run(
    decoder: Decoder, device: Device, seconds: float, known: Collection[int]
) -> dict[int, list[float]]:
    """Measure the steps of a decoder for a number of seconds; see `measuring.measure`."""
    from ..decoder.backends import measuring  # it imports torch

    alone = device.kind == "cpu" and device.threads == 1
    clock = time.thread_time if alone else time.perf_counter  # leaves out other programs
    return measuring.measure(decoder, seconds, known, clock)


def after_load(
    decoder: Decoder, device: Device, spec: ModelSpec, load_seconds: float
) -> dict[int, float]:
    """Measure briefly after a load, and return the seconds of all known steps by width."""
    from ..decoder.backends import measuring

    key = key_of(decoder, device, spec)
    records = read_all().get(key, {})
    limit = max(SHARE * load_seconds, LEAST)
    if {*measuring.WIDTHS} <= {*records}:
        limit /= 3
    if decoder.executor.model.drafts == "none" or not SHARE:
        return records
    least = {width: min(times) for width, times in run(decoder, device, limit, records).items()}
    seconds = dict(records)
    if 1 in records and least.get(1, math.inf) < records[1]:
        # The machine is less busy than at earlier loads, which makes steps of all widths faster.
        seconds = {width: took * least[1] / records[1] for width, took in records.items()}
    seconds |= {width: min(took, seconds.get(width, took)) for width, took in least.items()}
    if seconds != records:
        keep(key, seconds)
    return seconds
