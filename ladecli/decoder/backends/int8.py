"""Weights of 8 bits on a CPU: products of integers, whose sums do not depend on their order.

A weight has one scale for each output; a row of the input one of its own, so that no row depends
on its neighbours (Yao et al., "ZeroQuant", 2022).  Inputs have outliers that this is too coarse
for: both sides of a product are rotated, block by block, which spreads an outlier over its block
and leaves the product as it is (Ashkboos et al., "QuaRot", 2024).  Without the instructions for it
(VNNI) a processor adds two products in 16 bits, which those of 7 bits cannot overflow: then inputs
have 7, and are multiplied twice instead, by what 7 bits hold of them and by what that leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .compat import MAKES_QUANTISED, quantised_tensor
from .cpu_layouts import Form, Weight, rotated

LIMIT = 127
"""The largest integer of a weight, and of an input of 8 bits."""
LIMIT_OF_7 = 63
"""The largest integer of an input of 7 bits."""
LARGEST_BLOCK = 16
"""Numbers of an input that are rotated together; more of them spread outliers no better."""
LEAST = 1e-30
"""The least scale: a row of zeros has one, too."""
ROWS_AT_ONCE = 1024
"""Rows of a weight that are quantised at once: a head in float32 would need the most memory."""
_ENGINE = "fbgemm"
"""The engine for quantised products that is the fastest for few rows."""


def available() -> bool:
    """Return whether this processor and this torch have products of integers."""
    return MAKES_QUANTISED and _ENGINE in torch.backends.quantized.supported_engines


def has_vnni() -> bool:
    """Return whether this processor multiplies integers of 8 bits without losing any of them."""
    return bool(torch.cpu._is_vnni_supported())


@torch.no_grad()
def quantise(model: Any, dtype: torch.dtype) -> None:
    """Let the linear layers of a model hold 8 bits, one after the other.

    The embedding's rows have 16; all other parameters get a type.
    """
    embedding = model.get_input_embeddings()
    found = [
        (parent, name, module)
        for parent in model.modules()
        for name, module in parent.named_children()
        if type(module) is nn.Linear or (isinstance(module, nn.Embedding) and module is embedding)
    ]
    # The largest first: what packing takes beside a weight is least in the way then.
    found.sort(key=lambda each: each[2].weight.numel())
    while found:
        parent, name, module = found.pop()
        small = Int8Linear(module) if isinstance(module, nn.Linear) else HalfEmbedding(module)
        setattr(parent, name, small)
        del module  # and with it the weight
    for parameter in model.parameters():  # and no buffers: frequencies are exact
        parameter.data = parameter.data.to(dtype)


def holds_int8(model: nn.Module) -> bool:
    """Return whether a model was quantised here."""
    return any(isinstance(module, Int8Linear) for module in model.modules())


def rotation(count: int) -> Tensor:
    """What blocks of an input of a number of features are multiplied with, float32 [b, b]: a
    Hadamard matrix, which is its own inverse; [[1]] where nothing is rotated."""
    size = math.gcd(count, LARGEST_BLOCK) if has_vnni() else 1
    matrix = torch.ones((1, 1))
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix / math.sqrt(size)


def integers(weight: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A weight [out, in], rotated, as int8, and the scales of its rows, float32 [out]."""
    values = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(len(weight))
    for some in _few_rows(len(weight)):
        part = rotated(weight.detach()[some].float(), matrix)
        scales[some] = (part.abs().amax(dim=1) / LIMIT).clamp_min_(LEAST)
        values[some] = (part / scales[some, None]).round_()
    return values, scales


def _few_rows(count: int) -> Iterator[slice]:
    """All rows of a weight, a few at once: they are brought to types of more bits."""
    return (slice(start, start + ROWS_AT_ONCE) for start in range(0, count, ROWS_AT_ONCE))


class Int8Linear(nn.Module):
    """A linear layer.

    Args:
        linear: what it is made of.

    Attributes:
        product: what it multiplies with.
        rows: which outputs of that are its own; see `share_product`.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.product = int8_form(*integers(linear.weight, rotation(linear.in_features)))
        self.rows = slice(linear.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        found = self.product(x.flatten(0, -2), None)[:, self.rows]
        if self.bias is not None:
            found = found + self.bias
        return found.view(*x.shape[:-1], self.out_features)


def share_product(parts: Sequence[Int8Linear]) -> Form:
    """Let layers that read the same input share a product, and return it: [T, in] -> [T, out], the
    outputs of all of them side by side.

    Each of them multiplies with all of it from then on.  For another decoder of the model it is the
    same one: layers share with the same others always, in one order.
    """
    product = parts[0].product
    if any(part.product is not product for part in parts):
        weights = [_unpacked(part.product.weight) for part in parts]
        values, scales = (torch.cat(each) for each in zip(*weights, strict=True))
        product, start = int8_form(values, scales), 0
        for part in parts:
            part.product, part.rows = product, slice(start, start := start + part.out_features)
    return product


class HalfEmbedding(nn.Module):
    """An embedding whose rows have 16 bits, are made plain as they are looked up, and scaled where
    the family (Gemma) has that.

    Args:
        embedding: what it is made of.

    Attributes:
        weight: [vocabulary, n]; no parameter, for these get other types.
        scale: of all rows.
    """

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        weight = embedding.weight.detach()
        kind = weight.dtype if weight.dtype.itemsize == 2 else torch.bfloat16
        # A copy in any case: a part of a file would keep all of it in memory.
        self.weight = weight.to(kind, copy=True)
        self.scale = getattr(embedding, "embed_scale", 1.0)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., n]."""
        return self.weight[ids].float() * self.scale


def int8_form(values: Tensor, scales: Tensor) -> Form:
    """A weight of integers as a CPU multiplies with it.

    Args:
        values: int8 [out, in], rotated.
        scales: float32 [out].
    """
    # The whole process has one, and nothing else in it has quantised products.
    torch.backends.quantized.engine = _ENGINE
    packed = torch.ops.quantized.linear_prepack(quantised_tensor(values, scales), None)
    form, limit = ("integers", LIMIT) if has_vnni() else ("integers twice", LIMIT_OF_7)
    held = Weight(form, rotation(values.shape[1]), packed, limit=limit)
    return Form(held, lambda: _unpacked(held)[0])


def _unpacked(weight: Weight) -> tuple[Tensor, Tensor]:
    """Return the numbers that a weight of integers was made of: `int8_form`'s arguments."""
    values, _ = torch.ops.quantized.linear_unpack(weight.packed)
    return values.int_repr(), values.q_per_channel_scales().float()
