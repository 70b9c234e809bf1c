"""A layer's weights and settings, and the operations between its products."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kv_cache import StepCache
from .mask import Rules
from .rotary import Rotary, rotate


class Norm(NamedTuple):
    """A root mean square norm."""

    weight: Tensor
    """[n]; in float32 if the product with it is (Gemma), else in the activations' type."""
    eps: float  # added to the mean square
    # On a CPU, in float32; see `rms_norm`.
    scaled: Tensor | None = None  # √n times the weight
    least: Tensor | None = None  # √(n eps)


class Norms(NamedTuple):
    """The norms of a layer; None for those that the family does not have."""

    query: Norm | None = None
    key: Norm | None = None
    before_attention: Norm | None = None
    after_attention: Norm | None = None
    before_mlp: Norm | None = None
    after_mlp: Norm | None = None


class Heads(NamedTuple):
    """The heads of a layer's attention."""

    queries: int
    keys: int
    size: int


Projection = Callable[[Tensor], Tensor]
"""[T, in] -> [T, out]: the outputs, side by side, of linear modules that read the same input."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights and settings of one layer."""

    index: int
    heads: Heads
    norms: Norms
    attends: Rules
    rotary: str | None  # the kind of rotary embedding; None for a layer without positions
    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    activation: str

    @property
    def products(self) -> tuple[Projection, ...]:
        """The four projections."""
        return self.qkv, self.out, self.gate_up, self.down


def part(x: Tensor, start: int, end: int) -> Tensor:
    """Return `x[:, start:end]` by one call; for that expression, TorchScript makes two slices."""
    sliced: Tensor = torch.ops.aten.slice(x, 1, start, end)
    return sliced


def rms_norm(x: Tensor, norm: Norm | None) -> Tensor:
    """Return the norm of `x`, [..., n]; `x` itself if `norm` is None."""
    if norm is None:
        return x
    scaled, least = norm.scaled, norm.least
    if scaled is not None and least is not None:
        # The weight over the root mean square is √n times the weight over the length of the row.
        # That takes four kernels; `torch.rms_norm` takes six on a CPU, and a dozen in 16 bits.
        wide = x.float()
        length = torch.linalg.vector_norm(wide, 2.0, [-1], True)
        return (wide * scaled).div_(torch.hypot(length, least)).to(x.dtype)
    if norm.weight.dtype != x.dtype:
        return torch.rms_norm(x.float(), norm.weight.shape, norm.weight, norm.eps).to(x.dtype)
    return torch.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)


def norm_heads(qkv: Tensor, heads: Heads, norms: Norms) -> Tensor:
    """Normalise queries and keys, for each head or over all heads at once (OLMo)."""
    query_norm, key_norm = norms.query, norms.key
    if query_norm is None or key_norm is None:
        return qkv
    count, kv_size = qkv.shape[0], heads.keys * heads.size
    query, key, value = torch.split(qkv, [heads.queries * heads.size, kv_size, kv_size], dim=-1)
    query = rms_norm(query.reshape(count, -1, query_norm.weight.shape[0]), query_norm).flatten(1)
    key = rms_norm(key.reshape(count, -1, key_norm.weight.shape[0]), key_norm).flatten(1)
    return torch.cat((query, key, value), dim=-1)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """Return the activation of the first half times the second half: [T, 2 n] -> [T, n]."""
    count = gate_up.shape[-1] // 2
    gate, up = part(gate_up, 0, count), part(gate_up, count, 2 * count)
    gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return gate.mul_(up)


class TorchOps:
    """The operations of a layer in PyTorch, for every device; `backends.triton_ops` has fused
    ones."""

    rms_norm = staticmethod(rms_norm)
    gate = staticmethod(gated)

    def add_rms_norm(self, residual: Tensor, update: Tensor, norm: Norm | None) -> Tensor:
        """Add `update` to `residual` in place, [T, n]; return the norm of the sum."""
        return self.rms_norm(residual.add_(update), norm)

    def rope_and_write(
        self, qkv: Tensor, layer: Layer, rotary: Rotary | None, cache: StepCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply QK-norm and rotary embedding, and write keys and values to the cache.

        Args:
            qkv: [T, (heads + 2 kv_heads) * head_size].
            layer: the layer.
            rotary: the step's rotary embeddings; None for a layer without positions.
            cache: the cache of the step.

        Returns:
            Queries [heads, T, head_size], and all keys and values to attend to.
        """
        queries, kv_heads, size = layer.heads
        heads = norm_heads(qkv, layer.heads, layer.norms).view(len(qkv), -1, size)
        turned = heads[:, : queries + kv_heads]
        if rotary is not None:
            turned = rotate(turned, rotary)
        turned = turned.transpose(0, 1)
        values = heads[:, queries + kv_heads :].transpose(0, 1)
        query = turned[:queries]
        if rotary is not None and rotary.query_scale is not None:
            query = query * rotary.query_scale.transpose(0, 1)
        return query, *cache.write(layer.index, turned[queries:], values)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """Return logits between -cap and cap."""
        return torch.tanh(logits / cap) * cap
