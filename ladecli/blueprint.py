"""The shape of a model from its configuration, by building it without its weights."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.pytorch_utils import Conv1D

from .shape import PACKED, ModelShape

_BYTES = {"bitnet": 0.25, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
"""Bytes per weight of methods whose configuration does not say their bits, where it is not 1."""
_BITS = (
    r'"(?:bits|w_bit|nbits)": (\d+)',  # GPTQ, AWQ; HQQ has them deep inside
    r'"weights": "(?:int|float)(\d)',  # Quanto
    r'(?i)"(?:quant_type|_type)": "\w*?(?:int|float)(\d)_?weight',  # torchao, in both its forms
)
"""Where a configuration says the bits of a weight, as expressions for its JSON."""
_UNPACKED = frozenset({"compressed-tensors"})
"""Methods whose weights are small on disk only: the first forward pass makes them plain."""
_EXPERTS = frozenset({"fp8"})
"""Methods that pack experts too, which are parameters with three axes and no linear layers."""


@dataclass(frozen=True, slots=True)
class _Storage:
    """How the large weights are held.

    Attributes:
        weights: their type, as in `ModelShape`.
        each: bytes of one.
        experts: whether weights of experts are among them.
    """

    weights: str
    each: float
    experts: bool = False


def shape_of(
    config: Any,
    dtype: torch.dtype,
    quantize: str = "none",
    *,
    hub: Mapping[str, Any] | None = None,
) -> ModelShape:
    """What memory and speed depend on.

    Args:
        config: of a causal language model of transformers; it stays as it is.
        dtype: of activations, and of weights that are not quantised.
        quantize: none, 4bit or 8bit; a checkpoint that is quantised already stays as it is.
        hub: keywords for finding the model's own code, among them `trust_remote_code`; without
            that, only transformers' code is run.

    Raises:
        Exception: whatever the model's code raises where the configuration makes no sense.
    """
    model = built(config, hub or {})
    text = config.get_text_config(decoder=True)
    storage = _storage(config, dtype, quantize)
    parameters = {name: p.numel() for name, p in model.named_parameters()}
    total = sum(parameters.values())
    # Only some of the experts see a token.
    expert = sum(count for name, count in parameters.items() if ".experts." in name)
    linear = _linear(model)
    packed = linear + (_stacked(model) if storage.experts else 0)
    packed = 0 if storage.weights == _name(dtype) else packed
    heads = text.num_attention_heads
    return ModelShape(
        parameters=float(total),
        active=float(total - expert * (1.0 - _chosen(text))),
        weights=storage.weights,
        weight_bytes=packed * storage.each + (total - packed) * dtype.itemsize,
        compute=_name(dtype),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        inner=_inner(text),
        heads=heads,
        kv_heads=_kv_heads(text) or heads,
        head_size=_head_size(text) or text.hidden_size // heads,
        vocabulary=text.vocab_size,
        # What is quantised already is not packed again.
        linear=0.0 if getattr(config, "quantization_config", None) else float(linear),
        latent=_latent(text),
    )


def _head_size(text: Any) -> int:
    """Of the widest layer: some families have several; 0 where the configuration does not say."""
    layers = getattr(text, "per_layer_config", None) or [text]
    return max(getattr(layer, "head_dim", None) or 0 for layer in layers)


def built(config: Any, hub: Mapping[str, Any]) -> Any:
    """The model without weights; arguments as in `shape_of`."""
    # Building fills in what the configuration leaves open: that of a live model must not change.
    config = copy.deepcopy(config)
    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    with torch.device("meta"):
        if own is not None and hub.get("trust_remote_code"):
            # `from_config` would run the newest code, and remember it for the loading of any
            # other revision.
            asking = {name: value for name, value in hub.items() if name != "trust_remote_code"}
            found = get_class_from_dynamic_module(own, config.name_or_path, **asking)
            return found._from_config(config)
        # Without a word about it, transformers would ask on the terminal.
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _storage(config: Any, dtype: torch.dtype, quantize: str) -> _Storage:
    plain = _Storage(_name(dtype), float(dtype.itemsize))
    given = getattr(config, "quantization_config", None)
    if given is None:
        return _Storage(*PACKED[quantize]) if quantize in PACKED else plain
    given = given if isinstance(given, dict) else given.to_dict()
    method = given.get("quant_method", "quantised")
    method = str(getattr(method, "value", method))  # of a loaded model, it is an enumeration's
    if method.startswith("bitsandbytes") or given.get("load_in_4bit") or given.get("load_in_8bit"):
        return _Storage(*PACKED["4bit" if given.get("load_in_4bit") else "8bit"])
    if given.get("dequantize") or method in _UNPACKED:
        return plain
    told = json.dumps(given, default=str)
    bits = next((int(found[1]) for how in _BITS if (found := re.search(how, told))), None)
    return _Storage(method, bits / 8 if bits else _BYTES.get(method, 1.0), method in _EXPERTS)


def _linear(model: Any) -> int:
    """How many weights quantisation packs: those of linear layers but the last."""
    head = model.get_output_embeddings()
    return sum(
        module.weight.numel()
        for module in model.modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module is not head
    )


def _stacked(model: Any) -> int:
    """How many weights experts have that are stacked in one parameter."""
    named = model.named_parameters()
    return sum(p.numel() for name, p in named if ".experts." in name and p.ndim == 3)


def _latent(text: Any) -> int | None:
    """Numbers in the state that latent attention caches instead of keys and values."""
    rank = getattr(text, "kv_lora_rank", None)
    return rank + text.qk_rope_head_dim if rank else None


def _chosen(text: Any) -> float:
    """The share of the experts that a token meets."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((n for name in names if (n := getattr(text, name, None))), 0)
    chosen = getattr(text, "num_experts_per_tok", None) or experts
    return min(chosen / experts, 1.0) if experts else 1.0


def _kv_heads(text: Any) -> int | None:
    """Heads of keys, where the family lets them be fewer than those of queries."""
    # Any configuration file may hold any key: what counts is whether the family reads it.
    return text.num_key_value_heads if hasattr(type(text)(), "num_key_value_heads") else None


def _inner(text: Any) -> int:
    inner = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None)
    # Some configurations have one for each layer.
    if isinstance(inner, (list, tuple)):
        inner = max(inner)
    return int(inner or 4 * text.hidden_size)
