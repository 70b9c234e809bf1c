"""Which rank this process is (alone, one of `--parallel K`, or torchrun's), and its device."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..options.answer import RankedOptions


@dataclass(frozen=True, slots=True)
class Place:
    """A process among those that decode together."""

    rank: int = 0  # its number
    size: int = 1  # how many there are
    local_rank: int = 0  # the same on this machine
    local_size: int = 1
    launched: bool = False  # whether the user's own torchrun started it


def read_torchrun() -> Place | None:
    """Read the place that the user's own torchrun gave this process, if it did."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or "RANK" not in os.environ:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    return Place(rank, size, local_rank, local_size, launched=True)


def find_place(options: RankedOptions) -> Place:
    """Find the place of this process.

    Raises:
        UsageError: the options do not fit to what torchrun started, or to several ranks.
    """
    place, wanted = read_torchrun(), options.parallel
    if place is not None and wanted not in (None, place.size):
        raise UsageError(
            f"--parallel {wanted} under a torchrun that started {place.size} ranks; leave"
            " --parallel out"
        )
    if place is None:
        place = Place(0, wanted or 1, 0, wanted or 1)
    if place.size > 1 and options.device.startswith("cuda:"):
        raise UsageError(
            f"--device {options.device} is one GPU, and each of {place.size} ranks needs its own;"
            " use --device cuda, and CUDA_VISIBLE_DEVICES to choose among GPUs"
        )
    if place.size > 1 and options.device_map is not None:
        raise UsageError(
            f"--device-map {options.device_map} spreads one model over all devices, which"
            f" {place.size} ranks cannot share; leave it out, and --parallel-mode tensor splits it"
        )
    typed = options.origins.get("parallel_mode", "").startswith("flag")
    if place.size == 1 and wanted is None and typed and options.parallel_mode == "tensor":
        raise UsageError("--parallel-mode tensor does nothing without --parallel K")
    return place


def assign_device(request: RankedOptions, place: Place) -> RankedOptions:
    """Give this rank a device of its own, and the number of ranks.

    Raises:
        UsageError: there are not enough GPUs.
    """
    from ..models import device

    request = replace(request, parallel=place.size)
    if device.detect(request.device).kind != "cuda":
        return request
    gpus = sum(each.kind == "cuda" for each in device.present())
    if place.local_size > gpus:
        raise UsageError(
            f"{place.local_size} ranks on one machine need a GPU each, and here are {gpus}; use"
            " fewer ranks"
        )
    return replace(request, device=f"cuda:{place.local_rank}")
