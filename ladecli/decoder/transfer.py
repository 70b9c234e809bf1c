"""Numbers on their way between host and device, which nothing waits for before it has to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(numbers: Sequence[Any] | NDArray[Any], device: torch.device) -> Tensor:
    """A tensor of numbers of the host.

    What is launched after it finds it there; the host does not wait for what was launched before,
    as it does in `torch.tensor` with a device.
    """
    tensor = torch.as_tensor(numbers)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    # On Apple's GPUs it would read memory that may be gone by then.
    return tensor.to(device, non_blocking=device.type != "mps")


def to_host(*parts: Tensor) -> Callable[[], list[Any]]:
    """Start one copy of all tensors; what is returned waits for it, and gives them as lists.

    Numbers travel as float32, where the ids of all vocabularies are exact: below 2**24.
    """
    device = parts[0].device
    if device.type == "cpu":
        return lambda: [part.tolist() for part in parts]
    packed, arrived = torch.cat([part.flatten().float() for part in parts]), None
    if device.type == "cuda":
        packed = packed.to("cpu", non_blocking=True)  # which is pinned memory
        arrived = torch.cuda.current_stream(device).record_event()

    def wait() -> list[Any]:
        if arrived is not None:
            arrived.synchronize()
        found = torch.split(packed.cpu(), [part.numel() for part in parts])
        pairs = zip(found, parts, strict=True)
        return [flat.to(part.dtype).view(part.shape).tolist() for flat, part in pairs]

    return wait
