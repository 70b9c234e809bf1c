"""Fewer and larger operations in a model's forward, without changing what it computes.

A forward of transformers has some 35 small operations in a layer beside its 7 products.  Within
a CUDA graph each of them costs about 2 microseconds, on a CPU 4 to 8.  What stands for them here
belongs to no family: a module is told by its parts, and a trial on random numbers shows whether
the replacement computes the same function on this device.  If not, the module stays as it is.

Only instances change, in their attribute `forward`, and `Lean.release` takes that back.  Weights
that were joined stay views of one tensor, under their own names and with their values.
"""

from __future__ import annotations

from collections.abc import Collection
from types import MethodType
from typing import Any

import torch
from torch import nn

from ..places import device_of
from .angles import lean_angles
from .gated import lean_gates
from .heads import lean_heads
from .joined import Forward, joined_products
from .norms import Kernel, lean_norms
from .rotary import lean_rotary
from .sums import lean_sums

__all__ = ["PARTS", "Lean", "make_lean"]

PARTS = ("norms", "gates", "products", "kernels")
"""What may become lean: normalisations, gated blocks, products of one input with several
matrices; "kernels" stands for Triton's, in all of them, for rotary embeddings and for sums."""
_ON_CPU = ("norms", "gates")


class Lean:
    """A model's lean forwards, which it has from the start.

    Args:
        forwards: modules, and what the `forward` of each shall be.
    """

    def __init__(self, forwards: list[Forward]) -> None:
        self._forwards = forwards
        self.bind()

    def __len__(self) -> int:
        return len(self._forwards)

    def bind(self) -> None:
        """Let modules use their lean forwards."""
        for module, forward in self._forwards:
            module.forward = forward

    def release(self) -> None:
        """Give modules the forwards of their classes back."""
        for module, forward in self._forwards:
            # Somebody else may have put theirs there in the meantime.
            if vars(module).get("forward") is forward:
                del module.forward


def make_lean(model: nn.Module, parts: Collection[str] | None = None) -> Lean:
    """Make a model's forward lean, as far as that changes nothing but rounding.

    In float32 results differ by rounding, some 1e-6 of their size; in half precision by the last
    bit of what each replaced part computes.

    Args:
        model: in evaluation mode; from now on its forward must run without gradients, and its
            weights keep their values, device and type.
        parts: of `PARTS`, those to replace; None for those that pay on the model's device.

    Raises:
        DeviceLostError: nothing can be computed any more, since a kernel was tried.
    """
    if parts is None:
        kind = device_of(model).type
        parts = {"cpu": _ON_CPU, "cuda": PARTS}.get(kind, PARTS[:-1])
    kernels = "kernels" in parts
    forwards: list[Forward] = _made_before(model)
    # Parameters that were made in inference mode could not be joined, nor read outside of it.
    with torch.inference_mode(False):
        if "norms" in parts:
            forwards += lean_norms(model, kernels)
            forwards += lean_sums(model, _kernels(forwards))
        if "gates" in parts:
            forwards += lean_gates(model, "products" in parts, kernels)
        if "products" in parts:
            forwards += joined_products(model)
        if kernels:
            forwards += lean_rotary(model)
            forwards += lean_heads(dict(forwards))
            forwards += lean_angles(model)
    # Of a module that several could replace, the last has seen what the others do.
    return Lean([*dict(forwards).items()])


def _kernels(forwards: list[Forward]) -> dict[nn.Module, Kernel]:
    """The normalisations that have become kernels."""
    owners = ((module, forward.__self__) for module, forward in forwards)
    return {module: owner for module, owner in owners if isinstance(owner, Kernel)}


def _made_before(model: nn.Module) -> list[Forward]:
    """What another decoder of the same model has made lean already."""
    found: list[Forward] = [
        (module, vars(module)["forward"]) for module in model.modules() if "forward" in vars(module)
    ]
    return [pair for pair in found if _is_ours(pair[1])]


def _is_ours(forward: Any) -> bool:
    if not isinstance(forward, MethodType):
        return False
    return type(forward.__self__).__module__.startswith(__name__)
