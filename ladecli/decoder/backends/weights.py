"""Linear layers as our forward calls them: parts joined into one product, stored for speed.

The query, key and value projections of a layer read the same input, and so do gate and up: each
group becomes one matrix.  The model's own modules keep working on views of it, so that nothing
is held twice; where a CPU needs another form alone, they are without weights until `restore`.
Those of 8 bits go on with the joined product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cpu_layouts import ALIKE, FORMS, SMALL, CpuLinear, Form, alike_forms, choose_form, possible
from .int8 import Int8Linear, share_product

_HELD = "lade_held"
"""Attribute of a weight that was taken: the form that holds it, and which of its rows it is."""
CPU_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights that have forms of their own on a CPU."""
Projection = Callable[[Tensor], Tensor]
"""[T, in] -> [T, out], the outputs of all joined parts side by side."""


def project(
    dtype: torch.dtype,
    parts: Sequence[nn.Module],
    *,
    join: bool,
    pack: bool,
    invariant: bool = False,
    shared: bool = False,
) -> Projection:
    """One projection of linear modules that read the same input.

    Args:
        dtype: of the input of modules that are called.
        parts: in the order of their outputs.
        join: whether plain linear modules may be joined, which leaves them views of one matrix;
            quantised and other modules are always called as they are.
        pack: whether weights on a CPU may be held twice; see `join_plain`.
        invariant: whether a row of the product must not depend on the others, on a CPU.
        shared: whether the weight is that of the embedding, too.
    """
    eight = [part for part in parts if isinstance(part, Int8Linear)]
    if join and len(eight) == len(parts):
        return CpuLinear(share_product(eight), _joined_bias(eight), alike=True)
    if not join or not all(is_plain(part) for part in parts):
        return ModuleCalls(parts, dtype)
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    first = linear[0].weight
    if first.device.type == "cpu" and first.dtype in CPU_TYPES:
        return join_plain(linear, pack=pack, shared=shared, invariant=invariant)
    joined = _joined_weight(linear)
    if len(linear) > 1:
        _hand_back(linear, joined)
    return partial(F.linear, weight=joined, bias=_joined_bias(linear))


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a linear layer in floating point, and no packed one."""
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and module.weight.is_floating_point()
        and "forward" not in vars(module)  # compressed-tensors puts its own there
    )


class ModuleCalls:
    """Calls modules one by one: quantised ones, and those of a model that must stay as it is.

    `dtype` is what they take.
    """

    def __init__(self, parts: Sequence[nn.Module], dtype: torch.dtype) -> None:
        self._parts, self._dtype = list(parts), dtype

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        given = x.to(self._dtype)
        found = [part(given) for part in self._parts]
        return (found[0] if len(found) == 1 else torch.cat(found, dim=-1)).to(x.dtype)


def join_plain(
    parts: Sequence[nn.Linear], *, pack: bool, shared: bool, invariant: bool = False
) -> CpuLinear:
    """One product of plain weights on a CPU.

    If its form is not what the modules can use, the weight leaves them until `restore` is called,
    so that it is held once.

    Args:
        parts: joined.
        pack: whether there is room to hold weights twice.
        shared: whether the weight is that of the embedding, too, which stays as it is.
        invariant: whether rows are to be alike, where a form has that.
    """
    weight = _joined_weight(parts)
    name = "rows"
    alike = alike_forms(weight) if invariant else []
    if alike or (weight.numel() >= SMALL and (pack or not shared)):
        name = choose_form(weight.dtype, alike or possible(weight))
    form = (ALIKE if alike else FORMS)[name](weight)
    if name == "rows" and not shared:
        _hand_back(parts, weight)
    elif not shared:
        _take(parts, form)
    return CpuLinear(form, _joined_bias(parts), bool(alike))


def _take(parts: Sequence[nn.Linear], form: Form) -> None:
    """Take their weights from modules, which are rows of a form."""
    start = 0
    for part in parts:
        rows = slice(start, start := start + part.out_features)
        _give(part, part.weight.new_empty(0))
        setattr(part.weight, _HELD, (form, rows))


def _give(module: Any, weight: Tensor) -> None:
    module.weight = nn.Parameter(weight, requires_grad=False)


def restore(model: nn.Module) -> None:
    """Let the modules of a model have the weights again that were taken."""
    for module in model.modules():
        if held := getattr(getattr(module, "weight", None), _HELD, None):
            form, rows = held
            _give(module, form.dense()[rows])


def _joined_weight(parts: Sequence[nn.Linear]) -> Tensor:
    """The weights above one another; that of a single part as it is."""
    weights = [part.weight.detach() for part in parts]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _joined_bias(parts: Sequence[nn.Linear | Int8Linear]) -> Tensor | None:
    """The biases side by side; None for parts without them."""
    biases = [part.bias.detach() for part in parts if part.bias is not None]
    return torch.cat(biases) if biases else None


def _hand_back(parts: Sequence[nn.Linear], joined: Tensor) -> None:
    """Let modules use views of the joined matrix, so that their own weights are freed."""
    weights = torch.split(joined, [part.out_features for part in parts])
    for part, weight in zip(parts, weights, strict=True):
        _give(part, weight)
