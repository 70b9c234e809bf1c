"""The operations between the products, in torch; `triton_kernels` has fused ones."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention.invariant import one_thread
from .forward import StepCache
from .layer import Layer, Norm, gated, norm_heads, rms_norm
from .rotary import Rotary, rotate


class TorchOps:
    """As every device has them."""

    def rms_norm(self, x: Tensor, norm: Norm | None) -> Tensor:
        """The norm of [T, n]; `x` itself without one."""
        return rms_norm(x, norm)

    def add_rms_norm(self, residual: Tensor, update: Tensor, norm: Norm | None) -> Tensor:
        """Add `update` to `residual` in place, [T, n]; the norm of the sum."""
        return self.rms_norm(residual.add_(update), norm)

    def rope_and_write(
        self, qkv: Tensor, layer: Layer, rotary: Rotary | None, cache: StepCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """QK-norm, rotary embedding, and keys and values into the cache.

        Args:
            qkv: [T, (heads + 2 kv_heads) * head_size].
            layer: whose.
            rotary: of the step; None for a layer without positions.
            cache: where keys and values go.

        Returns:
            Queries [heads, T, head_size], and all keys and values to attend to.
        """
        queries, kv_heads, size = layer.heads
        turned = queries + kv_heads
        heads = norm_heads(qkv, layer.heads, layer.norms).view(len(qkv), -1, size)
        both = heads[:, :turned]
        if rotary is not None:
            both = rotate(both, rotary)
        both = both.transpose(0, 1)
        values = heads[:, turned:].transpose(0, 1)
        query = both[:queries]
        if rotary is not None and rotary.query_scale is not None:
            query = query * rotary.query_scale.transpose(0, 1)
        return query, *cache.write(layer.index, both[queries:], values)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """[T, 2 n] -> [T, n]: the activation of the first half times the second."""
        return gated(gate_up, activation)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """[T, n] -> [T, n] between -cap and cap."""
        return torch.tanh(logits / cap) * cap


class InvariantOps(TorchOps):
    """Operations on a CPU whose rows do not depend on each other; see `attention.invariant`."""

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """See `TorchOps`."""
        # Several threads would share numbers out at any place of a row.
        with one_thread():
            return super().gate(gate_up, activation)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """See `TorchOps`."""
        capped = torch.empty_like(logits)
        with one_thread():
            for row, out in zip(logits, capped, strict=True):
                torch.tanh(row / cap, out=out)
        return capped.mul_(cap)
