"""Normalisations of queries and keys, left to the rotary embedding behind them.

Qwen3, Gemma 3 and others normalise each head before they turn it.  While their attention runs,
such a module returns what it was given, and the kernel that turns it does both.  So keys are what
the product said until then, values lie behind them, and that kernel can write both to the cache.

What reaches the embedding is known by its address.  A trial of each attention module shows that
nothing else becomes of it, and that what was left is done.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import STEP_KEYWORD, StepAttention, bound
from .fused import Room
from .joined import Forward
from .norms import Kernel
from .rotary import Turn, Turned
from .trial import agree, hooked, numbers, works_alone

NAMES = ("q_norm", "k_norm")
"""What transformers' attention modules call them."""
TOKENS = 3
"""Of a trial."""


class Left:
    """A normalisation that returns its input where the rotary embedding will normalise it.

    Args:
        module: the normalisation.
        norm: what stands for it elsewhere.
        turn: the embedding of its attention.
    """

    def __init__(self, module: nn.Module, norm: Kernel, turn: Turn) -> None:
        self._module, self._norm, self._turn = module, norm, turn

    def forward(self, x: Tensor) -> Tensor:
        """What the module says of `x` [..., D], or `x`."""
        # A hook may look at it, or change it.
        if torch.compiler.is_compiling() or hooked(self._module):
            return self._norm.forward(x)
        return x if self._turn.leave(self._norm, x) else self._norm.forward(x)


def lean_heads(forwards: Mapping[nn.Module, Any]) -> Iterator[Forward]:
    """Forwards for normalisations of queries and keys, where a trial of their attention shows that
    it says the same.

    Args:
        forwards: of all modules that are lean so far.
    """
    for module, forward in forwards.items():
        attention = forward.__self__
        if not isinstance(attention, Turned):
            continue
        norms: list[Any] = [getattr(module, name, None) for name in NAMES]
        query, key = (getattr(forwards.get(norm), "__self__", None) for norm in norms)
        if not isinstance(query, Kernel) or not isinstance(key, Kernel):
            continue
        if (query.eps, query.form, query.shape) != (key.eps, key.form, key.shape):
            continue
        pairs: list[Forward] = [
            (norm, Left(norm, kernel, attention.turn).forward)
            for norm, kernel in zip(norms, (query, key), strict=True)
        ]
        if _alike(module, attention, {**forwards, **dict(pairs)}, query.weight):
            yield from pairs


def _alike(
    module: nn.Module, attention: Turned, forwards: Mapping[nn.Module, Any], weight: Tensor
) -> bool:
    """Whether attention says the same, by its own forward and by what it is going to be.

    Args:
        module: the attention.
        attention: what stands for its forward.
        forwards: what stands for those of its parts.
        weight: [D], of a normalisation.
    """
    width = getattr(getattr(module, "q_proj", None), "in_features", None)
    rows = getattr(getattr(module, "k_proj", None), "out_features", None)
    if not isinstance(width, int) or not isinstance(rows, int) or not works_alone(module):
        return False
    like, depth = weight.detach(), len(weight)
    # The module itself may be in use.
    twin = copy.copy(module)
    twin._modules = {**module._modules}
    for name, part in module._modules.items():
        if part is not None and part in forwards:
            twin._modules[name] = other = copy.copy(part)
            other.forward = forwards[part]

    def said(forward: Callable[..., Any], *inputs: Tensor) -> tuple[Tensor, ...]:
        return _Trial(like, rows // depth, depth).run(forward, *inputs)

    x, angle = numbers(like, 1, TOKENS, width), numbers(like, 1, TOKENS, depth)
    with bound(module):
        return agree(
            partial(said, partial(type(module).forward, module)),
            partial(said, partial(attention.said_by, twin)),
            *(x, angle.cos(), angle.sin()),
        )


class _Trial:
    """A step of a few tokens, and a cache with one before it.

    Args:
        like: has the type and the device of the cache.
        heads, depth: of keys.
    """

    def __init__(self, like: Tensor, heads: int, depth: int) -> None:
        slots = 2, 1, heads, 1 + TOKENS, depth
        self._keys, self._values = torch.zeros(slots, dtype=like.dtype, device=like.device)
        self._length = torch.ones(1, dtype=torch.int32, device=like.device)
        self._there = False

    def room(self, layer_idx: int) -> Room:
        """Where keys and values go."""
        return Room(self._keys, self._values, self._length)

    def wrote(self, layer_idx: int, key: Tensor, value: Tensor) -> None:
        """They are there."""
        self._there = True

    def update(self, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Put keys and values there, and return all that are."""
        if not self._there:
            self._keys[:, :, 1:], self._values[:, :, 1:] = key, value
        return self._keys, self._values

    def run(
        self, forward: Callable[..., Any], x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, ...]:
        """What attention says of queries alone, what those are, and what is in the cache.

        Args:
            forward: of an attention module.
            x: [1, T, width].
            cos, sin: [1, T, D].
        """
        positions = torch.arange(TOKENS, device=x.device)
        heard: list[Tensor] = []

        def attend(query: Tensor, *args: Any) -> Tensor:
            heard.append(query)
            return query

        out = forward(
            hidden_states=x,
            position_embeddings=(cos, sin),
            attention_mask=None,
            past_key_values=self,
            **{STEP_KEYWORD: StepAttention(attend, None, positions, 1, TOKENS)},
        )[0]
        return (out, *heard, self._keys, self._values)
