"""Make `Layer`s from the modules of a loaded model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .families import Family, activation, is_ours
from .layer import Heads, Layer, Norm, Norms, Projection
from .mask import Rules


class ModuleCalls:
    """A `Projection` that calls the model's own modules, one after the other."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = list(modules)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Projection`."""
        products = [module(x) for module in self._modules]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1)


def can_run(model: Any) -> bool:
    """Return whether `Transformer` may run a model: its family is in `FAMILIES`, and the whole of
    it is on one device.  `backends.trial` checks the result.
    """
    devices = {parameter.device for parameter in model.parameters()}
    hooked = any(hasattr(module, "_hf_hook") for module in model.modules())
    split = (getattr(model, "tp_size", None) or 1) > 1
    ours = is_ours(model.config.get_text_config(decoder=True))
    return ours and len(devices) == 1 and not hooked and not split


def layer_of(
    text: Any,
    family: Family,
    rotary: Sequence[str],
    projection: Callable[[Sequence[nn.Module]], Projection],
    norm: Callable[[nn.Module], Norm],
    index: int,
    layer: Any,
) -> Layer:
    """Make one layer.

    Args:
        text: the configuration of the text model.
        family: the properties of the family.
        rotary: the kind of rotary embedding of every layer.
        projection: makes one product of linear modules that read the same input.
        norm: makes a norm of a module.
        index: the index of the layer.
        layer: its module.
    """
    attention, mlp = layer.self_attn, layer.mlp
    fused = hasattr(attention, "qkv_proj")
    qkv = [attention.qkv_proj] if fused else [attention.q_proj, attention.k_proj, attention.v_proj]
    gate_up = [mlp.gate_up_proj] if hasattr(mlp, "gate_up_proj") else [mlp.gate_proj, mlp.up_proj]
    window = getattr(text if family.window_in_config else attention, "sliding_window", None)
    softcap = text.attn_logit_softcapping if family.attention_softcap else None
    act = activation(text)
    assert act is not None  # `can_run` refuses other models
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


def norm_of(family: Family, dtype: torch.dtype, module: Any) -> Norm:
    """Make a norm of a module, for activations of type `dtype`."""
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
