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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from .compat import MAKES_QUANTISED, quantised_tensor
from .cpu_layouts import PIECE_OF_INTEGERS, Form, Weight, rotated
from .stored import Rows, StoredEmbedding, StoredTensor, parts_of

LIMIT = 127
"""The largest integer of a weight, and of an input of 8 bits."""
LIMIT_OF_7 = 63
"""The largest integer of an input of 7 bits."""
LARGEST_BLOCK = 16
"""Numbers of an input that are rotated together; more of them spread outliers no better."""
LEAST = 1e-30
"""The least scale: a row of zeros has one, too."""
AT_ONCE = 1 << 18
"""Numbers of a weight that are quantised at once: they stay in a processor's cache."""
_ENGINE = "fbgemm"
"""The engine for quantised products that is the fastest for few rows."""


def available() -> bool:
    """Return whether this processor and this torch have products of integers."""
    return MAKES_QUANTISED and _ENGINE in torch.backends.quantized.supported_engines


def has_vnni() -> bool:
    """Return whether this processor multiplies integers of 8 bits without losing any of them."""
    return bool(torch.cpu._is_vnni_supported())


@torch.no_grad()
def quantise(model: Any, dtype: torch.dtype, stored: Mapping[str, Rows] | None = None) -> None:
    """Let the linear layers of a model hold 8 bits, several at once.

    The embedding's rows have 16, or stay as they are stored; all other parameters get a type.
    `stored` are weights by name that the model itself does not have.
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


def integers(weight: Rows, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A weight [out, in], rotated, as int8, and the scales of its rows, float32 [out]."""
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
    """A linear layer.

    Args:
        linear: what it is made of.
        weight: that of the layer, if it does not have it itself.

    Attributes:
        rows: which outputs of its product are its own; see `share_product`.
    """

    def __init__(self, linear: nn.Linear, weight: Rows | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        # Until the product is needed: most layers share one, which is packed once.
        self._integers: tuple[Tensor, Tensor] | None = integers(
            linear.weight.detach() if weight is None else weight, rotation(linear.in_features)
        )
        self._product: Form | None = None
        self.rows = slice(linear.out_features)

    @property
    def product(self) -> Form:
        """What it multiplies with."""
        if self._product is None:
            self.share(int8_form(*self.integers), 0)
        assert self._product is not None
        return self._product

    @property
    def integers(self) -> tuple[Tensor, Tensor]:
        """The integers and scales of all outputs of the product."""
        return self._integers or _unpacked(self.product.weight)

    def share(self, product: Form, start: int) -> None:
        """Multiply with a product from now on, whose outputs from `start` on are its own."""
        self._product, self._integers = product, None
        self.rows = slice(start, start + self.out_features)

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
    first = parts[0]._product
    if len(parts) > 1 and (first is None or any(part._product is not first for part in parts)):
        held = zip(*(part.integers for part in parts), strict=True)
        values, scales = (torch.cat(rows) for rows in held)
        product, start = int8_form(values, scales), 0
        for part in parts:
            part.share(product, start)
            start += part.out_features
    return parts[0].product


def int8_form(values: Tensor, scales: Tensor) -> Form:
    """A weight of integers as a CPU multiplies with it.

    Args:
        values: int8 [out, in], rotated.
        scales: float32 [out].
    """
    # The whole process has one, and nothing else in it has quantised products.
    torch.backends.quantized.engine = _ENGINE
    step = PIECE_OF_INTEGERS if len(values) > 4 * PIECE_OF_INTEGERS else len(values)
    pieces = zip(torch.split(values, step), torch.split(scales, step), strict=True)
    packed = [torch.ops.quantized.linear_prepack(quantised_tensor(*one), None) for one in pieces]
    form, limit = ("integers", LIMIT) if has_vnni() else ("integers twice", LIMIT_OF_7)
    held = Weight(form, rotation(values.shape[1]), packed, limit=limit)
    return Form(held, lambda: _unpacked(held)[0])


def _unpacked(weight: Weight) -> tuple[Tensor, Tensor]:
    """Return the numbers that a weight of integers was made of: `int8_form`'s arguments."""
    pieces = [torch.ops.quantized.linear_unpack(piece)[0] for piece in weight.packed or ()]
    values = torch.cat([piece.int_repr() for piece in pieces])
    return values, torch.cat([piece.q_per_channel_scales() for piece in pieces]).float()
