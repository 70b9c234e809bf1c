"""Rotary position embeddings (Su et al., 2021), by tables from the model's own rotary module."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .families import Family, ModelFacts


class Rotary(NamedTuple):
    """The rotary embeddings of a step: the first n numbers of each head are turned in pairs."""

    cos: Tensor  # [T, 1, n], the factor of each number
    sin: Tensor  # [T, 1, n], the factor of the other number of its pair, with its sign
    interleaved: bool  # pairs are neighbours, not n / 2 apart
    query_scale: Tensor | None = None  # [T, 1, 1], or None


def rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    """Return heads, [T, heads, head_size], turned by their positions."""
    count = rotary.cos.shape[-1]
    part = heads if count == heads.shape[-1] else heads[..., :count]
    if rotary.interleaved:
        partners = part.reshape(len(part), part.shape[1], -1, 2).flip(-1).flatten(-2)
    else:
        partners = torch.roll(part, count // 2, -1)
    # Some families compute this in float32, whatever the type of activations.
    turned = torch.addcmul(part * rotary.cos, partners, rotary.sin).to(heads.dtype)
    return turned if part is heads else torch.cat((turned, heads[..., count:]), dim=-1)


class RotaryTables:
    """Cosines and sines by position, grown as needed.

    Args:
        module: the rotary embedding of the model, of transformers' class.
        text: the configuration of the text model.
        family: the properties of the family.
        facts: the longest text, and the rotary boundary.
        like: a tensor with the type and device of activations.

    Attributes:
        kinds: for each layer, the kind of embedding in the module; "" if there is only one.
        distinct: all kinds, in the order of `at`.
    """

    def __init__(
        self, module: nn.Module, text: Any, family: Family, facts: ModelFacts, like: Tensor
    ) -> None:
        parameters = getattr(text, "rope_parameters", None) or {}
        kinds = getattr(text, "layer_types", None)
        nested = kinds and all(isinstance(parameters.get(kind), dict) for kind in kinds)
        self.kinds: list[str] = list(kinds) if kinds and nested else [""] * facts.layers
        self.distinct = sorted({*self.kinds})
        self._module = module
        self._interleaved = family.interleaved
        self._facts = facts
        self._like = like.new_empty(0)
        # How much queries grow with their position, and from which position on.
        self._beta = parameters.get("llama_4_scaling_beta") if family.query_scale else None
        original = parameters.get("original_max_position_embeddings")
        self._original = original or text.max_position_embeddings
        # [positions, 2, 1, n], by kind and whether frequencies are those beyond the boundary.
        self._tables: dict[tuple[str, bool], Tensor] = {}
        # Captured steps go on reading the tables that were there when they were captured.
        self._outgrown: list[Tensor] = []

    def at(self, positions: Tensor, last_position: int) -> dict[str, Rotary]:
        """Return the embeddings of a step, by kind of layer.

        Args:
            positions: int64 [T].
            last_position: the largest of them, or a larger one on the same side of the boundary
                at which frequencies change.
        """
        scale = None
        if self._beta:
            # In float64, so that the result for a position is the same in every step.
            stretches = torch.floor(positions / self._original).double()
            growth = torch.log1p(stretches) * self._beta + 1
            scale = growth.to(self._like.dtype)[:, None, None]
        boundary = self._facts.rope_boundary
        is_long = boundary is not None and last_position >= boundary
        embeddings = {}
        for kind in self.distinct:
            if is_long and self._facts.rope_grows:
                rows = self._compute(kind, positions)
            else:
                table = self._tables.get((kind, is_long))
                if table is None or len(table) <= last_position:
                    table = self._grow(kind, is_long, last_position)
                rows = table[positions]
            cos, sin = rows.unbind(1)
            embeddings[kind] = Rotary(cos, sin, self._interleaved, scale)
        return embeddings

    @torch.no_grad()
    def _grow(self, kind: str, is_long: bool, last_position: int) -> Tensor:
        """Make a larger table of a kind, which has a position."""
        boundary = self._facts.rope_boundary
        most = max(self._facts.context, last_position + 1)
        if boundary is not None and not is_long:
            # The module chooses frequencies by the largest position.
            most = boundary
        count = min(max(1 << last_position.bit_length(), 256), most)
        if (kind, is_long) in self._tables:
            self._outgrown.append(self._tables[kind, is_long])
        with one_thread():  # with several, results depend on the length of the table
            table = self._compute(kind, torch.arange(count, device=self._like.device))
        self._tables[kind, is_long] = table
        return table

    def _compute(self, kind: str, positions: Tensor) -> Tensor:
        """Return cosines and sines from the module, [positions, 2, 1, n]."""
        with frequencies_as_loaded([self._module] if self._facts.rope_grows else []):
            cos, sin = self._module(self._like, positions[None], *([kind] if kind else []))
        half = cos.shape[-1] // 2
        # Of models that see pictures, one for each axis of a place, which are alike in a text.
        cos, sin = (table.flatten(0, -3)[0, :, :half] for table in (cos, sin))
        if self._interleaved:
            cos = cos.repeat_interleave(2, dim=-1)
            sin = torch.stack((-sin, sin), dim=-1).flatten(-2)
        else:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return torch.stack((cos, sin), dim=1)[:, :, None].contiguous()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with a single thread: several divide work by its size, and round differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def growing(model: nn.Module) -> list[nn.Module]:
    """Return the rotary embeddings of a model whose frequencies grow with the longest text so
    far."""
    return [part for part in model.modules() if "dynamic" in str(getattr(part, "rope_type", ""))]


@contextmanager
def frequencies_as_loaded(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Reset growing rotary embeddings before and after a forward."""
    forget(modules)
    try:
        yield
    finally:
        forget(modules)


def forget(modules: Sequence[nn.Module]) -> None:
    """Reset growing rotary embeddings: they forget the longest text when they meet a short one."""
    for module in modules:
        kinds: Any = module.rope_type
        for kind in kinds if isinstance(kinds, dict) else [None]:
            device = next(module.buffers()).device
            first = torch.zeros((1, 1), dtype=torch.long, device=device)
            module(torch.zeros(0, device=device), first, *([kind] if kind else []))
