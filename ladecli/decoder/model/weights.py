"""Linear layers as our forward calls them: parts joined into one product, stored for speed.

The query, key and value projections of a layer read the same input, and so do gate and up: each
group becomes one matrix.  The model's own modules keep working on views of it, so that nothing
is held twice and transformers' `generate` runs on the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Projection = Callable[[Tensor], Tensor]
"""[T, in] -> [T, out], the outputs of all joined parts side by side."""

PACKED_FROM = 1 << 16
"""Numbers in a matrix from which on a packed copy pays; below, the call itself costs more."""
PACKED_ROWS = 4
"""Fewer rows than these are padded: with 2 or 3 oneDNN takes half as long again."""
PACKING_HINT = 8
"""Rows of the steps that oneDNN packs a weight for; it works for any."""
MKLDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether torch has oneDNN."""


def project(
    parts: Sequence[nn.Module], *, join: bool, pack: bool, shared: bool = False
) -> Projection:
    """One projection of linear modules that read the same input.

    Args:
        parts: in the order of their outputs.
        join: whether plain linear modules may be joined, which leaves them views of one matrix;
            quantised and other modules are always called as they are.
        pack: whether float32 weights on a CPU may be stored twice; see `CpuLinear`.
        shared: whether the weight is that of the embedding, too.
    """
    if not join or not all(is_plain(part) for part in parts):
        return ModuleCalls(parts)
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    weight = linear[0].weight
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    return CpuLinear(linear, pack=pack, shared=shared) if on_cpu else JoinedLinear(linear)


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a linear layer in floating point that nothing else has a hand in."""
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and module.weight.is_floating_point()
        and module.weight.device.type != "meta"
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not hasattr(module, "_hf_hook")
    )


class ModuleCalls:
    """Calls modules one by one: quantised ones, and those of a model that must stay as it is."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        self._parts = list(parts)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        if len(self._parts) == 1:
            return self._parts[0](x)  # type: ignore[no-any-return]
        return torch.cat([part(x) for part in self._parts], dim=-1)


class JoinedLinear:
    """One matrix [out, in], of which the modules keep rows."""

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        self._weight = parts[0].weight.detach()
        if len(parts) > 1:
            self._weight = torch.cat([part.weight.detach() for part in parts])
            _hand_back(parts, torch.split(self._weight, [part.out_features for part in parts]))
        self._bias = _joined_bias(parts)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        return F.linear(x, self._weight, self._bias)


class CpuLinear:
    """For float32 on a CPU: one matrix for single rows, and a packed copy for more.

    A single row reads memory fastest along the longer side of the matrix, so one with more
    outputs than inputs is stored transposed.  For more rows oneDNN's packed form is fastest, and
    a step of 4 rows costs what one of a single row does.

    Args:
        parts: joined.
        pack: whether there is room for copies.
        shared: whether the weight is that of the embedding, too, which stays as it is.
    """

    def __init__(self, parts: Sequence[nn.Linear], *, pack: bool, shared: bool) -> None:
        weight = parts[0].weight.detach()
        if len(parts) > 1:
            weight = torch.cat([part.weight.detach() for part in parts])
        sizes = [part.out_features for part in parts]
        self._packed: Tensor | None = None
        if pack and weight.numel() >= PACKED_FROM and MKLDNN:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_HINT)
        if weight.shape[0] > weight.shape[1] and (pack or not shared):
            columns = weight.t().contiguous()
            if not shared:
                _hand_back(parts, [part.t() for part in torch.split(columns, sizes, dim=1)])
            weight = columns.t()
        elif len(parts) > 1:
            _hand_back(parts, torch.split(weight, sizes))
        self._weight = weight
        self._bias = _joined_bias(parts)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        rows = x.shape[0]
        if self._packed is None or rows == 1:
            return F.linear(x, self._weight, self._bias)
        if rows < PACKED_ROWS:
            x = F.pad(x, (0, 0, 0, PACKED_ROWS - rows))
        product = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return product[:rows]  # type: ignore[no-any-return]


def _joined_bias(parts: Sequence[nn.Linear]) -> Tensor | None:
    """The biases side by side, zeros for parts without one; None where no part has one."""
    if all(part.bias is None for part in parts):
        return None
    return torch.cat(
        [
            part.weight.new_zeros(part.out_features) if part.bias is None else part.bias.detach()
            for part in parts
        ]
    )


def _hand_back(parts: Sequence[nn.Linear], weights: Sequence[Tensor]) -> None:
    """Let modules use views of the joined matrix, so that their own weights are freed."""
    for part, weight in zip(parts, weights, strict=True):
        part.weight = nn.Parameter(weight, requires_grad=False)
