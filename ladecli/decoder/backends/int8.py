"""Weights of 8 bits on a CPU: products of integers, whose sums do not depend on their order.

A weight has one scale per output, and an input one per row, so that no row depends on its
neighbours (Yao et al., "ZeroQuant", 2022).  This is too coarse for outliers of inputs, so both
sides of a product are rotated, block by block, which spreads an outlier over its block and does not
change the product (Ashkboos et al., "QuaRot", 2024).  A processor without VNNI instructions adds
two products in 16 bits, which would overflow with 8-bit inputs.  There an input has two parts of 7
bits, rounded numbers and their remainders, and is multiplied twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from .compat import MAKES_QUANTISED, quantised_tensor
from .cpu_layouts import PIECE_OF_INTEGERS, Form, Weight, rotated
from .stored import Rows, StoredEmbedding, StoredTensor, parts_of

LIMIT = 127
"""The largest integer of a weight, and of an input in 8 bits."""
LIMIT_OF_7 = 63
"""The largest integer of an input in 7 bits."""
LARGEST_BLOCK = 16
"""The most numbers of an input that are rotated together; larger blocks have no benefit."""
LEAST = 1e-30
"""The smallest scale, for rows of zeros."""
AT_ONCE = 1 << 18
"""The numbers of a weight that are quantised at once, few enough for a processor's cache."""
_ENGINE = "fbgemm"
"""The fastest engine for quantised products with few rows."""


def available() -> bool:
    """Return True if this processor and this torch have products of integers."""
    return MAKES_QUANTISED and _ENGINE in torch.backends.quantized.supported_engines


def has_vnni() -> bool:
    """Return True if this processor multiplies 8-bit integers without overflow."""
    return bool(torch.cpu._is_vnni_supported())


@torch.no_grad()
def quantise(model: Any, dtype: torch.dtype, stored: Mapping[str, Rows] | None = None) -> None:
    """Convert the linear layers of a model to 8 bits, several at once.

    The embedding has 16 bits, or keeps its stored form; all other parameters get a type.
    `stored` has weights by name that the model itself lacks.
    """
    rows_of = {model.get_parameter(name): rows for name, rows in (stored or {}).items()}

    def small(module: Any) -> nn.Module:
        weight = rows_of.get(module.weight, module.weight.detach())
        if not isinstance(module, nn.Embedding):
            linear = Int8Linear(module, weight)
            if isinstance(weight, StoredTensor):
                weight.leave_memory()
            return linear
        if isinstance(weight, Tensor):
            kind = weight.dtype if weight.dtype.itemsize == 2 else torch.bfloat16
            # A copy in any case: a part of a file would keep all of it in memory.
            weight = weight.to(kind, copy=True)
        return StoredEmbedding(module, weight)

    # The largest first, while there is the most memory beside them; their weights go one by one.
    parts = parts_of(model)
    names = sorted(parts, key=lambda name: -parts[name].weight.numel())
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        made = pool.map(small, [parts.pop(name) for name in names])
        for name, module in zip(names, made, strict=True):
            model.set_submodule(name, module)
    for parameter in model.parameters():  # and no buffers: frequencies are exact
        parameter.data = parameter.data.to(dtype)


def holds_int8(model: nn.Module) -> bool:
    """Return True if `quantise` has converted a model."""
    return any(isinstance(module, Int8Linear) for module in model.modules())


def rotation(count: int) -> Tensor:
    """Return the rotation of blocks of an input with a number of features, float32 [b, b]: a
    Hadamard matrix, which is its own inverse; [[1]] if nothing is rotated."""
    size = math.gcd(count, LARGEST_BLOCK) if has_vnni() else 1
    matrix = torch.ones((1, 1))
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix / math.sqrt(size)


def integers(weight: Rows, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight [out, in], rotated, as int8, and the scales of its rows, float32 [out]."""
    count, width = weight.shape
    values, scales = torch.empty((count, width), dtype=torch.int8), torch.empty(count)
    step = max(AT_ONCE // width, 1)
    for start in range(0, count, step):
        some = slice(start, start + step)
        part = rotated(weight[some].float(), matrix)
        scales[some] = (part.abs().amax(dim=1) / LIMIT).clamp_min_(LEAST)
        values[some] = (part / scales[some, None]).round_()
    return values, scales


class Int8Linear(nn.Module):
    """A linear layer in 8 bits.

    Args:
        linear: the original layer.
        weight: its weight, if the layer does not have it itself.

    Attributes:
        rows: the outputs of the product that belong to this layer; see `share_product`.
    """

    def __init__(self, linear: nn.Linear, weight: Rows | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        # Only until the product is needed, since most layers share one, which is packed once.
        self._integers: tuple[Tensor, Tensor] | None = integers(
            linear.weight.detach() if weight is None else weight, rotation(linear.in_features)
        )
        self._product: Form | None = None
        self.rows = slice(linear.out_features)

    @property
    def product(self) -> Form:
        """The product, perhaps shared with other layers."""
        if self._product is None:
            self.share(int8_form(*self.integers), 0)
        assert self._product is not None
        return self._product

    @property
    def integers(self) -> tuple[Tensor, Tensor]:
        """The integers and scales of all outputs of the product."""
        return self._integers or _unpacked(self.product.weight)

    def share(self, product: Form, start: int) -> None:
        """Use a product from now on, whose outputs from `start` on belong to this layer."""
        self._product, self._integers = product, None
        self.rows = slice(start, start + self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        product = self.product(x.flatten(0, -2), None)[:, self.rows]
        if self.bias is not None:
            product = product + self.bias
        return product.view(*x.shape[:-1], self.out_features)


def share_product(parts: Sequence[Int8Linear]) -> Form:
    """Let layers that read the same input share a product, and return it: [T, in] -> [T, out], with
    the outputs of all layers side by side.

    Each layer computes the whole product from then on.  Another decoder of the same model gets the
    same product, since a layer always shares with the same others in the same order.
    """
    first = parts[0]._product
    if len(parts) > 1 and (first is None or any(part._product is not first for part in parts)):
        integers = zip(*(part.integers for part in parts), strict=True)
        values, scales = (torch.cat(rows) for rows in integers)
        product, start = int8_form(values, scales), 0
        for part in parts:
            part.share(product, start)
            start += part.out_features
    return parts[0].product


def int8_form(values: Tensor, scales: Tensor) -> Form:
    """Return a weight of integers in the form in which a CPU multiplies it.

    Args:
        values: int8 [out, in], rotated.
        scales: float32 [out].
    """
    # The engine is global to the process, in which nothing else uses quantised products.
    torch.backends.quantized.engine = _ENGINE
    step = PIECE_OF_INTEGERS if len(values) > 4 * PIECE_OF_INTEGERS else len(values)
    pieces = zip(torch.split(values, step), torch.split(scales, step), strict=True)
    packed = [torch.ops.quantized.linear_prepack(quantised_tensor(*one), None) for one in pieces]
    form, limit = ("integers", LIMIT) if has_vnni() else ("integers twice", LIMIT_OF_7)
    weight = Weight(form, rotation(values.shape[1]), packed, limit=limit)
    return Form(weight, lambda: _unpacked(weight)[0])


def _unpacked(weight: Weight) -> tuple[Tensor, Tensor]:
    """Return the arguments of `int8_form` from a weight of integers."""
    pieces = [torch.ops.quantized.linear_unpack(piece)[0] for piece in weight.packed or ()]
    values = torch.cat([piece.int_repr() for piece in pieces])
    return values, torch.cat([piece.q_per_channel_scales() for piece in pieces]).float()
