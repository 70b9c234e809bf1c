"""Weights that stay as a file stores them: they are read as they are needed, row by row.

On a CPU, a model in float32 needs four bytes for what most files store in two.  A form of two bytes
holds it as well (`cpu_layouts.halves`), so its linear layers and its embedding never are in memory
in float32 as a whole, which would take longer than all else at load.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AT_ONCE = 1 << 20
"""Numbers of a weight that are multiplied at once: they stay in a processor's cache."""


class Rows(Protocol):
    """A weight [out, in] whose rows are unpacked as they are read."""

    @property
    def shape(self) -> Sequence[int]:
        """Rows and columns."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""

    def __getitem__(self, rows: Any, /) -> Tensor:
        """Return rows: all of them (`...`), those of a slice, or those of a tensor of numbers."""


class StoredTensor:
    """A tensor in a file.

    Args:
        memory: the file, mapped for this process alone.
        start: of the tensor in it, in bytes.
        dtype, shape: of the tensor.
    """

    device = torch.device("cpu")

    def __init__(
        self, memory: mmap.mmap, start: int, dtype: torch.dtype, shape: Sequence[int]
    ) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        self._memory, self._start = memory, start
        flat = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=start)
        self._tensor = flat.view(self.shape)

    def __getitem__(self, rows: Any) -> Tensor:
        """Return rows as they are in the file, whose memory they share."""
        return self._tensor[rows]

    def leave_memory(self) -> None:
        """Let the system take back the memory that holds it, until it is read again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            first = -(-self._start // mmap.PAGESIZE) * mmap.PAGESIZE
            size = self._start + self._tensor.nbytes - first
            if size >= mmap.PAGESIZE:
                size -= size % mmap.PAGESIZE
                self._memory.madvise(mmap.MADV_DONTNEED, first, size)


class Stacked:
    """Weights of 16 bits above one another, whose rows are read in float32."""

    dtype = torch.float32

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self.shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])

    def __getitem__(self, rows: Any) -> Tensor:
        """Return rows as a tensor of its own: all of them (`...`), or those of a slice."""
        first, end, _ = (slice(None) if rows is ... else rows).indices(self.shape[0])
        return self.read(slice(first, end), torch.empty((end - first) * self.shape[1]))

    def read(self, rows: slice, room: Tensor) -> Tensor:
        """Return rows that are written to `room`, which has at least as many numbers."""
        first, end, _ = rows.indices(self.shape[0])
        found = room[: (end - first) * self.shape[1]].view(-1, self.shape[1])
        start = -first  # of a part, among those rows
        for part in self._parts:
            stop = start + part.shape[0]
            low, high = max(start, 0), min(stop, len(found))
            if low < high:
                found[low:high] = part[low - start : high - start]
            start = stop
        return found

    @cached_property
    def largest(self) -> float:
        """The largest absolute value; infinite or NaN if a number is."""
        ends = [torch.stack(torch.aminmax(part[...])) for part in self._parts]
        return float(torch.stack(ends).float().abs().max())

    def leave_memory(self) -> None:
        """See `StoredTensor`."""
        for part in self._parts:
            if isinstance(part, StoredTensor):
                part.leave_memory()


def parts_of(model: Any) -> dict[str, Any]:
    """Return by name the modules of a model that may hold their weights otherwise: its linear
    layers, and its embedding."""
    embedding = model.get_input_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear or (isinstance(module, nn.Embedding) and module is embedding)
    }


def keep_stored(model: Any, stored: Mapping[str, Rows]) -> None:
    """Let the linear layers of a model, and its embedding, compute in float32 with the rows of its
    weights, which `stored` has by name."""
    rows_of = {model.get_parameter(name): rows for name, rows in stored.items()}
    for name, module in parts_of(model).items():
        kind = StoredEmbedding if isinstance(module, nn.Embedding) else StoredLinear
        model.set_submodule(name, kind(module, rows_of[module.weight]))


def make_plain(model: nn.Module) -> None:
    """Have the weights of such linear layers in float32, where transformers' forward runs them."""
    for module in model.modules():
        if isinstance(module, StoredLinear):
            module.weight = module.weight[...].float()


class StoredLinear(nn.Module):
    """A linear layer.

    Args:
        linear: what it is made of.
        weight: that of the layer.

    Attributes:
        weight: no parameter: it has another type.
    """

    def __init__(self, linear: nn.Linear, weight: Rows) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        step = max(AT_ONCE // self.in_features, 1)
        if isinstance(self.weight, Tensor):
            step = self.out_features
        starts = range(0, self.out_features, step)
        found = [F.linear(x, self.weight[i : i + step].float()) for i in starts]
        product = torch.cat(found, dim=-1)
        return product if self.bias is None else product + self.bias


class StoredEmbedding(nn.Module):
    """An embedding whose rows are made plain as they are looked up, and scaled if the family
    (Gemma) has that.

    Args:
        embedding: what it is made of.
        weight: that of the embedding.

    Attributes:
        weight: [vocabulary, n]; no parameter, for these get other types.
        scale: of all rows.
    """

    def __init__(self, embedding: nn.Embedding, weight: Any) -> None:
        super().__init__()
        self.weight = weight
        self.scale = getattr(embedding, "embed_scale", 1.0)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., n]."""
        rows: Tensor = self.weight[ids].float() * self.scale
        return rows
