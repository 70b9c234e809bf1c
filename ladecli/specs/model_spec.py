"""A model's size and types from its configuration, before any weight is read."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import DynamicCache
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.pytorch_utils import Conv1D

from ..decoder.errors import UnsupportedModelError
from . import model_files
from .checkpoint import BLOCK
from .device import Device
from .memory import LEAST_CONTEXT, PACKED, Asked, ModelSpec, format_bytes, usable

_BITS = re.compile(r'"(?:bits|w_bit|nbits|weights|quant_type)": "?(?:int|float)?(\d)')
"""Where a quantised checkpoint's configuration (as JSON) has the bits of a weight."""
_BYTES = {"bitnet": 0.25, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
"""Bytes per weight of methods whose configuration does not say it, where it is not 1."""
_FP8_METHODS = ("fp8", "mxfp8", "fbgemm_fp8")
"""What transformers calls weights in FP8 with scales."""
_UNPACKED = frozenset({"compressed-tensors"})
"""Methods whose weights are small on disk only: the first forward pass makes them plain."""


def empty_model(config: Any, hub: Mapping[str, Any]) -> Any:
    """The model of a causal language model's configuration without weights, on the meta device.

    `hub` are keywords for finding the model's own code, among them `trust_remote_code`; without
    that, only transformers' code is run.
    """
    # Building fills in what the configuration leaves open: that of a live model must not change.
    config = copy.deepcopy(config)
    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    with torch.device("meta"):
        if own is not None and hub.get("trust_remote_code"):
            # `from_config` would run the newest code, whatever the revision.
            asking = {name: value for name, value in hub.items() if name != "trust_remote_code"}
            found = get_class_from_dynamic_module(own, config.name_or_path, **asking)
            return found._from_config(config, attn_implementation=None)
        # A configuration may name attention that this machine does not have; and transformers would
        # ask on the terminal whether it may run other code.
        return auto_class(config).from_config(
            config, attn_implementation=None, trust_remote_code=False
        )


def auto_class(config: Any) -> Any:
    """Return the class of transformers that makes a model of a configuration: some models that see
    pictures have no entry among those that only continue texts.

    Raises:
        UnsupportedModelError: no class does.
    """
    own = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if own or type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    if type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return transformers.AutoModelForImageTextToText
    raise UnsupportedModelError(
        f"models of the family {config.model_type!r} are not supported: transformers continues no"
        " text with them"
    )


def spec_of(
    model: Any, dtype: torch.dtype, quantize: str = "none", *, everything: bool = False
) -> ModelSpec:
    """What memory and speed depend on, of a model without weights; `dtype` is of activations.

    A checkpoint that is quantised already stays as it is, whatever `quantize` says.  With
    `everything` the embedding and the last layer count as quantised, too, each for itself; the
    embedding takes twice that.
    """
    config, text = model.config, model.config.get_text_config(decoder=True)
    compute = str(dtype).removeprefix("torch.")
    given = getattr(config, "quantization_config", None)
    plain = compute, float(dtype.itemsize)
    weights, bytes_each = PACKED.get(quantize, plain)
    if given is not None:
        weights, bytes_each = _stored(given) or plain
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    total = sum(sizes.values())
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    linear, packed, twice = _packed(model, weights, everything)
    heads = getattr(text, "num_attention_heads", None) or 1  # a recurrent model has none
    rank = getattr(text, "kv_lora_rank", None)
    inner = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None)
    kv_heads = _key_heads(text, heads)
    latent = rank + text.qk_rope_head_dim if rank else None
    configs = getattr(text, "per_layer_config", None) or [text] * text.num_hidden_layers
    widths = [getattr(each, "head_dim", None) or text.hidden_size // heads for each in configs]
    return ModelSpec(
        parameters=float(total),
        active=float(total - experts * (1.0 - _chosen(text))),
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
        # What is quantised already is not packed again.
        linear=float(linear) if given is None else 0.0,
        latent=latent,
        cached=float(_cached(text, [latent or 2 * kv_heads * width for width in widths])),
    )


def _key_heads(text: Any, heads: int) -> int:
    """Heads of keys and values."""
    # Any file may hold any key: what counts is whether the family reads it.
    if hasattr(type(text)(), "num_key_value_heads"):
        return text.num_key_value_heads or heads
    if getattr(text, "new_decoder_architecture", False):  # Falcon's
        return int(text.num_kv_heads)
    return 1 if getattr(text, "multi_query", False) else heads


def _cached(text: Any, sizes: Sequence[int]) -> int:
    """Numbers that a model caches of one token, over all layers; of one with keys it is `sizes`."""
    if not getattr(text, "num_attention_heads", None):
        return 0
    # Which layers keep what is told by the cache that transformers makes for the family.
    layers, total = DynamicCache(config=text).layers, 0
    for size, layer in zip_longest(sizes, layers[: len(sizes)]):
        if layer is None or hasattr(layer, "get_mask_sizes"):  # others have a recurrent state alone
            total += size
    return total


def choose_dtype(
    model: Any, wanted: str, quantize: str, device: Device, free: float, folder: Path | None
) -> tuple[torch.dtype, str | None]:
    """The type of activations and plain weights of a model without weights, and a notice.

    By itself a CPU computes in float32 where that fits into `free` bytes, and a GPU in what the
    checkpoint (in `folder`, as far as it is on this machine) holds.
    """
    if wanted != "auto":
        return getattr(torch, wanted), None
    config, text = model.config, model.config.get_text_config(decoder=True)
    if device.kind != "cpu" or getattr(config, "quantization_config", None) is not None:
        stored = text.dtype or config.dtype
        # Weights that do not say their type are old, and most of them in float32.
        found = model_files.stored_type(folder) if stored is None and folder is not None else None
        return stored or getattr(torch, found or "float32"), None
    least = min(getattr(text, "max_position_embeddings", None) or LEAST_CONTEXT, LEAST_CONTEXT)
    needed = Asked(least).need(spec_of(model, torch.float32, quantize)).total
    if needed <= usable(free):
        return torch.float32, None
    return torch.bfloat16, (
        f"float32 needs {format_bytes(needed)}, and {format_bytes(usable(free))} can be used: using"
        " bfloat16"
    )


def fp8_block(device: Device, config: Any, method: str | None) -> Sequence[int] | None:
    """Have weights in FP8 made plain if the device cannot multiply them, or transformers does not
    read their scales.

    transformers makes them plain too, but asks the machine's first GPU and not the device in use,
    and spreads the scales of blocks evenly over a weight.

    Returns:
        Rows and columns of a block of a weight with one scale; None if weights stay as they are.
    """
    if method != model_files.FP8 and (method not in _FP8_METHODS or _multiplies_fp8(device)):
        return None
    block = None
    for part in (config, config.get_text_config(decoder=True)):
        if given := getattr(part, "quantization_config", None):
            block = given.get("weight_block_size")
            del part.quantization_config
    return block or (BLOCK, BLOCK)


def _multiplies_fp8(device: Device) -> bool:
    if device.kind != "cuda":
        return False
    return torch.cuda.get_device_capability(device.torch_name) >= (8, 9)


def _stored(given: Any) -> tuple[str, float] | None:
    """Type, and bytes of one, of the weights of a quantised checkpoint; None for plain ones."""
    given = given if isinstance(given, dict) else given.to_dict()
    method = given.get("quant_method", "quantised")
    method = str(getattr(method, "value", method))  # of a loaded model, it is an enumeration's
    if given.get("load_in_4bit") or given.get("load_in_8bit"):
        return PACKED["4bit" if given.get("load_in_4bit") else "8bit"]
    if given.get("dequantize") or method in _UNPACKED:
        return None
    found = _BITS.search(json.dumps(given, default=str))
    return method, int(found[1]) / 8 if found else _BYTES.get(method, 1.0)


def _packed(model: Any, weights: str, everything: bool) -> tuple[int, int, int]:
    """How many weights are of linear layers but the last, how many quantisation packs, and how many
    of these are held in two forms."""
    head = model.get_output_embeddings()
    modules = [each for each in model.modules() if isinstance(each, (nn.Linear, Conv1D))]
    linear = packed = sum(each.weight.numel() for each in modules if each is not head)
    if weights == "fp8":  # experts too that are one tensor, [experts, out, in]
        named = model.named_parameters()
        packed += sum(
            each.numel() for name, each in named if ".experts." in name and each.ndim == 3
        )
    if not everything:
        return linear, packed, 0
    ends = [each.weight for each in (model.get_input_embeddings(), head) if each is not None]
    distinct = sum(each.numel() for each in {*ends})  # tied ones are one
    return linear, packed + distinct, sum(each.numel() for each in ends) - distinct


def _chosen(text: Any) -> float:
    """The share of the experts that a token meets."""

    def first(names: str) -> int:
        return next((n for name in names.split() if (n := getattr(text, name, None))), 0)

    experts = first("num_local_experts num_experts n_routed_experts moe_num_experts")
    chosen = first("num_experts_per_tok moe_k") or experts
    return min(chosen / experts, 1.0) if experts else 1.0
