"""Products of one input with several matrices, as one product with all of them.

The weights of the layers become views of one tensor, so they take no more memory than before,
and keep their names and values.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory import attempt

QUERY_KEY_VALUE = ("q_proj", "k_proj", "v_proj")
Forward = tuple[nn.Module, Any]
"""A module, and what its `forward` shall be."""


class Joined:
    """Several linear layers of one input, computed at the call of the first.

    What the others shall return is kept until they are asked, with the same input, or until that
    input is gone.  Asked with another input, or out of order, a layer computes its own part.

    Args:
        layers: those for which `may_join` is true.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = layers
        self._sizes = [layer.out_features for layer in layers]
        self._kept: tuple[weakref.ref[Tensor], tuple[Tensor, ...]] | None = None
        self._weights: tuple[Tensor, Tensor | None] | None = self._join()

    def __deepcopy__(self, memo: dict[int, Any]) -> Joined:
        # Copied parameters are no views any more, and are not there yet.
        memo[id(self)] = other = copy.copy(self)
        other._kept = other._weights = None
        other._layers = copy.deepcopy(self._layers, memo)
        return other

    def _join(self) -> tuple[Tensor, Tensor | None]:
        biases = [layer.bias for layer in self._layers]
        weight = join([layer.weight for layer in self._layers])
        return weight, None if biases[0] is None else join(biases)

    def product(self, x: Tensor) -> Tensor:
        """The outputs of all layers for `x` [..., in], one behind the other."""
        if self._weights is None:
            with torch.inference_mode(False):
                self._weights = self._join()
        return F.linear(x, *self._weights)

    def first(self, x: Tensor) -> Tensor:
        """The first layer's output for `x` [..., in]."""
        if torch.compiler.is_compiling():
            # A compiled forward cannot look at what an earlier call has left here.
            return F.linear(x, self._layers[0].weight, self._layers[0].bias)
        parts = torch.split(self.product(x), self._sizes, dim=-1)
        self._kept = weakref.ref(x, self._forget), parts
        return parts[0]

    def take(self, index: int, x: Tensor) -> Tensor | None:
        """The output of layer `index`, if it was computed together with the first one's."""
        kept = None if torch.compiler.is_compiling() else self._kept
        # Identity, not equality: and another thread may have put its own in between.
        if kept is None or kept[0]() is not x:
            return None
        if index == len(kept[1]) - 1:
            self._kept = None
        return kept[1][index]

    def _forget(self, gone: weakref.ref[Tensor]) -> None:
        kept = self._kept
        if kept is not None and kept[0] is gone:
            self._kept = None


class _Later:
    """A layer that is computed together with an earlier one."""

    def __init__(self, joined: Joined, index: int, layer: nn.Linear) -> None:
        self._joined, self._index, self._layer = joined, index, layer

    def forward(self, x: Tensor) -> Tensor:
        out = self._joined.take(self._index, x)
        return F.linear(x, self._layer.weight, self._layer.bias) if out is None else out


def joined_products(model: nn.Module) -> Iterator[Forward]:
    """Forwards that compute queries, keys and values in one product, where a model has layers
    of the usual names for them and memory allows."""
    shared = shared_parameters(model)
    for module in model.modules():
        layers: list[Any] = [getattr(module, name, None) for name in QUERY_KEY_VALUE]
        if not may_join(layers, shared):
            continue
        joined = attempt(Joined, layers)
        if joined is None:
            return
        give_back(layers[0].weight.device)
        yield layers[0], joined.first
        for index, layer in enumerate(layers[1:], start=1):
            yield layer, _Later(joined, index, layer).forward


def shared_parameters(model: nn.Module) -> frozenset[int]:
    """Ids of parameters that several modules of the model have in common."""
    seen: set[int] = set()
    twice: set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            (twice if id(parameter) in seen else seen).add(id(parameter))
    return frozenset(twice)


def may_join(layers: Sequence[Any], shared: Iterable[int] = ()) -> bool:
    """Whether these are plain linear layers of one input that nobody else has a hand in.

    Not so: layers with hooks, of quantised, distributed, absent or shared weights, and those of
    which some have a bias and others have none.
    """
    return (
        all(type(layer) is nn.Linear and _untouched(layer) for layer in layers)
        and len({layer.in_features for layer in layers}) == 1
        and len({layer.bias is None for layer in layers}) == 1
        and all(_plain(p, shared) for layer in layers for p in layer.parameters())
        and len({(p.dtype, p.device) for layer in layers for p in layer.parameters()}) == 1
    )


def _untouched(layer: nn.Module) -> bool:
    hooks = (layer._forward_hooks, layer._forward_pre_hooks)
    return not any(hooks) and "forward" not in vars(layer)


def _plain(parameter: nn.Parameter, shared: Iterable[int]) -> bool:
    return (
        type(parameter) is nn.Parameter
        and type(parameter.data) is Tensor
        and parameter.is_floating_point()
        and parameter.device.type != "meta"
        and parameter.is_contiguous()
        and not parameter.is_inference()
        and id(parameter) not in shared
    )


@torch.no_grad()
def join(parameters: Sequence[Tensor]) -> Tensor:
    """The rows of all parameters in one tensor, of which each becomes a view."""
    first, rows = parameters[0].detach(), [len(parameter) for parameter in parameters]
    end, storage = first.storage_offset(), first.untyped_storage()
    for parameter in parameters:
        if parameter.untyped_storage().data_ptr() != storage.data_ptr():
            break
        if parameter.storage_offset() != end:
            break
        end += parameter.numel()
    else:
        # They were joined before.
        return first.as_strided((sum(rows), *first.shape[1:]), first.stride())
    joint = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(joint, rows), strict=True):
        parameter.data = part
    return joint


def give_back(device: torch.device) -> None:
    """Let the driver have what joining has freed: no later tensor has the size of the parts."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
