"""Where a model's weights go, and in how many bits: the keywords of loading that say so."""

from __future__ import annotations

import importlib.util
import logging
import os
from typing import Any

import torch
import transformers
from transformers.distributed import DistributedConfig

from . import device_map, memory, split
from .blueprint import built
from .decoder.errors import RankError
from .device import Device, free_memory, present
from .errors import UsageError
from .options import LoadOptions
from .shape import ModelShape


def check(name: str, options: LoadOptions, device: Device, config: Any) -> None:
    """Refuse what cannot be placed, as far as that is known without the model.

    Args:
        name: of the model, for messages.
        options: how it shall be loaded.
        device: where it will run.
        config: of the model.

    Raises:
        UsageError: the options do not go together, or a package is missing.
    """
    if options.tensor_parallel > 1:
        _check_ranks(options, device)
    if options.device_map is not None:
        if importlib.util.find_spec("accelerate") is None:
            raise UsageError("--device-map needs accelerate: pip install accelerate")
        _check_map(device_map.parse(options.device_map))
    if options.quantize != "none":
        _check_packing(name, options.quantize, config)


def part_of(
    name: str, options: LoadOptions, config: Any, shape: ModelShape, asking: dict[str, Any]
) -> ModelShape:
    """What this process will hold of a model; arguments as in `check`.

    Args:
        shape: of the whole model.
        asking: keywords of calls that may ask the hub.

    Raises:
        UsageError: it cannot be split over ranks, or spread over devices, in the way that was
            asked for.
    """
    if options.tensor_parallel > 1:
        model = built(config, asking)
        split.check(name, model, shape, options.tensor_parallel)
        return split.part_of(model, shape, options.tensor_parallel)
    parts = device_map.parse(options.device_map) if options.device_map is not None else None
    if isinstance(parts, dict):
        model = built(config, asking)
        modules = [each for each, _ in model.named_modules()]
        if why := device_map.uncovered(parts, modules, model.state_dict()):
            raise UsageError(f"{name} {why}")
    return shape


def keywords(
    options: LoadOptions,
    device: Device,
    config: Any,
    dtype: torch.dtype,
    beside: memory.Need | None = None,
) -> dict[str, Any]:
    """Keywords of `from_pretrained`; arguments as in `check`, which they have passed.

    Args:
        dtype: of activations.
        beside: what decoding takes beside the weights, to which a device map leaves room.

    Raises:
        RankError: the ranks that the model is to be split over have not found each other.
    """
    accelerate = importlib.util.find_spec("accelerate") is not None
    place: dict[str, Any] = {}
    if options.tensor_parallel > 1:
        place["distributed_config"] = _split(options.tensor_parallel, device)
    elif options.device_map is not None:
        place["device_map"] = chosen = device_map.parse(options.device_map)
        if isinstance(chosen, str) and beside is not None:
            place["max_memory"] = _limits(beside)
    elif accelerate and (device.kind != "cpu" or is_quantised(options, config)):
        # Straight to the device; without accelerate `load` moves the model there afterwards.
        # Quantised weights would go to a GPU that is there, whatever device is in use.
        place["device_map"] = device.torch_name
    if options.quantize != "none":
        place["quantization_config"] = _packing(options.quantize, dtype)
    return place


def is_quantised(options: LoadOptions, config: Any) -> bool:
    """Whether weights are packed, by bitsandbytes or in the checkpoint."""
    given = getattr(config, "quantization_config", None)
    return options.quantize != "none" or given is not None


def gpus() -> list[Device]:
    """The GPUs that a device map can spread a model over."""
    return [each for each in present() if each.kind == "cuda"]


def processor() -> Device:
    """The device that takes what GPUs have no room for."""
    return next(each for each in present() if each.kind == "cpu")


def _check_ranks(options: LoadOptions, device: Device) -> None:
    """Refuse what transformers does not do together with tensor parallelism."""
    if options.device_map is not None:  # programs only: commands refuse a map with any ranks
        raise UsageError(
            "--parallel-mode tensor spreads the model over ranks, and --device-map over the"
            " devices of one process; leave one of them out"
        )
    if options.quantize != "none":
        raise UsageError(
            f"--quantize {options.quantize} does not go with --parallel-mode tensor: bitsandbytes"
            " cannot split its weights; use --device-map auto, or leave --quantize out"
        )
    if importlib.util.find_spec("accelerate") is None:
        raise UsageError("--parallel-mode tensor needs accelerate: pip install accelerate")
    found = torch.accelerator.current_accelerator()
    if device.kind == "mps":
        raise UsageError(
            "transformers splits no model on Apple GPUs; use --parallel-mode lookahead"
        )
    if device.kind == "cpu" and found is not None and found.type == "cuda":
        raise UsageError(
            "transformers splits a model over the GPUs that it finds, so --device cpu does not go"
            " with --parallel-mode tensor; hide them: CUDA_VISIBLE_DEVICES= lade …"
        )


def _check_map(chosen: str | dict[str, int | str]) -> None:
    if isinstance(chosen, str):
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for part, value in chosen.items():
        if isinstance(value, int) and value >= count:
            here = f"the last one is {count - 1}" if count else "there is none here"
            raise UsageError(f"the device map puts {part!r} on GPU {value}, and {here}")


def _check_packing(name: str, quantize: str, config: Any) -> None:
    if (given := getattr(config, "quantization_config", None)) is not None:
        raise UsageError(
            f"{name} is quantised already ({given.get('quant_method', 'somehow')}); leave"
            " --quantize out"
        )
    missing = [p for p in ("bitsandbytes", "accelerate") if importlib.util.find_spec(p) is None]
    if missing:
        raise UsageError(
            f"--quantize {quantize} needs {' and '.join(missing)}: pip install 'ladecli[quant]'"
        )


def _split(ranks: int, device: Device) -> DistributedConfig:
    """The plan of tensor parallelism over the process group that there is."""
    # Without a group transformers would make one of its own, from torchrun's variables.
    there = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if there != ranks:
        raise RankError(
            f"the model is to be split over {ranks} ranks, and {there} decode together; start them"
            f" with --parallel {ranks} --parallel-mode tensor"
        )
    if device.kind == "cuda":
        # That is where transformers reads which GPU is this rank's.
        os.environ.setdefault("LOCAL_RANK", device.torch_name.partition(":")[2] or "0")
    return DistributedConfig(tp_size=ranks, tp_plan="auto")


def _limits(beside: memory.Need) -> dict[int | str, int]:
    """Bytes of weights that each device may take, so that decoding has room beside them."""
    kinds: dict[int | str, Device] = dict(enumerate(gpus()))
    free: dict[int | str, float] = {k: memory.usable(free_memory(d)) for k, d in kinds.items()}
    spare = memory.usable(free_memory(processor()))
    if not free:
        return {"cpu": max(int(spare - beside.cache - beside.step), 0)}
    # A device's layers have their keys there, and each of their steps is made there.
    total = sum(free.values())
    limits: dict[int | str, int] = {
        key: max(int(each - beside.step - beside.cache * each / total), 0)
        for key, each in free.items()
    }
    return {**limits, "cpu": int(spare)}


def _packing(quantize: str, dtype: torch.dtype) -> Any:
    """How bitsandbytes shall pack the weights."""
    # It logs a line for every product in 8 bits, and one for kernels that it does not need.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=quantize == "4bit",
        load_in_8bit=quantize == "8bit",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        # With the default threshold a result depends on the other tokens of the batch.
        llm_int8_threshold=0.0,
    )
