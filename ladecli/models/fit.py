"""Decide the placement and the types of a model, and compute its size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.pytorch_utils import Conv1D

from ..decoder.backends import int8
from ..decoder.backends.cpu_layouts import computed_in
from ..options.model import ModelOptions, PlacementOptions
from . import checkpoint, device, model_files, placement
from .describe import ModelDescription, empty_model, loading, merging
from .device import Device
from .find import ModelFiles
from .memory import FULL, LEAST_CONTEXT, PACKED, MemoryRequest, ModelSpec, format_bytes, usable
from .model_files import Tensor
from .placement import Placement

_BITS = re.compile(r'"(?:bits|w_bit|nbits|weights|quant_type)": "?(?:int|float)?(\d)')
"""The bits of a weight in a quantised checkpoint's configuration (as JSON)."""
_BYTES = {"bitnet": 0.25, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
"""Bytes per weight for methods whose configuration does not state them, if it is not 1."""
_FP8_METHODS = ("fp8", "mxfp8", "fbgemm_fp8")
"""transformers' names of methods with FP8 weights and scales."""
_UNPACKED = frozenset({"compressed-tensors"})
"""Methods whose weights are small only on disk, since the first forward pass unpacks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel(ModelDescription):
    """A model that is ready to load: everything that is known before any weight is read."""

    placement: Placement
    dtype: torch.dtype  # of weights that are not quantized; of activations, except on some CPUs
    spec: ModelSpec
    part: ModelSpec  # the part of this process; the whole model unless it is split over ranks
    notices: tuple[str, ...]
    fp8_block: Sequence[int] | None = None  # see `_fp8_block`

    @property
    def device(self) -> Device:
        """The device that it runs on, or the first of several."""
        return self.placement.device

    @property
    def in_float32(self) -> bool:
        """True if a CPU keeps activations, keys and values in float32, for any type of weights."""
        if self.device.kind != "cpu" or not self.placement.is_ours(self.facts):
            return False
        plain = self.spec.weights in FULL
        return self.placement.own_int8 or (plain and computed_in(self.dtype).itemsize == 4)


def values_of(description: ModelDescription) -> dict[str, Any]:
    """Return the fields of a description by name, to create an object of a subclass."""
    return {field.name: getattr(description, field.name) for field in fields(description)}


def fit(
    description: ModelDescription, place: PlacementOptions | None = None, split: int = 1
) -> PlannedModel:
    """Decide the placement and the types of a model, and change its configuration accordingly.

    The model is `split` over ranks.

    Raises:
        UsageError: there is no such device, or the options contradict each other.
    """
    place, files, config = place or PlacementOptions(), description.files, description.config
    options, name = files.options, files.base
    target = device.detect(place.device)
    where = Placement(target, place.device_map, split, options.quantize)
    if (options.quantize, options.dtype) == ("none", "auto") and not files.adapters:
        eight = replace(where, quantize="8bit")
        if files.header is not None and files.header.quantised and eight.own_int8:
            where = eight
    with loading(files, progress=False):
        if files.header is not None and target.kind != "cpu":
            config.dtype = torch.bfloat16  # the file's own weights have fewer bits
        packing = description.packing
        block = _fp8_block(target, config, packing) if packing else None
        placement.check(name, where, config, files.adapters)
        empty = empty_model(config, files.hub_options)
        for adapter in files.adapters:
            with merging(adapter, name):
                checkpoint.fit_embeddings(empty, adapter)
        free = device.free_memory(target)
        dtype, notice = _choose_dtype(empty, options, where, free, files.tensors)
        spec = spec_of(empty, dtype, where.quantize, everything=where.own_int8)
        notices = [notice] if notice else []
        if block:
            notices.append(f"{name}: FP8 weights are converted to plain ones")
        if config.get_text_config(decoder=True) is not config:
            notices.append(f"{name} is loaded without its image and audio parts: text only")
        notices += _notices(files, where, spec, empty)
    vocabulary = empty.config.get_text_config(decoder=True).vocab_size
    return PlannedModel(
        **values_of(description) | {"facts": replace(description.facts, vocabulary=vocabulary)},
        placement=where,
        dtype=dtype,
        spec=spec,
        part=spec if split == 1 else placement.rank_spec(name, empty, spec, split),
        notices=tuple(notices),
        fp8_block=block,
    )


def _notices(files: ModelFiles, where: Placement, spec: ModelSpec, empty: Any) -> Iterator[str]:
    """Yield lines for the user about the memory of a model, and about conversions."""
    for adapter in files.adapters:
        size = format_bytes(spec.weight_bytes)
        other = adapter.base not in (None, files.base)
        yield (
            f"adapter {adapter.name} ({adapter.kind}) is merged into {files.base}, which takes"
            f" {size} as {spec.weights}{f'; it was made for {adapter.base}' if other else ''}"
        )
    if files.header is not None:
        from . import gguf_model

        name, size = files.header.path.name, format_bytes(spec.weight_bytes)
        how = f"is unpacked to {spec.weights}"
        fix = ""
        if where.own_int8:
            how = "is held in 8 bits"
            fix = "; --dtype float32 unpacks it exactly" if files.options.dtype == "auto" else ""
        yield f"{name} {how}, which takes {size} of memory{fix}"
        yield from gguf_model.notices(files.header, empty)
    if where.own_int8 and not int8.has_vnni():
        yield "8 bits save memory here but no time: this processor has no 8-bit instructions (VNNI)"


def spec_of(
    model: Any, dtype: torch.dtype, quantize: str = "none", *, everything: bool = False
) -> ModelSpec:
    """Return the sizes of a model without weights; `dtype` is of activations.

    `quantize` does not apply to a quantised checkpoint.  With `everything`, the embedding and the
    last layer are quantised separately as well, which doubles the size of tied ones.
    """
    config, text = model.config, model.config.get_text_config(decoder=True)
    compute = str(dtype).removeprefix("torch.")
    quantization = getattr(config, "quantization_config", None)
    plain = compute, float(dtype.itemsize)
    weights, bytes_each = PACKED.get(quantize, plain)
    if quantization is not None:
        weights, bytes_each = _stored(quantization) or plain
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    total = sum(sizes.values())
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    unused = experts * (1.0 - _chosen_experts(text)) if experts else 0.0
    linear, packed, twice = _packed(model, weights, everything)
    heads = getattr(text, "num_attention_heads", None) or 1  # a recurrent model has none
    rank = getattr(text, "kv_lora_rank", None)
    inner = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None)
    kv_heads = _key_heads(text, heads)
    latent = rank + text.qk_rope_head_dim if rank else None
    configs = getattr(text, "per_layer_config", None) or [text] * text.num_hidden_layers
    widths = [getattr(part, "head_dim", None) or text.hidden_size // heads for part in configs]
    cached = [latent or 2 * kv_heads * width for width in _cached_widths(text, widths)]
    return ModelSpec(
        parameters=float(total),
        active=total - unused,
        weights=weights,
        weight_bytes=(total - packed) * dtype.itemsize + (packed + twice) * bytes_each,
        compute=compute,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        inner=max(inner) if isinstance(inner, list | tuple) else inner or 4 * text.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_size=max(widths),
        vocabulary=text.vocab_size,
        # Weights that are quantised already are not packed again.
        linear=float(linear) if quantization is None else 0.0,
        latent=latent,
        cached=float(sum(cached)),
    )


def _cached_widths(text: Any, widths: Sequence[int]) -> list[int]:
    """Return the head sizes of the layers that cache keys, from the head sizes of all layers."""
    if not getattr(text, "num_attention_heads", None):
        return []
    # In transformers' cache for the family, other layers have only a recurrent state.
    layers = zip_longest(widths, DynamicCache(config=text).layers[: len(widths)])
    return [w for w, layer in layers if layer is None or hasattr(layer, "get_mask_sizes")]


def _key_heads(text: Any, heads: int) -> int:
    """Return the number of heads of keys and values."""
    # The file may have this key although the family does not use it, so its class decides.
    if hasattr(type(text)(), "num_key_value_heads"):
        return text.num_key_value_heads or heads
    if getattr(text, "new_decoder_architecture", False):  # Falcon's
        return int(text.num_kv_heads)
    return 1 if getattr(text, "multi_query", False) else heads


def _choose_dtype(
    model: Any, options: ModelOptions, where: Placement, free: float, tensors: Sequence[Tensor]
) -> tuple[torch.dtype, str | None]:
    """Return the type of activations and plain weights of a model without weights, and a notice.

    By default, a CPU computes in float32 if that fits into `free` bytes, and a GPU in the type of
    the checkpoint, whose `tensors` on this machine are given.
    """
    if options.dtype != "auto":
        return getattr(torch, options.dtype), None
    config, text = model.config, model.config.get_text_config(decoder=True)
    if where.device.kind != "cpu" or getattr(config, "quantization_config", None) is not None:
        # Checkpoints without a stated type are old, and most of them are in float32.
        stored = text.dtype or config.dtype
        return stored or getattr(torch, model_files.stored_type(tensors) or "float32"), None
    least = min(getattr(text, "max_position_embeddings", None) or LEAST_CONTEXT, LEAST_CONTEXT)
    needed = MemoryRequest(least).need(spec_of(model, torch.float32, where.quantize)).total
    if needed <= usable(free):
        return torch.float32, None
    return torch.bfloat16, (
        f"float32 needs {format_bytes(needed)}, and {format_bytes(usable(free))} can be used: using"
        " bfloat16"
    )


def _fp8_block(target: Device, config: Any, packing: str) -> Sequence[int] | None:
    """Arrange to convert FP8 weights to plain ones if the device cannot multiply them, or
    transformers does not read their scales.

    transformers can convert them, too, but checks the machine's first GPU and not the device in
    use, and spreads the scales of blocks evenly over a weight.

    Returns:
        The size of a block with one scale, in rows and columns; None if weights are not converted.
    """
    multiplied = target.kind == "cuda" and packing in _FP8_METHODS
    if multiplied and torch.cuda.get_device_capability(target.torch_name) >= (8, 9):
        return None
    if packing not in (model_files.FP8, *_FP8_METHODS):
        return None
    block = None
    for part in (config, config.get_text_config(decoder=True)):
        if quantization := getattr(part, "quantization_config", None):
            block = quantization.get("weight_block_size")
            del part.quantization_config
    return block or (checkpoint.BLOCK, checkpoint.BLOCK)


def _stored(quantization: Any) -> tuple[str, float] | None:
    """Return the type of quantised weights, and the bytes of one; None for plain ones."""
    quantization = quantization if isinstance(quantization, dict) else quantization.to_dict()
    method = quantization.get("quant_method", "quantised")
    method = str(getattr(method, "value", method))  # an enumeration in a loaded model
    if quantization.get("load_in_4bit") or quantization.get("load_in_8bit"):
        return PACKED["4bit" if quantization.get("load_in_4bit") else "8bit"]
    if quantization.get("dequantize") or method in _UNPACKED:
        return None
    bits = _BITS.search(json.dumps(quantization, default=str))
    return method, int(bits[1]) / 8 if bits else _BYTES.get(method, 1.0)


def _packed(model: Any, weights: str, everything: bool) -> tuple[int, int, int]:
    """Return three counts of weights: of linear layers except the last, of packed ones, and of
    packed ones that are stored twice."""
    head = model.get_output_embeddings()
    modules = [module for module in model.modules() if isinstance(module, (nn.Linear, Conv1D))]
    linear = packed = sum(module.weight.numel() for module in modules if module is not head)
    if weights == "fp8":  # includes experts in one tensor, [experts, out, in]
        named = model.named_parameters()
        packed += sum(x.numel() for name, x in named if ".experts." in name and x.ndim == 3)
    if not everything:
        return linear, packed, 0
    ends = [end.weight for end in (model.get_input_embeddings(), head) if end is not None]
    distinct = sum(weight.numel() for weight in {*ends})  # tied ones are one
    return linear, packed + distinct, sum(weight.numel() for weight in ends) - distinct


def _chosen_experts(text: Any) -> float:
    """Return the share of the experts that a token uses."""

    def first(names: str) -> int:
        return next((n for name in names.split() if (n := getattr(text, name, None))), 0)

    experts = first("num_local_experts num_experts n_routed_experts moe_num_experts")
    chosen = first("num_experts_per_tok moe_k") or experts
    return min(chosen / experts, 1.0) if experts else 1.0
