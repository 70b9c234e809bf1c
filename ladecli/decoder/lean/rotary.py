"""Rotary position embedding of queries and keys in one kernel instead of ten.

transformers calls a function of the family's module for it, by a global name.  An attention
module gets a copy of its class's forward in which that name means something else, so neither
the family's module nor its classes change.

What comes next is that keys and values are written to the cache.  Values are on no way through
that function, but as a rule they lie behind the keys, in the output of one product.  Where the
cache has room whose place is fixed, the kernel copies both; the cache sees by the addresses
whether that was what it is given.

What comes before it may be that queries and keys are normalised, which can be left to the kernel
(see `heads`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from types import FunctionType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from . import fused, slots, turning
from .joined import Forward
from .norms import Kernel
from .trial import ROUNDING, agree, difference, numbers
from .turning import TURNINGS, Turning

NAME = "apply_rotary_pos_emb"
ANGLES = "position_embeddings"
"""The keyword by which attention is handed cosines and sines; without them some turn nothing."""
Rotary = Callable[..., Any]


class Kind(NamedTuple):
    """What inputs a rotary embedding has.

    Attributes:
        partial: whether some numbers of a head have no angle.
        wide: whether angles are of another type than heads, which is float32.
    """

    partial: bool
    wide: bool


KINDS = tuple(Kind(*flags) for flags in product((False, True), repeat=2))
PLAIN = Kind(partial=False, wide=False)


class Roomy(Protocol):
    """A cache that can be written to by others."""

    def room(self, layer_idx: int) -> fused.Room:
        """Where keys and values of a step go in one of the layers."""

    def wrote(self, layer_idx: int, key: Tensor, value: Tensor) -> None:
        """These tensors are there already; they may not be what the layer is going to say."""


class _Here(threading.local):
    """What attention has to say to its rotary embedding; several threads may be in one layer.

    Attributes:
        cache: where its keys go, and the number of its layer.
        left: what the embedding has to normalise, and how; None where no attention is under way.
    """

    cache: tuple[Roomy, int] | None = None
    left: list[tuple[Kernel, Tensor]] | None = None


class Turn:
    """A rotary embedding by one kernel, wherever that takes its inputs.

    Args:
        own: what it stands for.
        how: what that does.
        kinds: of inputs, those for which a trial has shown that.
        writes: whether the kernel may write to caches.
    """

    def __init__(self, own: Rotary, how: Turning, kinds: set[Kind], writes: bool) -> None:
        self._own, self._how, self._kinds, self._writes = own, how, kinds, writes
        self._here = _Here()

    def __deepcopy__(self, memo: dict[int, Any]) -> Turn:
        return self

    def run(self, forward: Rotary, cache: Any, layer: int | None, *args: Any, **kwargs: Any) -> Any:
        """Attention of a layer whose keys go to a cache.

        Args:
            forward: of the attention module, with this embedding in it.
            cache: None for none.
            layer: its number; None if it has none.
            args, kwargs: for `forward`.

        Raises:
            RuntimeError: something was left to an embedding that the layer does not have.
        """
        here = self._here
        here.cache = (cache, layer) if layer is not None and hasattr(cache, "room") else None
        here.left = [] if kwargs.get(ANGLES) is not None else None
        try:
            out = forward(*args, **kwargs)
            if here.left:
                raise RuntimeError("a layer's queries or keys were not normalised")
            return out
        finally:
            here.cache = here.left = None

    def leave(self, norm: Kernel, x: Tensor) -> bool:
        """Leave it to the embedding to normalise `x`; whether that will be done."""
        left = self._here.left
        if left is None or x.dtype != norm.dtype or fused.off():
            return False
        left.append((norm, x))
        return True

    def __call__(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Queries and keys [1, heads, T, D], turned by angles [1, T, R], as the family has it."""
        norms = self._norm_of(q), self._norm_of(k)
        fits = not (args or kwargs) and turning.may_rotate(q, k, cos, sin)
        fits = fits and _kind(q, cos) in self._kinds
        weighings = None
        if fits and norms[0] is not None and norms[1] is not None:
            weighings = norms[0].weighing, norms[1].weighing
        else:
            pairs = zip(norms, (q, k), strict=True)
            q, k = (x if norm is None else norm.forward(x) for norm, x in pairs)
        if not fits:
            return self._own(q, k, cos, sin, *args, **kwargs)
        rotate = partial(turning.rotate, q, k, cos, sin, self._how, norms=weighings)
        if self._writes and self._here.cache is not None:
            cache, layer = self._here.cache
            room = cache.room(layer)
            value = slots.values_behind(k, room)
            if value is not None:
                query, key = rotate(room=room)
                cache.wrote(layer, key, value)
                return query, key
        return rotate()

    def _norm_of(self, x: Tensor) -> Kernel | None:
        """The normalisation of `x` that was left to this embedding."""
        left = self._here.left or []
        for index, (norm, given) in enumerate(left):
            # Heads and tokens may have changed places in between, and nothing else.
            if _place(given) == _place(x):
                del left[index]
                return norm
        return None


class Turned:
    """An attention module's forward with another rotary embedding in it.

    Args:
        module: whose forward it is.
        lean: that of its class, with `turn` in it.

    Attributes:
        turn: as above.
    """

    def __init__(self, module: nn.Module, lean: FunctionType, turn: Turn) -> None:
        self._module, self._lean, self._own = module, lean, type(module).forward
        self.turn = turn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module says."""
        # torch.compile looks a name up in the module where the code was written.
        if torch.compiler.is_compiling():
            return self._own(self._module, *args, **kwargs)
        return self.said_by(self._module, *args, **kwargs)

    def said_by(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What another module of that class would say."""
        cache, layer = kwargs.get("past_key_values"), getattr(module, "layer_idx", None)
        return self.turn.run(self._lean, cache, layer, module, *args, **kwargs)


def lean_rotary(model: nn.Module) -> Iterator[Forward]:
    """Forwards that turn queries and keys in one kernel, for attention modules whose own
    function for it does the same in a trial."""
    made: dict[type, tuple[FunctionType, Turn] | None] = {}
    for module in model.modules():
        kind = type(module)
        if "forward" in vars(module):
            continue
        if kind not in made:
            made[kind] = _lean_forward(module, model)
        forward = made[kind]
        if forward is not None:
            yield module, Turned(module, *forward).forward


def _lean_forward(module: nn.Module, model: nn.Module) -> tuple[FunctionType, Turn] | None:
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
    turn = _turn_for(own, weight.detach())
    if turn is None:
        return None
    known = {**forward.__globals__, NAME: turn}
    copy = FunctionType(
        forward.__code__, known, forward.__name__, forward.__defaults__, forward.__closure__
    )
    copy.__kwdefaults__ = forward.__kwdefaults__
    return copy, turn


def _turn_for(own: Rotary, like: Tensor) -> Turn | None:
    """What stands for a family's function, as far as trials show that it does the same."""
    gaps: dict[Turning, float] = {}
    for how in TURNINGS:
        gaps[how] = _gap(own, how, PLAIN, like)
        if gaps[how] == 0.0:
            break
    best = min(gaps, key=lambda how: gaps[how])
    most = ROUNDING[like.dtype]
    if gaps[best] > most:
        return None
    kinds = {kind for kind in KINDS if _gap(own, best, kind, like) <= most}
    apart, at_once = (partial(way, best) for way in (_written_apart, _written_at_once))
    return Turn(own, best, kinds, agree(apart, at_once, like.new_empty(0)))


def _gap(own: Rotary, how: Turning, kind: Kind, like: Tensor) -> float:
    """How far the kernel is from a family's function, for inputs of a kind."""
    depth = 4 if kind.partial else 8
    angle = numbers(like.float() if kind.wide else like, 1, 2, depth)
    inputs = numbers(like, 1, 3, 2, 8), numbers(like, 1, 2, 2, 8) * 0.5, angle.cos(), angle.sin()
    # Of float32 there is nothing wider.
    if _kind(inputs[0], angle) != kind or not turning.may_rotate(*inputs):
        return float("inf")
    return difference(own, partial(turning.rotate, turning=how), *inputs)


def _kind(x: Tensor, cos: Tensor) -> Kind:
    return Kind(cos.shape[-1] < x.shape[-1], cos.dtype != x.dtype)


def _place(x: Tensor) -> tuple[int, int, int]:
    """Where rows are, how many numbers, and how wide."""
    return x.data_ptr(), x.numel(), x.shape[-1]


def _written_apart(how: Turning, like: Tensor) -> tuple[Tensor, ...]:
    """What is in a cache behind one token when two more are written to it."""
    query, key, value, cos, sin, room = _step(like)
    query, key = turning.rotate(query, key, cos, sin, how)
    room.keys[:, :, 1:3] = key
    room.values[:, :, 1:3] = value
    return query, key, room.keys, room.values


def _written_at_once(how: Turning, like: Tensor) -> tuple[Tensor, ...]:
    """The same by one kernel."""
    query, key, value, cos, sin, room = _step(like)
    behind = slots.values_behind(key, room)
    if behind is None or not torch.equal(behind, value):
        raise RuntimeError("values do not lie behind keys")
    return (*turning.rotate(query, key, cos, sin, how, room=room), room.keys, room.values)


def _step(like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, fused.Room]:
    """Queries, keys and values of two tokens out of one product, angles, and where to write."""
    heads = numbers(like, 1, 2, 7, 8).transpose(1, 2)
    cos, sin = numbers(like, 1, 2, 8).cos(), numbers(like, 1, 2, 8).sin()
    keys, values = torch.zeros(2, 1, 2, 4, 8, dtype=like.dtype, device=like.device)
    length = torch.ones(1, dtype=torch.int32, device=like.device)
    query, key, value = torch.split(heads, [3, 2, 2], dim=1)
    return query, key, value, cos, sin, fused.Room(keys, values, length)
