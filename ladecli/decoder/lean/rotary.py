"""Rotary position embedding of queries and keys in one kernel instead of ten.

transformers calls a function of the family's module for it, by a global name.  An attention
module gets a copy of its class's forward in which that name means something else, so neither
the family's module nor its classes change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from . import fused
from .joined import Forward
from .trial import agree, numbers

NAME = "apply_rotary_pos_emb"
Rotary = Callable[..., Any]


class _Turned:
    """An attention module's forward with another rotary embedding in it."""

    def __init__(self, module: nn.Module, lean: FunctionType) -> None:
        self._module, self._lean, self._own = module, lean, type(module).forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # torch.compile looks a name up in the module where the code was written.
        function = self._own if torch.compiler.is_compiling() else self._lean
        return function(self._module, *args, **kwargs)


def lean_rotary(model: nn.Module) -> Iterator[Forward]:
    """Forwards that turn queries and keys in one kernel, for attention modules whose own
    function for it does the same in a trial."""
    made: dict[type, FunctionType | None] = {}
    for module in model.modules():
        kind = type(module)
        if "forward" in vars(module):
            continue
        if kind not in made:
            made[kind] = _lean_forward(module)
        forward = made[kind]
        if forward is not None:
            yield module, _Turned(module, forward).forward


def _lean_forward(module: nn.Module) -> FunctionType | None:
    """A copy of the forward of a module's class with another rotary embedding in it."""
    forward = type(module).forward
    weight = next(module.parameters(), None)
    # A decorator's wrapper does not know the name itself: what is in it is left alone.
    if not isinstance(forward, FunctionType) or NAME not in forward.__code__.co_names:
        return None
    own = forward.__globals__.get(NAME)
    if own is None or weight is None or not fused.available(weight.device):
        return None
    mine = _with_kernel(own)
    like = weight.detach()
    inputs = numbers(like, 1, 3, 2, 8), numbers(like, 1, 2, 2, 8) * 0.5
    angles = numbers(like, 1, 2, 8).cos(), numbers(like, 1, 2, 8).sin()
    if not fused.may_rotate(*inputs, *angles) or not agree(own, mine, *inputs, *angles):
        return None
    known = {**forward.__globals__, NAME: mine}
    copy = FunctionType(
        forward.__code__, known, forward.__name__, forward.__defaults__, forward.__closure__
    )
    copy.__kwdefaults__ = forward.__kwdefaults__
    return copy


def _with_kernel(own: Rotary) -> Rotary:
    """`own` by one kernel, wherever that takes its inputs."""

    def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not fused.may_rotate(q, k, cos, sin):
            return own(q, k, cos, sin, *args, **kwargs)
        return fused.rotate(q, k, cos, sin)

    return turn
