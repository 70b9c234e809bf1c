"""The operations between a layer's products by Triton kernels; importing this needs triton.

What the kernels do not cover is left to `TorchOps`: layers without a norm or without positions,
norms over all heads at once, and queries that grow with their position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import triton_kernels as kernels
from .families import FAMILIES
from .transformer import ACTIVATIONS, Layer, Norm, Rotary, StepCache, TorchOps


class TritonOps(TorchOps):
    """As `TorchOps`, in fewer kernels."""

    def rms_norm(self, x: Tensor, norm: Norm | None) -> Tensor:
        """See `TorchOps`."""
        if norm is None:
            return x
        rows = x.reshape(-1, x.shape[-1])
        return kernels.rms_norm(rows, norm.weight, norm.eps, _in_float(norm, x)).view(x.shape)

    def add_rms_norm(self, residual: Tensor, update: Tensor, norm: Norm | None) -> Tensor:
        """See `TorchOps`."""
        if norm is None:
            return super().add_rms_norm(residual, update, norm)
        in_float = _in_float(norm, residual)
        return kernels.add_rms_norm(residual, update, norm.weight, norm.eps, in_float)

    def rope_and_write(
        self, qkv: Tensor, layer: Layer, rotary: Rotary | None, cache: StepCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `TorchOps`."""
        if rotary is None:
            return super().rope_and_write(qkv, layer, rotary, cache)
        query_norm, key_norm = layer.query_norm, layer.key_norm
        if query_norm is None or key_norm is None:
            query_norm = key_norm = None
        elif query_norm.weight.numel() != layer.head_size:
            qkv, query_norm, key_norm = self._normed(qkv, layer), None, None
        target = cache.target(layer.index, len(qkv))
        query = kernels.rope_and_write(
            qkv,
            rotary.cos,
            rotary.sin,
            layer.heads,
            layer.kv_heads,
            layer.head_size,
            query_norm.weight if query_norm else None,
            key_norm.weight if key_norm else None,
            query_norm.eps if query_norm else 0.0,
            rotary.interleaved,
            target.keys,
            target.values,
            target.start,
            query_norm is not None and _in_float(query_norm, qkv),
        )
        if rotary.query_scale is not None:
            query = query * rotary.query_scale
        keys, values = target.keys[:, : target.end], target.values[:, : target.end]
        return query.transpose(0, 1), keys, values

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """See `TorchOps`."""
        return kernels.gate(gate_up, activation)


def _in_float(norm: Norm, x: Tensor) -> bool:
    """Whether the product with a norm's weight is in float32."""
    return norm.weight.dtype != x.dtype


def prepare(model: Any, device: torch.device, widths: Sequence[int], slots: int) -> None:
    """Compile what steps of a model will launch, in parallel threads.

    Args:
        model: of a family in `FAMILIES`; its weights need not be there yet.
        device: where it will run.
        widths: tokens of the steps.
        slots: of the cache.

    Raises:
        Exception: whatever Triton raises.
    """
    # Attention by Triton is for half precision.
    half = model.dtype in (torch.float16, torch.bfloat16)
    kernels.prepare(kernel_shape(model), device, widths if half else (), slots)


def kernel_shape(model: Any) -> kernels.KernelShape:
    """What the kernels of a model are compiled for."""
    text = model.config.get_text_config(decoder=True)
    family = FAMILIES[text.model_type]
    attention = model.get_decoder().layers[0].self_attn
    parameters = getattr(text, "rope_parameters", None) or {}
    size: int = attention.head_dim
    norm = getattr(attention, "q_norm", None)
    activation = getattr(text, "hidden_act", None) or getattr(text, "hidden_activation", None)
    return kernels.KernelShape(
        dtype=model.dtype,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        vocabulary=text.vocab_size,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_size=size,
        rotary=int(size * parameters.get("partial_rotary_factor", 1.0)),
        float_weight=family.unit_offset,
        qk_norm=norm is not None and norm.weight.numel() == size,
        interleaved=family.interleaved,
        activation=ACTIVATIONS[str(activation)],
        softcap=text.attn_logit_softcapping if family.attention_softcap else None,
        sliding_window=getattr(text, "sliding_window", None) if family.sliding else None,
        best=(),
    )
