"""Layers of our own out of a loaded model's modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from ..backends.weights import Projection
from .families import Family, activation, is_ours
from .layer import Heads, Layer, Norm, Norms
from .mask import Rules

MOST_PACKED = 8
"""Layers whose weights are packed at once, each of which takes room beside its weights."""


def can_run(model: Any) -> bool:
    """Whether a model is of a family that `Transformer` is for, whole, and on one device.

    A trial at load has the last word (`trial.Trial`).
    """
    devices = {parameter.device for parameter in model.parameters()}
    hooked = any(hasattr(module, "_hf_hook") for module in model.modules())
    split = (getattr(model, "tp_size", None) or 1) > 1
    ours = is_ours(model.config.get_text_config(decoder=True))
    return ours and len(devices) == 1 and not hooked and not split


def make_layers(
    make: Callable[[int, Any], Layer],
    layers: Any,
    at_once: int,
    on_layer: Callable[[int, int], None] | None = None,
) -> list[Layer]:
    """Layers of ours, several at once: to pack a weight takes ten times as long as to read it.

    `on_layer` is called with the number of layers that are made, and that of all.
    """
    made = list[Layer]()
    with ThreadPoolExecutor(min(torch.get_num_threads(), at_once)) as pool:
        for layer in pool.map(make, range(len(layers)), layers):
            made.append(layer)
            if on_layer is not None:
                on_layer(len(made), len(layers))
    return made


def layer_of(
    text: Any,
    family: Family,
    rotary: Sequence[str],
    projection: Callable[[Sequence[nn.Module]], Projection],
    norm: Callable[[nn.Module], Norm],
    index: int,
    layer: Any,
) -> Layer:
    """One layer of a model."""
    attention, mlp = layer.self_attn, layer.mlp
    fused = hasattr(attention, "qkv_proj")
    qkv = [attention.qkv_proj] if fused else [attention.q_proj, attention.k_proj, attention.v_proj]
    gate_up = [mlp.gate_up_proj] if hasattr(mlp, "gate_up_proj") else [mlp.gate_proj, mlp.up_proj]
    window = getattr(text if family.window_in_config else attention, "sliding_window", None)
    softcap = text.attn_logit_softcapping if family.attention_softcap else None
    act = activation(text)
    assert act is not None  # `can_run` leaves others out
    norms = Norms(
        query=norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key=norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        **{
            name: norm(getattr(layer, module)) if module else None
            for name, module in family.norms._asdict().items()
        },
    )
    return Layer(
        index=index,
        heads=Heads(text.num_attention_heads, text.num_key_value_heads, attention.head_dim),
        norms=norms,
        attends=Rules(float(attention.scaling), window, softcap),
        rotary=rotary[index] if getattr(attention, "use_rope", True) else None,
        qkv=projection(qkv),
        out=projection([attention.o_proj]),
        gate_up=projection(gate_up),
        down=projection([mlp.down_proj]),
        activation=act,
    )


def leave_file(model: nn.Module) -> None:
    """Have copies of all but the weights of linear layers: where these have forms of their own,
    nothing keeps the checkpoint's file in memory then."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name != "weight" or not isinstance(module, nn.Linear):
                parameter.data = parameter.data.clone()


def norm_of(family: Family, dtype: torch.dtype, module: Any) -> Norm:
    """A norm of a model, for activations of a type."""
    eps = getattr(module, "variance_epsilon", None) or module.eps
    weight = module.weight.detach()
    if dtype == torch.float32:
        weight = weight.float()
    if family.unit_offset:
        weight = 1.0 + weight.float()
    if weight.device.type != "cpu":
        return Norm(weight, float(eps))
    root = math.sqrt(weight.numel())
    return Norm(weight, float(eps), root * weight.float(), torch.tensor(root * math.sqrt(eps)))
