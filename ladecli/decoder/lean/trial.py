"""Whether one function may stand for another: both are tried on the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..capture import check_alive
from ..memory import is_out_of_memory

ROUNDING = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference that is taken for rounding, relative to the largest number."""
CAPTURING = "transformers.utils.output_capturing"
"""Where transformers' own hooks are written."""


@torch.no_grad()
def difference(own: Callable[..., Any], mine: Callable[..., Any], *inputs: Tensor) -> float:
    """How far two functions are apart, relative to the largest number of the first.

    Returns:
        Infinity where one of them fails, or where their results differ in number, shape or type.

    Raises:
        DeviceLostError: nothing can be computed any more.
    """
    try:
        results = [_listed(function(*inputs)) for function in (own, mine)]
        # A GPU tells of a fault only when it is asked for a number.
        return max(_gap(*pair) for pair in zip(*results, strict=True))
    except Exception as error:
        # Whatever a family or a compiler does not like: then nothing is replaced.
        check_alive(inputs[0].device, error)
        return float("inf")


def _gap(expected: Tensor, got: Tensor) -> float:
    """The same of two tensors."""
    if (expected.shape, expected.dtype) != (got.shape, got.dtype):
        return float("inf")
    gap = (expected.double() - got.double()).abs().max() / expected.double().abs().max()
    # A comparison with no number is false either way: such a difference has no bound.
    return float(gap) if bool(gap < 1) else float("inf")


def agree(own: Callable[..., Any], mine: Callable[..., Any], *inputs: Tensor) -> bool:
    """Whether two functions differ by no more than rounding on `inputs`."""
    return difference(own, mine, *inputs) <= ROUNDING.get(inputs[0].dtype, 0.0)


def passed(device: torch.device, trial: Callable[[], bool]) -> bool:
    """What a trial of kernels on a device finds; no, where it fails.

    Raises:
        RuntimeError, MemoryError: out of memory, which says nothing about them.
        DeviceLostError: nothing can be computed any more.
    """
    try:
        with torch.inference_mode():
            return trial()
    except Exception as error:  # whatever a compiler says: there is another way
        if is_out_of_memory(error):
            raise
        check_alive(device, error)
        return False


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
        not all(map(_idle, module._forward_hooks.values()))
        or module._forward_pre_hooks
        or torch.nn.modules.module._global_forward_hooks
        or torch.nn.modules.module._global_forward_pre_hooks
        or not (forward is None or ours)
    )


def _idle(hook: object) -> bool:
    """Whether a hook is one by which transformers collects states, and nobody has asked for any.

    Once some were asked for, such hooks stay for good.
    """
    if getattr(hook, "__module__", None) != CAPTURING:
        return False
    # Where transformers has no such variable, hooks count.
    collector = getattr(sys.modules.get(CAPTURING), "_active_collector", None)
    return collector is not None and not collector.get()


def numbers(like: Tensor, *shape: int) -> Tensor:
    """The same random numbers at every call, of the type of `like` and where it is."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(like.device, like.dtype)


def _listed(result: Any) -> Iterable[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)
