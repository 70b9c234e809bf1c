"""Cosines and sines of a step's positions in one kernel instead of nine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import fused
from .joined import Forward
from .trial import agree, numbers

NAME = "RotaryEmbedding"
"""How transformers calls such modules, behind the name of the family."""
KINDS = ("default", "linear", "llama3", "yarn")
"""Those whose frequencies do not depend on how long the text is."""
POSITIONS = (0, 1, 77, 4095, 131071)
"""Tried: no cosine may be worse for being far from 0."""


class _Angles:
    """A module that says the cosines and sines of positions."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._own: Callable[..., Any] = module.forward

    def forward(self, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        frequencies: Any = self._module.inv_freq
        if args or kwargs or not fused.may_take_angles(position_ids, frequencies, x.dtype):
            return self._own(x, position_ids, *args, **kwargs)
        scaling: Any = self._module.attention_scaling
        return fused.angles(position_ids, frequencies, float(scaling), x.dtype)


def lean_angles(model: nn.Module) -> Iterator[Forward]:
    """Forwards for modules of which a trial shows that they say nothing else.

    Args:
        model: any model.
    """
    weight = next(model.parameters(), None)
    for module in model.modules():
        if weight is None or not type(module).__name__.endswith(NAME) or "forward" in vars(module):
            continue
        frequencies = getattr(module, "inv_freq", None)
        static = getattr(module, "rope_type", None) in KINDS
        if static and isinstance(frequencies, Tensor) and _alike(module, frequencies, weight.dtype):
            yield module, _Angles(module).forward


def _alike(module: nn.Module, frequencies: Tensor, dtype: torch.dtype) -> bool:
    if not fused.available(frequencies.device) or not hasattr(module, "attention_scaling"):
        return False
    x = numbers(torch.empty(0, dtype=dtype, device=frequencies.device), 1, 1, 1)
    positions = torch.tensor([POSITIONS], device=frequencies.device)
    if not fused.may_take_angles(positions, frequencies, dtype):
        return False
    return agree(module.forward, _Angles(module).forward, x, positions)
