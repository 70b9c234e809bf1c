"""What hardware is here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .errors import UsageError


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a model can run on.

    Attributes:
        kind: "cpu", "cuda" or "mps".
        torch_name: as torch wants it, "cuda:1" for example.
        label: the device's own name.
    """

    kind: str
    torch_name: str
    label: str


def detect(wanted: str = "auto") -> Device:
    """The device called `wanted`, or the best one that is here.

    Args:
        wanted: auto, cpu, cuda, cuda:N or mps; `LoadOptions` has checked its form.

    Raises:
        UsageError: there is no such device here.
    """
    kind, _, index = wanted.partition(":")
    if kind in ("auto", "cuda") and torch.cuda.is_available():
        number = int(index or 0)
        if number >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise UsageError(f"there is no device {wanted}; the last one is cuda:{last}")
        return Device("cuda", f"cuda:{number}", torch.cuda.get_device_name(number))
    if kind == "cuda":
        built = torch.version.cuda is not None or torch.version.hip is not None
        why = "no GPU answers" if built else "this torch is built without CUDA"
        raise UsageError(f"no CUDA device: {why}; use --device cpu, or install a CUDA build")
    if kind in ("auto", "mps") and torch.backends.mps.is_available():
        return Device("mps", "mps", "Apple GPU")
    if kind == "mps":
        raise UsageError("no Apple GPU (mps) here; use --device cpu")
    return Device("cpu", "cpu", "CPU")
