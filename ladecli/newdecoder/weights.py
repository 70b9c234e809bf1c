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
PACKED_ROWS = 3
"""Rows from which on the packed copy is faster than the transposed matrix."""
PACKING_HINT = 8
"""Rows of the steps that oneDNN packs a weight for; it works for any."""


def project(parts: Sequence[nn.Module], *, join: bool, pack: bool) -> Projection:
    """One projection of linear modules that read the same input.

    Args:
        parts: in the order of their outputs.
        join: whether plain linear modules may be joined, which leaves them views of one matrix;
            quantised and other modules are always called as they are.
        pack: whether float32 weights on a CPU may be stored twice; see `TransposedLinear`.
    """
    if not join or not all(is_plain(part) for part in parts):
        return ModuleCalls(parts)
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    weight = linear[0].weight
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    return TransposedLinear(linear, pack=pack) if on_cpu else JoinedLinear(linear)


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
            _hand_back(parts, self._weight.split([part.out_features for part in parts]))
        self._bias = joined_bias(parts)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        return F.linear(x, self._weight, self._bias)


class TransposedLinear:
    """For float32 on a CPU: the transposed matrix [in, out], of which the modules keep columns.

    One row times a transposed matrix reads memory faster than one times the matrix itself; for
    more rows oneDNN's own packed form is faster still, so where memory allows there is a packed
    copy for them.  A step of 4 rows then costs what one of a single row does.
    """

    def __init__(self, parts: Sequence[nn.Linear], *, pack: bool) -> None:
        weight = torch.cat([part.weight.detach() for part in parts])
        self._packed: Tensor | None = None
        if pack and weight.numel() >= PACKED_FROM and torch.backends.mkldnn.is_available():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_HINT)
        self._transposed = weight.t().contiguous()
        del weight
        columns = self._transposed.split([part.out_features for part in parts], dim=1)
        _hand_back(parts, [part.t() for part in columns])
        self._bias = joined_bias(parts)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        if self._packed is not None and len(x) >= PACKED_ROWS:
            return torch.ops.mkldnn._linear_pointwise(  # type: ignore[no-any-return]
                x, self._packed, self._bias, "none", [], ""
            )
        if self._bias is None:
            return x @ self._transposed
        return torch.addmm(self._bias, x, self._transposed)


def joined_bias(parts: Sequence[nn.Linear]) -> Tensor | None:
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
