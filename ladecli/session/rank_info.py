"""Find this process's rank (alone, one of `--parallel K`, or torchrun's) and its device."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..options.answer import RankedOptions


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The rank of this process and the number of ranks, in all and on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launched: bool = False  # whether the user's own torchrun started it


def read_torchrun() -> RankInfo | None:
    """Return the rank that the user's own torchrun gave this process; None without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or "RANK" not in os.environ:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    return RankInfo(rank, size, local_rank, local_size, launched=True)


def find_rank(options: RankedOptions) -> RankInfo:
    """Return the rank of this process.

    Raises:
        UsageError: the options do not fit the ranks that torchrun started, or several ranks.
    """
    info, size = read_torchrun(), options.parallel
    if info is not None and size not in (None, info.size):
        raise UsageError(
            f"--parallel {size} under a torchrun that started {info.size} ranks; leave"
            " --parallel out"
        )
    if info is None:
        info = RankInfo(0, size or 1, 0, size or 1)
    if info.size > 1 and options.device.startswith("cuda:"):
        raise UsageError(
            f"--device {options.device} is one GPU, and each of {info.size} ranks needs its own;"
            " use --device cuda, and CUDA_VISIBLE_DEVICES to choose among GPUs"
        )
    if info.size > 1 and options.device_map is not None:
        raise UsageError(
            f"--device-map {options.device_map} spreads one model over all devices, which"
            f" {info.size} ranks cannot share; leave it out, and --parallel-mode tensor splits it"
        )
    typed = options.origins.get("parallel_mode", "").startswith("flag")
    if info.size == 1 and size is None and typed and options.parallel_mode == "tensor":
        raise UsageError("--parallel-mode tensor does nothing without --parallel K")
    return info


def assign_device(request: RankedOptions, info: RankInfo) -> RankedOptions:
    """Return the request of this rank, with its own device and the number of ranks.

    Raises:
        UsageError: there are not enough GPUs.
    """
    from ..models import device

    request = replace(request, parallel=info.size)
    if device.detect(request.device).kind != "cuda":
        return request
    gpus = [d.kind for d in device.present()].count("cuda")
    if info.local_size > gpus:
        raise UsageError(
            f"{info.local_size} ranks on one machine need a GPU each, and here are {gpus}; use"
            " fewer ranks"
        )
    return replace(request, device=f"cuda:{info.local_rank}")
