"""The type that a model's weights and activations have here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from . import memory, model_files
from .blueprint import shape_of
from .decoder.families import examine
from .device import Device
from .options import LoadOptions


def choose_type(
    options: LoadOptions,
    device: Device,
    config: Any,
    folder: Path | None,
    asking: dict[str, Any],
    free: Callable[[Device], int],
) -> tuple[torch.dtype, tuple[str, ...]]:
    """The type of activations and plain weights, and what to tell the user about it.

    A CPU computes in float32 where that fits, and a GPU in what the checkpoint holds.

    Args:
        options: as the user gave them.
        device: where the model will run.
        config: of the model.
        folder: of its files, as far as they are on this machine; None where none are.
        asking: keywords of calls that may ask the hub.
        free: says how many bytes of a device's memory are free.
    """
    if options.dtype != "auto":
        return getattr(torch, options.dtype), ()
    if device.kind != "cpu" or getattr(config, "quantization_config", None) is not None:
        return _stored(config, folder), ()
    shape = shape_of(config, torch.float32, options.quantize, hub=asking)
    least = min(examine(config).context, memory.LEAST_CONTEXT)
    needed = memory.estimate(shape, context=least).total
    usable = memory.usable(free(device))
    if needed > usable:
        notice = (
            f"float32 needs {memory.told(needed)}, and {memory.told(usable)} can be used: using"
            " bfloat16"
        )
        return torch.bfloat16, (notice,)
    return torch.float32, ()


def folder_of(source: str, revision: str | None) -> Path | None:
    """Where the files of a model are, as far as they are on this machine; None for what is no name
    of a model, too."""
    if Path(source).is_dir():
        return Path(source)
    try:
        found = try_to_load_from_cache(source, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def _stored(config: Any, folder: Path | None) -> torch.dtype:
    """The type that a checkpoint's plain weights have."""
    dtype: torch.dtype | None = config.get_text_config(decoder=True).dtype or config.dtype
    if dtype is not None:
        return dtype
    name = model_files.stored_type(folder) if folder is not None else None
    # Nobody knows before the download, or with pickled weights: those that do not say it are old,
    # and most of them in float32, which also holds any other type.
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(name or "", torch.float32)


def without_fp8(device: Device, config: Any) -> tuple[str, ...]:
    """Have weights in FP8 made plain where the device cannot multiply them.

    transformers does that too, but asks the machine's first GPU and not the device in use.

    Returns:
        What to tell the user about it.
    """
    given = getattr(config, "quantization_config", None)
    if not isinstance(given, dict) or given.get("quant_method") != "fp8":
        return ()
    if device.kind == "cuda" and torch.cuda.get_device_capability(device.torch_name) >= (8, 9):
        return ()
    config.quantization_config = {**given, "dequantize": True}
    return (f"{device.label} does not multiply in FP8: the weights become plain ones",)
