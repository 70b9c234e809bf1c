"""The gated block of a layer, `down(act(gate(x)) * up(x))`, in as few operations as there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory import attempt
from . import fused
from .joined import Forward, Joined, give_back, may_join, shared_parameters
from .trial import agree, numbers, works_alone

Activation = Callable[[Tensor], Tensor]
_Found = tuple[list[nn.Linear], Activation, nn.Module]


class _Block(Protocol):
    """What stands for a gated block."""

    def __init__(self, layers: Sequence[nn.Linear], act: Activation, down: nn.Module) -> None: ...

    def forward(self, x: Tensor) -> Tensor: ...


class _Apart:
    """Two products, and no more than the operations between them."""

    def __init__(self, layers: Sequence[nn.Linear], act: Activation, down: nn.Module) -> None:
        self._gate, self._up = layers
        self._act, self._down = act, down

    def forward(self, x: Tensor) -> Tensor:
        gate = F.linear(x, self._gate.weight, self._gate.bias)
        up = F.linear(x, self._up.weight, self._up.bias)
        out: Tensor = self._down(self._act(gate).mul_(up))
        return out


class _Together:
    """One product for gate and up."""

    def __init__(self, layers: Sequence[nn.Linear], act: Activation, down: nn.Module) -> None:
        self._joined = Joined(layers)
        self._act, self._down = act, down

    def forward(self, x: Tensor) -> Tensor:
        both = self._joined.product(x)
        gate, up = both.chunk(2, dim=-1)
        out: Tensor = self._down(self._act(gate).mul_(up))
        return out


class _Fused(_Together):
    """One product for gate and up, and one kernel for what comes between it and `down`."""

    gelu = False

    def forward(self, x: Tensor) -> Tensor:
        both = self._joined.product(x)
        if not fused.may_gate(both):
            gate, up = both.chunk(2, dim=-1)
            both = self._act(gate).mul_(up)
        else:
            both = fused.gate(both, gelu=self.gelu)
        out: Tensor = self._down(both)
        return out


class _FusedGelu(_Fused):
    """The same with another activation."""

    gelu = True


class _Merged:
    """One kernel between a product that is one for gate and up from the start, and `down`."""

    def __init__(self, module: nn.Module, both: nn.Module, down: nn.Module, gelu: bool) -> None:
        self._module, self._own = module, type(module).forward
        self._both, self._down, self._gelu = both, down, gelu

    def forward(self, x: Tensor) -> Any:
        if torch.compiler.is_compiling():
            return self._own(self._module, x)
        both = self._both(x)
        if not fused.may_gate(both):
            return self._own(self._module, x)
        return self._down(fused.gate(both, gelu=self._gelu))


def lean_gates(model: nn.Module, join: bool, kernels: bool) -> Iterator[Forward]:
    """Forwards for gated blocks, where a trial shows that they are such.

    Args:
        model: any model.
        join: whether to compute gate and up in one product, as far as memory allows.
        kernels: whether Triton's may be used.
    """
    shared = shared_parameters(model)
    forms = _forms(join, kernels)
    # Blocks of one kind do the same: one of them is tried.
    chosen: dict[tuple[type, type], type[_Block] | None] = {}
    for module in model.modules():
        found = _parts_of(module, shared)
        if found is None:
            merged = _merged(module) if kernels else None
            if merged is not None:
                yield module, merged.forward
            continue
        kind = type(module), type(found[1])
        if kind not in chosen:
            chosen[kind] = _first_alike(forms, module, found)
        form = chosen[kind]
        if form is not None:
            block = _made(form, found) or _Apart(*found)
            give_back(found[0][0].weight.device)
            yield module, block.forward


def _merged(module: nn.Module) -> _Merged | None:
    """What stands for a block whose gate and up are one layer, where a trial shows that it is
    one."""
    both, down = (getattr(module, name, None) for name in ("gate_up_proj", "down_proj"))
    if "forward" in vars(module) or not isinstance(both, nn.Module):
        return None
    weight = getattr(both, "weight", None)
    if not isinstance(down, nn.Module) or not isinstance(weight, Tensor):
        return None
    if not works_alone(module):
        return None
    if weight.ndim != 2 or not fused.available(weight.device):
        return None
    x = numbers(weight, 1, 3, weight.shape[1])
    ways = (_Merged(module, both, down, gelu) for gelu in (False, True))
    return next((way for way in ways if agree(module.forward, way.forward, x)), None)


def _parts_of(module: nn.Module, shared: Iterable[int]) -> _Found | None:
    """The layers gate and up, the activation and the layer down, where a module has them."""
    layers: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj")]
    act, down = getattr(module, "act_fn", None), getattr(module, "down_proj", None)
    if "forward" in vars(module) or not may_join(layers, shared):
        return None
    if not callable(act) or not isinstance(down, nn.Module):
        return None
    return (layers, act, down) if len({layer.out_features for layer in layers}) == 1 else None


def _first_alike(
    forms: Sequence[type[_Block]], module: nn.Module, found: _Found
) -> type[_Block] | None:
    """The first form that does what a module does."""
    weight = found[0][0].weight
    x = numbers(weight, 1, 3, weight.shape[1])
    for form in forms:
        block = _made(form, found)
        if block is not None and agree(module.forward, block.forward, x):
            return form
    return None


def _made(form: type[_Block], found: _Found) -> _Block | None:
    """A block of this form; None where there is no memory, or no kernel, for it."""
    if issubclass(form, _Fused) and not fused.available(found[0][0].weight.device):
        return None
    return attempt(lambda: form(*found))


def _forms(join: bool, kernels: bool) -> list[type[_Block]]:
    """What may be tried, the best first."""
    if not join:
        return [_Apart]
    return [_Fused, _FusedGelu, _Together] if kernels else [_Together]
