"""Whether one function may stand for another: both are tried on the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

ROUNDING = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference that is taken for rounding, relative to the largest number."""


@torch.no_grad()
def difference(own: Callable[..., Any], mine: Callable[..., Any], *inputs: Tensor) -> float:
    """How far two functions are apart, relative to the largest number of the first.

    Returns:
        Infinity where one of them fails, or where their results differ in shape or type.
    """
    try:
        results = [_listed(function(*inputs)) for function in (own, mine)]
    except Exception:
        # Whatever a family or a compiler does not like: then nothing is replaced.
        return float("inf")
    worst = 0.0
    for expected, got in zip(*results, strict=True):
        if (expected.shape, expected.dtype) != (got.shape, got.dtype):
            return float("inf")
        gap = (expected.double() - got.double()).abs().max() / expected.double().abs().max()
        # A comparison with no number is false either way: such a difference has no bound.
        worst = max(worst, float(gap)) if bool(gap < 1) else float("inf")
    return worst


def agree(own: Callable[..., Any], mine: Callable[..., Any], *inputs: Tensor) -> bool:
    """Whether two functions differ by no more than rounding on `inputs`."""
    return difference(own, mine, *inputs) <= ROUNDING.get(inputs[0].dtype, 0.0)


def works_alone(module: nn.Module) -> bool:
    """Whether a module can be tried without other processes, which its hooks, or weights that are
    distributed, might wait for."""
    return not any(map(hooked, module.modules())) and all(
        type(parameter.data) is Tensor for parameter in module.parameters()
    )


def hooked(module: nn.Module) -> bool:
    """Whether somebody looks at what a module is given, or returns, and may change it: by hooks,
    those of all modules among them, or by a forward of theirs around its own."""
    forward = vars(module).get("forward")
    ours = type(getattr(forward, "__self__", None)).__module__.startswith(__package__)
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or torch.nn.modules.module._global_forward_hooks
        or torch.nn.modules.module._global_forward_pre_hooks
        or not (forward is None or ours)
    )


def numbers(like: Tensor, *shape: int) -> Tensor:
    """The same random numbers at every call, of the type of `like` and where it is."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(like.device, like.dtype)


def _listed(result: Any) -> Iterable[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)
