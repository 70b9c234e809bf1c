"""Where a model's weights go: on one device, several, or split over ranks; and how packed.

Torch is imported where it is needed: options are checked without it.
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
from .memory import ModelSpec, Need, usable

if TYPE_CHECKING:
    import torch

    from ..decoder.model.families import ModelFacts
    from .adapters import Adapter


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the weights of a model go, and how they are packed on the way."""

    device: Device
    device_map: str | None = None
    split: int = 1  # ranks that each take a part of them
    quantize: str = "none"

    @property
    def own_int8(self) -> bool:
        """Whether weights of 8 bits are ours (`decoder.backends.int8`), and not bitsandbytes'."""
        if self.quantize != "8bit" or self.device.kind != "cpu":
            return False
        from ..decoder.backends import int8

        return self.device_map is None and self.split == 1 and int8.available()

    def is_ours(self, facts: ModelFacts) -> bool:
        """Whether our own forward runs a model here, as far as its configuration tells."""
        return facts.ours and self.device_map is None and self.split == 1


_OFFLOADED: list[tempfile.TemporaryDirectory[str]] = []
_CUT = ("colwise", "rowwise", "embedding_", "packed_")
"""How names of transformers' styles begin that give each rank a part of a weight."""
_OWN_HEADS = ("colwise", "packed_colwise")
"""Styles after which each rank goes on with its own part of the numbers."""


def remove_offloaded() -> None:
    """Remove weights that were kept on the disk, where a program ends without Python's exit."""
    while _OFFLOADED:
        _OFFLOADED.pop().cleanup()


def check(name: str, place: Placement, config: Any, adapters: Sequence[Adapter] = ()) -> None:
    """Refuse what cannot be placed, as far as that is known without the model.

    `adapters` are merged into its weights.

    Raises:
        UsageError: the options do not go together, or a package is missing.
    """
    for holds, why in _refusals(name, place, config, adapters):
        if holds:
            raise UsageError(why)
    if place.split > 1:
        _require("--parallel-mode tensor", "pip install accelerate", "accelerate")
    if place.device_map is not None:
        _require("--device-map", "pip install accelerate", "accelerate")
    if _packs(place):
        option = f"--quantize {place.quantize}"
        _require(option, "pip install 'ladecli[quant]'", "bitsandbytes", "accelerate")


def _packs(place: Placement) -> bool:
    """Whether bitsandbytes is to pack the weights; our own 8 bits come after merging."""
    return place.quantize != "none" and not place.own_int8


def _refusals(
    name: str, place: Placement, config: Any, adapters: Sequence[Adapter]
) -> Sequence[tuple[object, str]]:
    """What does not go together: whether it is so, and the line that says it."""
    given = getattr(config, "quantization_config", None)
    method = given.get("quant_method", "unknown method") if given else None
    quantizes, kind, split = place.quantize != "none", place.device.kind, place.split > 1
    adapted = f"an adapter ({adapters[0].name})" if adapters else None
    option = f"--quantize {place.quantize}"
    return (
        (
            adapted and given,
            f"{adapted} cannot be merged into {name}, which is quantised ({method}); use the base"
            " in plain weights",
        ),
        (
            adapted and _packs(place),
            f"{option} does not go with {adapted}, which is merged into plain weights",
        ),
        (
            adapted and split,
            f"--parallel-mode tensor does not go with {adapted}, which is merged into whole"
            " weights; use --parallel-mode lookahead or --device-map auto",
        ),
        (
            split and quantizes,
            f"{option} does not go with --parallel-mode tensor: bitsandbytes cannot split its"
            " weights; use --device-map auto, or leave --quantize out",
        ),
        (
            split and kind == "mps",
            "transformers splits no model on Apple GPUs; use --parallel-mode lookahead",
        ),
        (
            split and kind == "cpu" and present()[0].kind == "cuda",
            "transformers splits a model over the GPUs that it finds, so --device cpu does not go"
            " with --parallel-mode tensor; hide them: CUDA_VISIBLE_DEVICES= lade …",
        ),
        (quantizes and given, f"{name} is quantised already ({method}); leave --quantize out"),
    )


def _require(option: str, fix: str, *packages: str) -> None:
    missing = [each for each in packages if importlib.util.find_spec(each) is None]
    if missing:
        raise UsageError(f"{option} needs {' and '.join(missing)}: {fix}")


def rank_spec(name: str, model: Any, spec: ModelSpec, ranks: int) -> ModelSpec:
    """What one rank holds of a model that transformers splits as its family's plan says.

    Raises:
        UsageError: it cannot be split; the message says what can be done instead.
    """
    if ranks == 1:
        return spec
    other = "--device-map auto or --parallel-mode lookahead"
    plan = model.tp_plan or {}
    if not plan:
        raise UsageError(
            f"models of the family {model.config.model_type!r} have no tensor-parallel plan in"
            f" transformers; use {other}"
        )
    heads = any("attn" in part and style in _OWN_HEADS for part, style in plan.items())
    # A head, or an expert, that is cut in two would still give a text, and another one.
    numbers = {"key/value head": spec.kv_heads, "head": spec.heads} if heads else {}
    numbers["feed-forward column"] = spec.inner
    if uneven := [counted(n, what) for what, n in numbers.items() if n % ranks]:
        whole = math.gcd(*numbers.values())
        fitting = [str(n) for n in range(2, min(whole, 64) + 1) if whole % n == 0]
        fix = f"--parallel {' or '.join(fitting)}" if fitting else other
        raise UsageError(f"{uneven[0]} of {name} cannot be split over {ranks} ranks; use {fix}")
    cut = sum(each.numel() for part, each in model.named_parameters() if _is_cut(plan, part))
    return spec.shard(ranks, whole=spec.parameters - cut, heads=heads)


def _is_cut(plan: dict[str, str], name: str) -> bool:
    """Whether the plan gives each rank a part of the parameter of this name."""
    general = re.sub(r"\.\d+(?=\.|$)", ".*", name)
    style = plan.get(general) or plan.get(general.rpartition(".")[0]) or ""
    return style.startswith(_CUT)


def keywords(
    place: Placement, config: Any, dtype: torch.dtype, need: Need | None
) -> dict[str, Any]:
    """Keywords of `from_pretrained` for a placement that passed `check`.

    A device map leaves room for what decoding takes, its `need`.
    """
    import transformers

    found: dict[str, Any] = {}
    packed = place.quantize != "none" and not place.own_int8
    quantised = packed or getattr(config, "quantization_config", None) is not None
    if place.split > 1:
        from transformers.distributed import DistributedConfig

        found["distributed_config"] = DistributedConfig(tp_size=place.split, tp_plan="auto")
        if place.device.kind == "cuda":
            # That is where transformers reads which GPU is this rank's.
            os.environ.setdefault("LOCAL_RANK", place.device.torch_name.partition(":")[2] or "0")
    elif place.device_map is not None:
        found["device_map"] = place.device_map
        # For what goes to the disk and is not in the checkpoint as it is needed.
        folder = tempfile.TemporaryDirectory(prefix="lade-", ignore_cleanup_errors=True)
        _OFFLOADED.append(folder)
        found["offload_folder"] = folder.name
        if need is not None:
            found["max_memory"] = _limits(need)
    elif importlib.util.find_spec("accelerate") and (place.device.kind != "cpu" or quantised):
        # Straight to the device; quantised weights would go to any GPU that is there.
        found["device_map"] = place.device.torch_name
    if packed:
        found["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=place.quantize == "4bit",
            load_in_8bit=place.quantize == "8bit",
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=dtype,
            # With the default threshold a result depends on the other tokens of the batch.
            llm_int8_threshold=0.0,
        )
    return found


def _limits(need: Need) -> dict[int | str, int]:
    """Bytes of weights that each device may take, so that decoding has room beside them."""
    gpus, spare = free_bytes()
    if not gpus:
        return {"cpu": max(int(usable(spare) - need.cache - need.step), 0)}
    # A device's layers have their keys there, and each of their steps is made there.
    limits: dict[int | str, int] = {
        index: max(int(usable(each) - need.step - need.cache * each / sum(gpus)), 0)
        for index, each in enumerate(gpus)
    }
    return {**limits, "cpu": int(usable(spare))}


def free_bytes() -> tuple[list[float], float]:
    """Free bytes of the GPUs that a device map can spread a model over, and of the processor, which
    takes what they have no room for."""
    *others, processor = present()
    return [free_memory(each) for each in others if each.kind == "cuda"], free_memory(processor)
