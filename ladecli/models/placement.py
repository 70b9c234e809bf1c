"""The placement of a model's weights: on one device, on several, or split over ranks; and packed.

Torch is imported only when it is needed, since options are checked without it.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, counted
from .device import Device, free_memory, present
from .memory import MemoryNeed, ModelSpec, usable

if TYPE_CHECKING:
    import torch

    from ..decoder.model.families import ModelFacts
    from .adapters import Adapter


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a model's weights, and the quantisation while loading."""

    device: Device
    device_map: str | None = None
    split: int = 1  # the number of ranks that each hold a part of the weights
    quantize: str = "none"

    @property
    def own_int8(self) -> bool:
        """True if 8-bit weights are ours (`decoder.backends.int8`), not bitsandbytes'."""
        if self.quantize != "8bit" or self.device.kind != "cpu":
            return False
        from ..decoder.backends import int8

        return self.device_map is None and self.split == 1 and int8.available()

    @property
    def packs(self) -> bool:
        """True if bitsandbytes packs the weights; our own 8 bits come after merging."""
        return self.quantize != "none" and not self.own_int8

    def is_ours(self, facts: ModelFacts) -> bool:
        """Return True if our own forward can run a model, judging by its configuration."""
        return facts.ours and self.device_map is None and self.split == 1


_OFFLOADED: list[tempfile.TemporaryDirectory[str]] = []
_CUT = ("colwise", "rowwise", "embedding_", "packed_")
"""Prefixes of transformers' styles that give each rank a part of a weight."""
_OWN_HEADS = ("colwise", "packed_colwise")
"""Styles whose outputs differ between ranks."""


def remove_offloaded() -> None:
    """Remove weights on the disk, for a program that ends without Python's exit handlers."""
    while _OFFLOADED:
        _OFFLOADED.pop().cleanup()


def check(name: str, place: Placement, config: Any, adapters: Sequence[Adapter] = ()) -> None:
    """Check a placement against the configuration; `adapters` are merged into the weights.

    Raises:
        UsageError: the options contradict each other, or a package is missing.
    """
    quantization = getattr(config, "quantization_config", None)
    method = quantization.get("quant_method", "unknown method") if quantization else None
    kind, split = place.device.kind, place.split > 1
    option = f"--quantize {place.quantize}"
    if adapters:
        adapter = f"an adapter ({adapters[0].name})"
        if quantization:
            raise UsageError(
                f"{adapter} cannot be merged into {name}, which is quantised ({method}); use the"
                " base in plain weights"
            )
        if place.packs:
            why = "which is merged into plain weights"
            raise UsageError(f"{option} does not go with {adapter}, {why}")
        if split:
            raise UsageError(
                f"--parallel-mode tensor does not go with {adapter}, which is merged into whole"
                " weights; use --parallel-mode lookahead or --device-map auto"
            )
    if split and place.quantize != "none":
        raise UsageError(
            f"{option} does not go with --parallel-mode tensor: bitsandbytes cannot split its"
            " weights; use --device-map auto, or leave --quantize out"
        )
    if split and kind == "mps":
        raise UsageError(
            "transformers splits no model on Apple GPUs; use --parallel-mode lookahead"
        )
    if split and kind == "cpu" and present()[0].kind == "cuda":
        raise UsageError(
            "transformers splits a model over the GPUs that it finds, so --device cpu does not go"
            " with --parallel-mode tensor; hide them: CUDA_VISIBLE_DEVICES= lade …"
        )
    if place.quantize != "none" and quantization:
        raise UsageError(f"{name} is quantised already ({method}); leave --quantize out")
    for what, needs, fix, packages in (
        ("--parallel-mode tensor", split, "accelerate", ("accelerate",)),
        ("--device-map", place.device_map, "accelerate", ("accelerate",)),
        (option, place.packs, "'ladecli[quant]'", ("bitsandbytes", "accelerate")),
    ):
        missing = [package for package in packages if not importlib.util.find_spec(package)]
        if needs and missing:
            raise UsageError(f"{what} needs {' and '.join(missing)}: pip install {fix}")


def rank_spec(name: str, model: Any, spec: ModelSpec, ranks: int) -> ModelSpec:
    """Return the part of one rank of a model that transformers splits by its family's plan.

    Raises:
        UsageError: the model cannot be split; the message has an alternative.
    """
    other = "--device-map auto or --parallel-mode lookahead"
    plan = model.tp_plan or {}
    if not plan:
        raise UsageError(
            f"models of the family {model.config.model_type!r} have no tensor-parallel plan in"
            f" transformers; use {other}"
        )
    heads = any("attn" in part and style in _OWN_HEADS for part, style in plan.items())
    # A head, or an expert, that is cut in two would yield a different text without an error.
    numbers = {"key/value head": spec.kv_heads, "head": spec.heads} if heads else {}
    numbers["feed-forward column"] = spec.inner
    if uneven := [counted(n, what) for what, n in numbers.items() if n % ranks]:
        whole = math.gcd(*numbers.values())
        fitting = [str(n) for n in range(2, min(whole, 64) + 1) if whole % n == 0]
        fix = f"--parallel {' or '.join(fitting)}" if fitting else other
        raise UsageError(f"{uneven[0]} of {name} cannot be split over {ranks} ranks; use {fix}")
    cut = sum(x.numel() for name, x in model.named_parameters() if _is_cut(plan, name))
    return spec.shard(ranks, whole=spec.parameters - cut, heads=heads)


def _is_cut(plan: dict[str, str], name: str) -> bool:
    """Return True if the plan splits the parameter of this name over ranks."""
    general = re.sub(r"\.\d+(?=\.|$)", ".*", name)
    style = plan.get(general) or plan.get(general.rpartition(".")[0]) or ""
    return style.startswith(_CUT)


def keywords(
    place: Placement, config: Any, dtype: torch.dtype, need: MemoryNeed | None
) -> dict[str, Any]:
    """Return keywords of `from_pretrained` for a checked placement; a device map leaves room for
    decoding, which has the given `need`."""
    import transformers

    options: dict[str, Any] = {}
    quantised = place.packs or getattr(config, "quantization_config", None) is not None
    if place.split > 1:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=place.split, tp_plan="auto")
        if place.device.kind == "cuda":
            # transformers reads the GPU of this rank from this variable.
            os.environ.setdefault("LOCAL_RANK", place.device.torch_name.partition(":")[2] or "0")
    elif place.device_map is not None:
        options["device_map"] = place.device_map
        # For weights on the disk whose form differs from the checkpoint's.
        folder = tempfile.TemporaryDirectory(prefix="lade-", ignore_cleanup_errors=True)
        _OFFLOADED.append(folder)
        options["offload_folder"] = folder.name
        if need is not None:
            options["max_memory"] = _limits(need)
    elif importlib.util.find_spec("accelerate") and (place.device.kind != "cpu" or quantised):
        # Straight to the device; otherwise quantised weights would go to any GPU.
        options["device_map"] = place.device.torch_name
    if place.packs:
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=place.quantize == "4bit",
            load_in_8bit=place.quantize == "8bit",
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=dtype,
            # With the default threshold, results depend on the other tokens of the batch.
            llm_int8_threshold=0.0,
        )
    return options


def _limits(need: MemoryNeed) -> dict[int | str, int]:
    """Return the most bytes of weights for each device, leaving room for decoding."""
    gpus, spare = free_bytes()
    if not gpus:
        return {"cpu": max(int(usable(spare) - need.cache - need.step), 0)}
    # Each device also holds the keys of its layers, and computes their part of each step.
    limits: dict[int | str, int] = {
        index: max(int(usable(free) - need.step - need.cache * free / sum(gpus)), 0)
        for index, free in enumerate(gpus)
    }
    return {**limits, "cpu": int(usable(spare))}


def free_bytes() -> tuple[list[float], float]:
    """Return the free bytes of each GPU that a device map can use, and of the processor, which
    holds the rest of the weights."""
    *others, processor = present()
    return [free_memory(gpu) for gpu in others if gpu.kind == "cuda"], free_memory(processor)
