"""Root mean square normalisation as one operation instead of six to eight."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import fused
from .joined import Forward
from .trial import ROUNDING, difference, numbers

NAME = "RMSNorm"
"""How transformers calls such modules, behind the name of the family."""


class _Norm:
    """A normalisation in one of its forms; others than it was made for go to the module's own."""

    def __init__(self, own: Callable[..., Tensor], weight: Tensor, eps: float) -> None:
        self.own, self.weight, self.eps = own, weight, eps
        self.shape, self.dtype = tuple(weight.shape), weight.dtype


class _Plain(_Norm):
    """`x / rms(x) * weight`, by torch's own operation.

    In half precision most families round before they multiply by the weight, and this rounds
    once at the end: the last bit may differ, and this is the one nearer to the exact value.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.dtype:
            return self.own(x)
        return torch.rms_norm(x, self.shape, self.weight, self.eps)


class _Offset(_Norm):
    """`x / rms(x) * (1 + weight)` in float32, as Gemma has it."""

    def __init__(self, own: Callable[..., Tensor], weight: Tensor, eps: float) -> None:
        super().__init__(own, weight, eps)
        self.weight = weight.detach().float() + 1

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.dtype:
            return self.own(x)
        return torch.rms_norm(x.float(), self.shape, self.weight, self.eps).to(x.dtype)


class Kernel(_Norm):
    """One kernel for any form, and for inputs of any strides."""

    def __init__(
        self, own: Callable[..., Tensor], weight: Tensor, eps: float, form: fused.Form
    ) -> None:
        super().__init__(own, weight, eps)
        self.form = form
        self._ready: tuple[weakref.ref[Tensor], Tensor] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel:
        memo[id(self)] = other = copy.copy(self)
        other._ready = None
        other.own, other.weight = copy.deepcopy((self.own, self.weight), memo)
        return other

    @property
    def weighing(self) -> fused.Weighing:
        """What the kernels have to know of it."""
        return fused.Weighing(self.weight, self.eps, self.form)

    def expect(self, x: Tensor, normed: Tensor) -> None:
        """Keep what there is to say of `x` until it is asked for, or until `x` is gone."""
        self._ready = weakref.ref(x, self._forget), normed

    def forward(self, x: Tensor) -> Tensor:
        """What the module says of `x` [..., width]."""
        if torch.compiler.is_compiling():
            return self.own(x)
        ready, self._ready = self._ready, None
        # Identity, not equality: and another thread may have put its own in between.
        if ready is not None and ready[0]() is x:
            return ready[1]
        if x.dtype != self.dtype or not fused.may_normalise(x):
            return self.own(x)
        return fused.normalise(x, self.weight, self.eps, self.form)

    def _forget(self, gone: weakref.ref[Tensor]) -> None:
        ready = self._ready
        if ready is not None and ready[0] is gone:
            self._ready = None


def lean_norms(model: nn.Module, kernels: bool) -> Iterator[Forward]:
    """One operation for each module that normalises by the root mean square, where a trial
    shows that it is the same function.

    Args:
        model: any model.
        kernels: whether Triton's may be used.
    """
    for module in model.modules():
        if type(module).__name__.endswith(NAME) and "forward" not in vars(module):
            norm = _norm_for(module, kernels)
            if norm is not None:
                yield module, norm.forward


def _norm_for(module: nn.Module, kernels: bool) -> _Plain | _Offset | Kernel | None:
    """The form that is nearest to what a module does."""
    weight: Any = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if type(weight) is not nn.Parameter or type(weight.data) is not Tensor or weight.ndim != 1:
        return None
    if not isinstance(eps, float) or weight.device.type == "meta":
        return None
    # One row so small that what keeps it from a division by zero counts.
    x = numbers(weight, 1, 3, len(weight))
    x[0, 0] *= eps**0.5
    own = module.forward
    ways: list[list[_Plain | _Offset | Kernel]] = [
        [_Plain(own, weight, eps), _Offset(own, weight, eps)]
    ]
    if kernels and fused.available(weight.device):
        ways.insert(0, [Kernel(own, weight, eps, form) for form in fused.FORMS])
    for forms in ways:
        gaps = [difference(own, form.forward, x) for form in forms]
        best = gaps.index(min(gaps))
        if gaps[best] <= ROUNDING.get(weight.dtype, 0.0):
            return forms[best]
    return None
