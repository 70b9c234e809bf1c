"""A layer's weights and settings, and the operations that all its forms share."""

# Annotations are not postponed, as in `products`.

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention.mask import Rules
from .weights import Projection


class Norm(NamedTuple):
    """A root mean square norm."""

    weight: Tensor
    """[n]; in float32 if the product with it is (Gemma), else in the activations' type."""
    eps: float  # added to the mean square
    # In float32 on a CPU, √n times the weight, and √(n eps); see `rms_norm`.
    scaled: Tensor | None = None
    least: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights and settings of one layer; a norm that the family does not have is None."""

    index: int
    heads: int
    kv_heads: int
    head_size: int
    attends: Rules
    rotary: str | None
    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    activation: str
    query_norm: Norm | None
    key_norm: Norm | None
    before_attention: Norm | None
    after_attention: Norm | None
    before_mlp: Norm | None
    after_mlp: Norm | None

    @property
    def products(self) -> tuple[Projection, ...]:
        """All of them."""
        return self.qkv, self.out, self.gate_up, self.down


def rms_norm(x: Tensor, norm: Norm | None) -> Tensor:
    """The norm of [..., n]; `x` itself without one."""
    if norm is None:
        return x
    scaled, least = norm.scaled, norm.least
    if scaled is not None and least is not None:
        # By a row's length, in four kernels; torch takes six for its own on a CPU.
        length = torch.linalg.vector_norm(x, 2.0, [-1], True)
        return (x * scaled).div_(torch.hypot(length, least))
    if norm.weight.dtype != x.dtype:
        return torch.rms_norm(x.float(), norm.weight.shape, norm.weight, norm.eps).to(x.dtype)
    return torch.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """[T, 2 n] -> [T, n]: the activation of the first half times the second."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return gate.mul_(up)
