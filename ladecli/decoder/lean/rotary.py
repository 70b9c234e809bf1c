"""Rotary position embedding of queries and keys in one kernel instead of ten.

transformers calls a function of the family's module for it, by a global name.  An attention
module gets a copy of its class's forward in which that name means something else, so neither
the family's module nor its classes change.

What comes next is that keys and values are written to the cache.  Values are on no way through
that function, but as a rule they lie behind the keys, in the output of one product.  Where the
cache has room whose place is fixed, the kernel copies both; the cache sees by the addresses
whether that was what it is given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from . import fused, slots
from .joined import Forward
from .trial import ROUNDING, agree, numbers

NAME = "apply_rotary_pos_emb"
Rotary = Callable[..., Any]


class Roomy(Protocol):
    """A cache that can be written to by others."""

    def room(self, layer_idx: int) -> fused.Room:
        """Where keys and values of a step go in one of the layers."""

    def wrote(self, layer_idx: int, key: Tensor, value: Tensor) -> None:
        """These tensors are there already; they may not be what the layer is going to say."""


class _Turn:
    """A rotary embedding by one kernel, wherever that takes its inputs.

    Args:
        own: what it stands for.
        writes: whether the kernel may write to caches.
    """

    def __init__(self, own: Rotary, writes: bool) -> None:
        self._own, self._writes = own, writes
        # Several threads may be in the same layer.
        self._here = threading.local()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Turn:
        return self

    def run(self, forward: Rotary, cache: Any, layer: int, *args: Any, **kwargs: Any) -> Any:
        """Attention of a layer whose keys go to a cache, which is one like `Roomy`."""
        self._here.cache = cache, layer
        try:
            return forward(*args, **kwargs)
        finally:
            self._here.cache = None

    def __call__(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if args or kwargs or not fused.may_rotate(q, k, cos, sin):
            return self._own(q, k, cos, sin, *args, **kwargs)
        into = getattr(self._here, "cache", None) if self._writes else None
        if into is not None:
            cache: Roomy
            cache, layer = into
            room = cache.room(layer)
            value = slots.values_behind(k, room)
            if value is not None:
                query, key = fused.rotate(q, k, cos, sin, room)
                cache.wrote(layer, key, value)
                return query, key
        return fused.rotate(q, k, cos, sin)


class _Turned:
    """An attention module's forward with another rotary embedding in it."""

    def __init__(self, module: nn.Module, lean: FunctionType, turn: _Turn) -> None:
        self._module, self._lean, self._own = module, lean, type(module).forward
        self._turn = turn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        # torch.compile looks a name up in the module where the code was written.
        if torch.compiler.is_compiling():
            return self._own(module, *args, **kwargs)
        cache = kwargs.get("past_key_values")
        layer = getattr(module, "layer_idx", None)
        if layer is None or not hasattr(cache, "room"):
            return self._lean(module, *args, **kwargs)
        return self._turn.run(self._lean, cache, layer, module, *args, **kwargs)


def lean_rotary(model: nn.Module) -> Iterator[Forward]:
    """Forwards that turn queries and keys in one kernel, for attention modules whose own
    function for it does the same in a trial."""
    made: dict[type, tuple[FunctionType, _Turn] | None] = {}
    for module in model.modules():
        kind = type(module)
        if "forward" in vars(module):
            continue
        if kind not in made:
            made[kind] = _lean_forward(module, model)
        forward = made[kind]
        if forward is not None:
            yield module, _Turned(module, *forward).forward


def _lean_forward(module: nn.Module, model: nn.Module) -> tuple[FunctionType, _Turn] | None:
    """A copy of the forward of a module's class with another rotary embedding in it."""
    forward = type(module).forward
    # Quantised weights do not say in what type is computed.
    weights = (*module.parameters(), *model.parameters())
    weight = next((weight for weight in weights if weight.dtype in ROUNDING), None)
    # A decorator's wrapper does not know the name itself: what is in it is left alone.
    if not isinstance(forward, FunctionType) or NAME not in forward.__code__.co_names:
        return None
    own = forward.__globals__.get(NAME)
    if own is None or weight is None or not fused.available(weight.device):
        return None
    like = weight.detach()
    inputs = numbers(like, 1, 3, 2, 8), numbers(like, 1, 2, 2, 8) * 0.5
    angles = numbers(like, 1, 2, 8).cos(), numbers(like, 1, 2, 8).sin()
    if not fused.may_rotate(*inputs, *angles):
        return None
    if not agree(own, _Turn(own, False), *inputs, *angles):
        return None
    mine = _Turn(own, agree(_written_apart, _written_at_once, like.new_empty(0)))
    known = {**forward.__globals__, NAME: mine}
    copy = FunctionType(
        forward.__code__, known, forward.__name__, forward.__defaults__, forward.__closure__
    )
    copy.__kwdefaults__ = forward.__kwdefaults__
    return copy, mine


def _written_apart(like: Tensor) -> tuple[Tensor, ...]:
    """What is in a cache behind one token when two more are written to it."""
    query, key, value, cos, sin, room = _step(like)
    query, key = fused.rotate(query, key, cos, sin)
    room.keys[:, :, 1:3] = key
    room.values[:, :, 1:3] = value
    return query, key, room.keys, room.values


def _written_at_once(like: Tensor) -> tuple[Tensor, ...]:
    """The same by one kernel."""
    query, key, value, cos, sin, room = _step(like)
    behind = slots.values_behind(key, room)
    if behind is None or not torch.equal(behind, value):
        raise RuntimeError("values do not lie behind keys")
    return (*fused.rotate(query, key, cos, sin, room), room.keys, room.values)


def _step(like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, fused.Room]:
    """Queries, keys and values of two tokens out of one product, angles, and where to write."""
    heads = numbers(like, 1, 2, 7, 8).transpose(1, 2)
    cos, sin = numbers(like, 1, 2, 8).cos(), numbers(like, 1, 2, 8).sin()
    keys, values = torch.zeros(2, 1, 2, 4, 8, dtype=like.dtype, device=like.device)
    length = torch.ones(1, dtype=torch.int32, device=like.device)
    query, key, value = torch.split(heads, [3, 2, 2], dim=1)
    return query, key, value, cos, sin, fused.Room(keys, values, length)
