"""Where a model and its layers compute, which may be on several devices, or not be in memory yet.

accelerate spreads a model over devices with hooks: each part has its input brought to where it
computes.  Weights that are kept elsewhere are brought there too, and are on the device "meta"
in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def devices_of(module: nn.Module) -> Iterator[torch.device]:
    """Where each of the parameters is that are in memory."""
    for parameter in module.parameters():
        if parameter.device.type != "meta":
            yield parameter.device


def device_of(module: nn.Module) -> torch.device:
    """Where a model, or a part of one, computes, or begins to."""
    for device in devices_of(module):
        return device
    for part in module.modules():
        # A hook's own attribute: accelerate need not be installed.
        place = getattr(getattr(part, "_hf_hook", None), "execution_device", None)
        if place is not None:
            return torch.device(place)
    return torch.device("cpu")


def is_split(model: nn.Module) -> bool:
    """Whether transformers has split its weights over ranks, which then compute each product
    together."""
    return (getattr(model, "tp_size", None) or 1) > 1


def layer_devices(model: nn.Module) -> list[torch.device]:
    """Where each layer's attention computes, in the order of their numbers.

    Layers of a family whose attention does not say its number are left out.
    """
    found: dict[int, torch.device] = {}
    for module in model.modules():
        number = getattr(module, "layer_idx", None)
        if isinstance(number, int):
            found[number] = device_of(module)
    return [found[number] for number in sorted(found)]
