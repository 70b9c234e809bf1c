"""Numbers on their way between host and device, which nothing waits for before it has to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
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
    kinds = [float if part.is_floating_point() else int for part in parts]
    shapes = [part.shape for part in parts]
    cuts = [*pairwise(accumulate([part.numel() for part in parts], initial=0))]
    if device.type == "cuda":
        packed = packed.to("cpu", non_blocking=True)  # which is pinned memory
        arrived = torch.cuda.current_stream(device).record_event()

    def wait() -> list[Any]:
        if arrived is not None:
            arrived.synchronize()
        # From here on the device has nothing to do: NumPy is the faster one with few numbers.
        numbers = packed.cpu().numpy()
        return [
            numbers[start:end].astype(kind).reshape(shape).tolist()
            for (start, end), kind, shape in zip(cuts, kinds, shapes, strict=True)
        ]

    return wait
