"""A first step with weights that some devices, or some splits, cannot compute with."""

from __future__ import annotations

from typing import Any

import torch

from .decoder.memory import is_out_of_memory
from .decoder.stock_model import input_device
from .device import Device
from .errors import LoadError
from .options import LoadOptions
from .shape import ModelShape


@torch.inference_mode()
def check(name: str, options: LoadOptions, device: Device, shape: ModelShape, model: Any) -> None:
    """See whether quantised or split weights can be computed with here, of one row and of two.

    Kernels refuse shapes and devices only when they are called, and so do models whose parts do
    not fit together.

    Args:
        name: of the model, for messages.
        options: how it was loaded.
        device: where it runs.
        shape: of the whole model.
        model: with its weights; where ranks share it, all of them call this.

    Raises:
        LoadError: they cannot.
    """
    place = input_device(model)
    try:
        for width in (1, 2):
            ids = torch.zeros((1, width), dtype=torch.long, device=place)
            model(input_ids=ids, use_cache=False)
    except Exception as error:
        if is_out_of_memory(error):
            raise LoadError(
                f"{name} leaves no memory on {device.label} to compute with; take"
                " a smaller model, or free some memory"
            ) from error
        ranks = options.tensor_parallel
        if ranks > 1:
            raise LoadError(
                f"{name} cannot be computed over {ranks} ranks: {_first_line(error)}; use"
                " --device-map auto or --parallel-mode lookahead"
            ) from error
        other = {"nf4": "; try --quantize 8bit", "int8": "; try --quantize 4bit"}
        raise LoadError(
            f"{name} cannot be computed in {shape.weights} on"
            f" {device.label}: {_first_line(error)}{other.get(shape.weights, '')}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
