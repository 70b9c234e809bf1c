"""The sums of a decoder layer, each in one kernel with the normalisations next to it.

A layer adds to its input what its attention says of it, and then what its block says.  No module
does that, so the whole layer gets another forward.  A sum is normalised by the module that comes
next, here or in the next layer: that one is told beforehand, and has no more to do.  Nothing is
changed in place: whoever keeps the states between layers keeps what they were.  Where somebody
listens in on the way, as transformers' `output_hidden_states` does, layers have their own forward
again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import fused
from .joined import Forward
from .norms import Kernel
from .trial import agree, hooked, numbers, works_alone

ATTENTION, BLOCK = "self_attn", "mlp"
FACTOR = "residual_multiplier"
"""What Granite's layers call a number that what they add is multiplied by."""
LAST = "norm"
"""What transformers' models call the normalisation behind their last layer."""


class Plan(NamedTuple):
    """Names of a layer's normalisations; None where it has none.

    Attributes:
        before_attention, behind_attention: of what attention is fed, and of what it says.
        before_block, behind_block: the same of the block.
    """

    before_attention: str | None
    behind_attention: str | None
    before_block: str | None
    behind_block: str | None


PLANS = (
    # Llama and most others, Gemma 2 and 3, GLM-4, OLMo 2.
    Plan("input_layernorm", None, "post_attention_layernorm", None),
    Plan(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    Plan(
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ),
    Plan(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
)


class _Layer:
    """A layer's forward, by a plan.

    Args:
        module: the layer.
        plan: of it.
        following: the normalisation that its output goes to, if there is one, and the layer that
            this one is in.
    """

    def __init__(self, module: nn.Module, plan: Plan, *following: nn.Module) -> None:
        self._module, self._own = module, type(module).forward
        self._plan = [None if name is None else getattr(module, name) for name in plan]
        self._following = following[0] if following else None
        factor = getattr(module, FACTOR, 1.0)
        self._factor = float(factor) if isinstance(factor, int | float) else 1.0
        norms = [norm for norm in self._plan if norm is not None]
        self._passed = [module, *norms, *following]

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        # Triton's kernels cannot be traced; and a hook may change what comes by.
        if args or torch.compiler.is_compiling() or any(map(hooked, self._passed)):
            return self._own(module, hidden_states, *args, **kwargs)
        before_attention, behind_attention, before_block, behind_block = self._plan
        x = hidden_states
        fed = x if before_attention is None else before_attention(x)
        said = getattr(module, ATTENTION)(hidden_states=fed, **kwargs)[0]
        x = _sum(x, said, behind_attention, before_block, self._factor)
        del said  # Nobody needs its memory longer.
        fed = x if before_block is None else before_block(x)
        said = getattr(module, BLOCK)(fed)
        return _sum(x, said, behind_block, self._following, self._factor)


def _sum(
    x: Tensor, said: Tensor, behind: nn.Module | None, ahead: nn.Module | None, factor: float
) -> Tensor:
    """`x + factor * behind(said)`; `ahead` is told what it will say of that.

    Args:
        x, said: [1, T, width].
        behind, ahead: normalisations, if there are any.
    """
    may = fused.may_add(x, said)
    norm = kernel_of(behind, x) if may else None
    next_norm = kernel_of(ahead, x) if may else None
    if behind is not None and norm is None:
        said = behind(said)
    if norm is None and next_norm is None:
        return x + (said if factor == 1.0 else said * factor)
    first, last = (None if each is None else each.weighing for each in (norm, next_norm))
    total, normed = fused.add(x, said, first, last, factor)
    if next_norm is not None:
        next_norm.expect(total, normed)
    return total


def kernel_of(norm: nn.Module | None, x: Tensor) -> Kernel | None:
    """What stands for a normalisation of numbers of the type of `x`, if that is a kernel."""
    forward = None if norm is None else vars(norm).get("forward")
    kernel = getattr(forward, "__self__", None)
    return kernel if isinstance(kernel, Kernel) and kernel.dtype == x.dtype else None


def lean_sums(model: nn.Module, norms: Mapping[nn.Module, Kernel]) -> Iterator[Forward]:
    """Forwards for layers, where a trial of each shows that it is built by one of the plans.

    Args:
        model: any model.
        norms: kernels that stand for normalisations.
    """
    plans: dict[nn.Module, Plan] = {}
    for module in model.modules():
        plan = _plan_of(module, norms)
        if plan is not None:
            plans[module] = plan
    following = _following(model, plans)
    for module, plan in plans.items():
        where, norm = following.get(module, (None, None))
        near = isinstance(norm, nn.Module) and norm in norms and _place(norm) == _place(module)
        ends = (norm, where) if near else ()
        yield module, _Layer(module, plan, *ends).forward


def _following(
    model: nn.Module, plans: Mapping[nn.Module, Plan]
) -> dict[nn.Module, tuple[nn.Module, Any]]:
    """The layer behind each, or the model behind the last, and its first normalisation."""
    found: dict[nn.Module, tuple[nn.Module, Any]] = {}
    for parent in model.modules():
        for layers in parent.children():
            if not isinstance(layers, nn.ModuleList) or not len(layers):
                continue
            for layer, after in pairwise(layers):
                plan = plans.get(after)
                name = None if plan is None else plan.before_attention
                found[layer] = after, name and getattr(after, name)
            found[layers[-1]] = parent, getattr(parent, LAST, None)
    return found


def _plan_of(module: nn.Module, norms: Mapping[nn.Module, Kernel]) -> Plan | None:
    """The plan that a layer is built by."""
    parts = [getattr(module, name, None) for name in (ATTENTION, BLOCK)]
    if "forward" in vars(module) or not all(isinstance(part, nn.Module) for part in parts):
        return None
    if not works_alone(getattr(module, BLOCK)):
        return None
    for plan in PLANS:
        names = [name for name in plan if name is not None]
        known = all(getattr(module, name, None) in norms for name in names)
        # What half precision would take for rounding may be a factor near 1.
        if known and _does(module, plan, {}) and _does(module, plan, norms):
            return plan
    return None


def _does(module: nn.Module, plan: Plan, norms: Mapping[nn.Module, Kernel]) -> bool:
    """Whether a layer does what a plan says: with any attention, which is a function here, and
    with its block and something more, since what a block says may be next to nothing.

    Without `norms` the layer is tried in float32, with its own normalisations and no block.
    """
    weight: Any = getattr(module, next(name for name in plan if name)).weight
    weight = weight.detach() if norms else weight.detach().float()
    given = {name: object() for name in _arguments(module)}
    heard: list[dict[str, Any]] = []

    def attention(*, hidden_states: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
        heard.append(kwargs)
        return hidden_states.flip(-1) * 0.5, None

    def block(hidden_states: Tensor) -> Tensor:
        said = hidden_states.flip(-1)
        return said + getattr(module, BLOCK)(hidden_states) if norms else said

    # The layer itself may be in use.
    twin = copy.copy(module)
    twin._modules = {**module._modules}
    for name in plan:
        if name is not None:
            norm: nn.Module = getattr(module, name)
            twin._modules[name] = other = copy.copy(norm) if norms else copy.deepcopy(norm).float()
            if norms:
                other.forward = norms[norm].forward
    twin._modules.update({ATTENTION: _Said(attention), BLOCK: _Said(block)})
    mine = _Layer(twin, plan)

    def own(x: Tensor) -> Tensor:
        out = mine._own(twin, x, **given)
        if not isinstance(out, Tensor):
            raise TypeError("a layer that returns more than one tensor")
        return out

    x = numbers(weight, 1, 3, len(weight))
    alike = agree(own, lambda x: mine.forward(x, **given), x)
    return alike and len(heard) == 2 and heard[0] == heard[1] == given


class _Said(nn.Module):
    """A function as a part of a layer."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.forward = function


def _arguments(module: nn.Module) -> list[str]:
    """What a layer is handed beside its input: all that it names, and what it does not."""
    parameters = [*inspect.signature(type(module).forward).parameters.values()][2:]
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [*(each.name for each in parameters if each.kind not in kinds), "lade_step"]


def _place(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
